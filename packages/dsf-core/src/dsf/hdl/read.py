"""From a JSON file to a `Chip`, or to one error that lists everything that is wrong with the file.

Three readings, each with its own findings, all reported together: the text (JSON, duplicate keys), the form (the JSON
Schema, with units as one more keyword of it), and the references (an engine names a core that exists).
"""

from __future__ import annotations

import copy
import json
import stat
from pathlib import Path
from typing import Any

from attrs import frozen

from dsf import errors, units
from dsf.hdl.build import build
from dsf.hdl.form import of_form
from dsf.hdl.model import Chip
from dsf.hdl.problems import Json, Problem, of_repeated_keys, sentence, show
from dsf.hdl.references import of_references

__all__ = ["Document", "chip_of", "read", "vary"]

_MOST_BYTES = 4 * 2**20  # a real file has some 40 KiB; a hundred times that is no chip


@frozen
class Document:
    """A parsed file: its JSON object, and what the parser alone can see, such as a key that occurs twice."""

    path: str
    json: Json
    found: tuple[Problem, ...]


def read(path: Path) -> Document:
    """The JSON object in the file at *path*; HdlError with a sentence for anything else that lies there."""
    text = _text(path)
    repeated: list[tuple[Json, str]] = []

    def unique(pairs: list[tuple[str, Any]]) -> Json:
        node = dict(pairs)
        if len(node) != len(pairs):
            keys = [key for key, _ in pairs]
            repeated.extend((node, key) for key in node if keys.count(key) > 1)
        return node

    try:
        parsed = json.loads(text, object_pairs_hook=unique, parse_constant=str, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise _unreadable(path, f"no JSON at line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise _unreadable(path, "nested too deeply; a hardware description has at most 8 levels") from None
    except ValueError as error:  # an integer of more digits than Python will read
        raise _unreadable(path, f"holds a number that cannot be read: {error}") from None
    if not isinstance(parsed, dict):
        raise _unreadable(path, f"holds {show(parsed)}; expected a JSON object that describes a chip")
    return Document(str(path), parsed, tuple(of_repeated_keys(parsed, repeated)))


def vary(document: Document, name: str) -> Document:
    """The document of variant *name* of a file that has no findings: the file's own, with the values set of the variant
    that it is like, and then with its own."""
    variants = document.json["variants"]
    variant = variants[name]
    varied = copy.deepcopy(document.json)
    base = variants[variant["like"]]["set"] if "like" in variant else {}
    for pointer, value in (*copy.deepcopy(base).items(), *variant["set"].items()):
        *parents, last = pointer.split("/")[1:]
        node = varied
        for key in parents:
            node = node[key]
        node[last] = value
    varied |= {"name": name, "title": variant["title"], "variants": {}}
    return Document(f"{document.path}: variant {name}", varied, ())


def chip_of(document: Document) -> Chip:
    """The chip that *document* describes; HdlError with every finding if it describes none."""
    found = [*document.found, *of_form(document.json), *of_references(document.json)]
    if found:
        raise errors.HdlError("DSF-H003", sentence(document.path, found))
    return build(document.path, document.json)


def _text(path: Path) -> str:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise _unreadable(path, f"is {_kind(status.st_mode)}; expected a JSON file")
        if status.st_size > _MOST_BYTES:
            raise _unreadable(path, f"has {units.show(status.st_size, 'bytes')}; expected at most 4 MiB")
        raw = path.read_bytes()
    except FileNotFoundError:
        what = "is a link to nothing" if path.is_symlink() else "does not exist"
        raise _unreadable(path, f"{what}; expected a JSON file") from None
    except OSError as error:
        raise _unreadable(path, f"cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise errors.HdlError("DSF-H002", f"{str(path)!r} is no file name; expected the path of a JSON file") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _unreadable(path, f"is not UTF-8: byte {error.start} is 0x{raw[error.start]:02x}") from None


def _unreadable(path: Path, what: str) -> errors.HdlError:
    return errors.HdlError("DSF-H002", f"{path}: {what}")


def _kind(mode: int) -> str:
    return "a folder" if stat.S_ISDIR(mode) else "no regular file"


def _finite(text: str) -> float | str:
    number = float(text)
    return number if number - number == 0 else text  # 1e999 stays text: the unit parser refuses it by its place
