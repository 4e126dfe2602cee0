"""A description to spoil: the invented chip's, changed at a JSON pointer and written to a file of its own."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsf import errors, hdl

DROP = object()
ACME = json.loads(Path(hdl.load("acme-x1").path).read_text("utf-8"))


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    """The invented chip's document with the values at these pointers set, or dropped if they are DROP."""
    document = copy.deepcopy(ACME)
    for pointer, value in changes.items():
        *parents, last = pointer.split("/")[1:]
        node: Any = document
        for key in parents:
            node = node[int(key)] if isinstance(node, list) else node[key]
        if value is DROP:
            del node[last]
        else:
            node[last] = value
    return document


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a changed document to `chip.json` (or another name) and says where it is."""

    def write(changes: dict[str, Any], name: str = "chip.json") -> Path:
        path = tmp_path / name
        path.write_text(json.dumps(changed(changes)), "utf-8")
        return path

    return write


@pytest.fixture
def complaint(write: Callable[..., Path]) -> Callable[[dict[str, Any]], list[str]]:
    """What `hdl.load` finds wrong with a changed document: one line per finding, without the file's name."""

    def complaint(changes: dict[str, Any]) -> list[str]:
        path = write(changes)
        with pytest.raises(errors.HdlError) as error:
            hdl.load(path)
        assert error.value.code == "DSF-H003"
        said = error.value.sentence.removeprefix(f"{path}: ")
        count, *lines = said.split("\n")
        assert not lines or count == f"{len(lines)} problems"
        return [line.strip() for line in lines] or [count]

    return complaint
