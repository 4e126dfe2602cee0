"""Which chips there are: those of the folders in DSF_HDL_PATH, those that plugins bring, those that ship with DSF.

In this order; the first file that names a chip describes it, so your own description of a chip stands before ours.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from attrs import frozen

from dsf import errors
from dsf.hdl.model import Chip
from dsf.hdl.problems import Json, close, show
from dsf.hdl.read import Document, chip_of, read, vary

__all__ = ["Entry", "catalogue", "load", "names"]

_SHIPPED = Path(__file__).with_name("chips")
_Stamp = tuple[str, int, int]


@frozen
class Entry:
    """A chip that `load` knows by name. *origin*: 'DSF_HDL_PATH', 'plugin' or 'shipped'; *base*: whose variant it is.

    A file that cannot be read is an entry too, under its file's name, with the reason as *problem*.
    """

    name: str
    path: str
    vendor: str
    title: str
    origin: str
    base: str | None = None
    problem: str | None = None


_documents: dict[_Stamp, Document] = {}
_chips: dict[tuple[_Stamp, str | None], Chip] = {}


def catalogue(extra: Iterable[str | os.PathLike[str]] = ()) -> tuple[Entry, ...]:
    """Every chip there is, by name, the files of *extra* folders (or files) that plugins bring among them."""
    found: dict[str, Entry] = {}
    for origin, path in _files(extra):
        for entry in _entries(origin, path):
            found.setdefault(entry.name, entry)
    return tuple(found[name] for name in sorted(found))


def names(extra: Iterable[str | os.PathLike[str]] = ()) -> tuple[str, ...]:
    """The names of all chips that can be loaded, sorted."""
    return tuple(entry.name for entry in catalogue(extra) if entry.problem is None)


def load(chip: str | os.PathLike[str], extra: Iterable[str | os.PathLike[str]] = ()) -> Chip:
    """The chip of this name, or the one described by this file; HdlError if there is none or it is malformed.

    A text that ends in `.json` or has a slash is a file; anything else is a name, as `names` lists them.
    """
    if not isinstance(chip, str) or chip.endswith(".json") or "/" in chip or os.sep in chip:
        return _chip(Path(chip), None)
    entries = catalogue(extra)
    for entry in entries:
        if entry.name == chip:
            return _chip(Path(entry.path), chip if entry.base else None)
    known = [entry.name for entry in entries if entry.problem is None]
    raise errors.HdlError("DSF-H001", f"no chip named {show(chip)}{close(chip, known, 'known chips')}")


def _chip(path: Path, variant: str | None) -> Chip:
    key = _stamp(path), variant
    if key not in _chips:
        document = _document(path)
        if variant:
            _chip(path, None)  # a variant of a malformed file is not looked at
            document = vary(document, variant)
        _chips[key] = chip_of(document)
    return _chips[key]


def _document(path: Path) -> Document:
    stamp = _stamp(path)
    if stamp not in _documents:
        _documents[stamp] = read(path)
    return _documents[stamp]


def _stamp(path: Path) -> _Stamp:
    """What changes when a file does; the caches are keyed by it."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return str(path), 0, 0  # `read` will say what is wrong
    return str(path), status.st_mtime_ns, status.st_size


def _files(extra: Iterable[str | os.PathLike[str]]) -> Iterator[tuple[str, Path]]:
    listed = os.environ.get("DSF_HDL_PATH", "")
    for part in filter(None, listed.split(os.pathsep)):
        if not Path(part).exists():
            raise errors.HdlError("DSF-H004", f"DSF_HDL_PATH: '{part}' does not exist; expected folders or JSON files")
        yield from (("DSF_HDL_PATH", path) for path in _json_files(Path(part)))
    for folder in extra:
        yield from (("plugin", path) for path in _json_files(Path(folder)))
    yield from (("shipped", path) for path in _json_files(_SHIPPED))


def _json_files(path: Path) -> list[Path]:
    return sorted(path.glob("*.json")) if path.is_dir() else [path]


def _entries(origin: str, path: Path) -> Iterator[Entry]:
    try:
        d = _document(path).json
    except errors.HdlError as error:
        yield Entry(path.stem, str(path), "", "", origin, problem=error.sentence)
        return
    name, vendor, title = (_text(d, key) for key in ("name", "vendor", "title"))
    yield Entry(name or path.stem, str(path), vendor, title, origin)
    variants = d.get("variants")
    for variant, node in variants.items() if isinstance(variants, dict) else ():
        if isinstance(node, dict):
            yield Entry(variant, str(path), vendor, _text(node, "title"), origin, base=name)


def _text(node: Json, key: str) -> str:
    value = node.get(key)
    return value if isinstance(value, str) else ""
