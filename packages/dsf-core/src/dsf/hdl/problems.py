"""What is wrong with a hardware description: every finding with its JSON pointer, what was found, what was expected."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from attrs import frozen

__all__ = ["Json", "Problem", "close", "of_repeated_keys", "pointer_of", "sentence", "show"]

Json: TypeAlias = dict[str, Any]

_MOST_LISTED = 200
_SHORT = 80


@frozen
class Problem:
    """One finding: where (a JSON pointer, empty for the whole file), and what was found and expected there."""

    pointer: str
    what: str

    def __str__(self) -> str:
        return f"{self.pointer or 'the file'}: {self.what}"


def sentence(path: str, found: Iterable[Problem]) -> str:
    """All findings about the file at *path*, one a line if there are several."""
    lines = list(dict.fromkeys(str(problem) for problem in found))
    if len(lines) == 1:
        return f"{path}: {lines[0]}"
    shown = "".join(f"\n  {line}" for line in lines[:_MOST_LISTED])
    rest = f"\n  and {len(lines) - _MOST_LISTED} more" if len(lines) > _MOST_LISTED else ""
    return f"{path}: {len(lines)} problems{shown}{rest}"


def of_repeated_keys(document: Json, repeated: list[tuple[Json, str]]) -> Iterator[Problem]:
    """A finding for each (object, key) of *repeated* that lies in *document*."""
    if not repeated:
        return
    for pointer, node in _objects(document, ""):
        for owner, key in repeated:
            if owner is node:
                yield Problem(pointer_of(pointer, key), "is written twice; keep one")


def _objects(node: Any, pointer: str) -> Iterator[tuple[str, Json]]:
    children: Iterable[tuple[Any, Any]] = ()
    if isinstance(node, dict):
        yield pointer, node
        children = node.items()
    elif isinstance(node, list):
        children = enumerate(node)
    for key, child in children:
        yield from _objects(child, pointer_of(pointer, key))


def pointer_of(parent: str, *keys: object) -> str:
    """The JSON pointer of a child (RFC 6901)."""
    return parent + "".join("/" + _printable(str(key)).replace("~", "~0").replace("/", "~1") for key in keys)


def show(value: object) -> str:
    """*value* as JSON, short enough for a sentence and safe for a terminal."""
    if isinstance(value, Mapping):
        return f"an object with {len(value)} fields"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    text = f"'{value}'" if isinstance(value, str) else json.dumps(value, default=str)
    return _printable(text if len(text) <= _SHORT else text[: _SHORT - 4] + "...'")


def close(word: str, known: Iterable[str], what: str = "known") -> str:
    """'; known: ...' with the *known* words, and which of them *word* looks like."""
    known = sorted(known)
    near = difflib.get_close_matches(word, known, n=1)
    return f"; {what}: {', '.join(known) or 'none'}" + (f"; did you mean '{near[0]}'?" if near else "")


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
