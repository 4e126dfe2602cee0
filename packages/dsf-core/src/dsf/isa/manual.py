"""The manual of an instruction set: the table's rows in words, engine by engine, beside what the HDL says of engines.

Nothing is written twice: the meaning and the law of the cycles are the docstrings of the functions that compute them,
the constraints those of the rules that check them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from typing import Any

from attrs import asdict, frozen

from dsf import errors
from dsf.hdl import Chip, Engine
from dsf.hdl.model import Path
from dsf.isa.program import Instruction
from dsf.isa.table import Isa, Row

__all__ = ["Chapter", "Entry", "Manual", "OperandEntry", "Rate", "entry", "manual"]


@frozen
class OperandEntry:
    """One operand: *mode* is read, write or accumulate (read and written); no dtypes: any."""

    name: str
    mode: str
    spaces: tuple[str, ...]
    dtypes: tuple[str, ...]


@frozen
class Entry:
    """One instruction in words. *scalars* are (name, type); *engine* is empty for what stands in any queue; *opclass*
    is the class of the engine's rates that prices it, where a rate does."""

    name: str
    engine: str
    operands: tuple[OperandEntry, ...]
    scalars: tuple[tuple[str, str], ...]
    meaning: str
    cycles: str
    opclass: str
    constraints: tuple[str, ...]
    source: str
    implements: str | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"scalars": [{"name": name, "type": kind} for name, kind in self.scalars]}


@frozen
class Rate:
    """Elements, or multiply-accumulates, a cycle: of an operation class, by dtype, as exact fractions in text."""

    opclass: str
    by_dtype: tuple[tuple[str, str], ...]
    origin: str


@frozen
class Way:
    """A data path that an engine moves bytes along, for one core: its width and what starting costs."""

    source: str
    target: str
    bytes_per_cycle: int
    startup_cycles: int
    origin: str


@frozen
class Chapter:
    """One engine with its instructions. *cores* are (kind, how many the chip has), each of which has this engine;
    *tiles* (dtype, (m, k, n)) what a matrix engine does in one step."""

    engine: str
    kind: str
    cores: tuple[tuple[str, int], ...]
    hertz: int
    clock_origin: str
    startup_cycles: int
    rates: tuple[Rate, ...]
    paths: tuple[Way, ...]
    tiles: tuple[tuple[str, tuple[int, int, int]], ...]
    entries: tuple[Entry, ...]

    def to_json(self) -> dict[str, Any]:
        rates = {rate.opclass: {"by_dtype": dict(rate.by_dtype), "origin": rate.origin} for rate in self.rates}
        entries = [entry.to_json() for entry in self.entries]
        told = {"cores": dict(self.cores), "rates": rates, "tiles": dict(self.tiles), "entries": entries}
        return asdict(self) | told


@frozen
class Manual:
    """The whole: *chapters* in the HDL's order of engines, then what stands *anywhere*: in the queue of any engine."""

    chip: str
    isa: str
    chapters: tuple[Chapter, ...]
    anywhere: tuple[Entry, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "chip": self.chip,
            "isa": self.isa,
            "chapters": [chapter.to_json() for chapter in self.chapters],
            "anywhere": [entry.to_json() for entry in self.anywhere],
        }


def manual(isa: Isa, chip: Chip) -> Manual:
    """All instructions of *chip*'s table."""
    chapters = tuple(_chapter(isa, chip, engine) for engine in chip.engines.values())
    anywhere = tuple(_entry(chip, row) for row in isa.rows.values() if not row.engine)
    return Manual(chip.name, isa.name, tuple(c for c in chapters if c.entries), anywhere)


def entry(isa: Isa, chip: Chip, name: str) -> Entry:
    """The instruction called *name*; a UsageError with the nearest names where there is none."""
    row = isa.rows.get(name)
    if row is None:
        folded = {known.lower(): known for known in isa.rows}
        near = [folded[n] for n in get_close_matches(name.lower(), folded, n=4, cutoff=0.5)]
        hint = f"did you mean {' or '.join(near)}?" if near else f"`dsf-cli isa {chip.name}` lists all {len(isa.rows)}"
        raise errors.UsageError("DSF-I002", f"{isa.name}: no instruction named '{name}'; {hint}")
    return _entry(chip, row)


def _chapter(isa: Isa, chip: Chip, engine: Engine) -> Chapter:
    return Chapter(
        engine=engine.name,
        kind=engine.kind,
        cores=tuple((core, chip.cores[core].count) for core in engine.core),
        hertz=chip.hertz(engine.name),
        clock_origin=chip.origin(f"/clocks/{engine.clock}").origin,
        startup_cycles=engine.startup_cycles,
        rates=tuple(_rate(chip, engine, opclass) for opclass in engine.rates),
        paths=tuple(
            Way(p.source, p.target, p.bytes_per_cycle, p.startup_cycles, _width_origin(chip, p))
            for p in chip.paths.values()
            if p.engine == engine.name
        ),
        tiles=tuple(engine.tiles.items()),
        entries=tuple(_entry(chip, row) for row in isa.rows.values() if row.engine == engine.name),
    )


def _width_origin(chip: Chip, path: Path) -> str:
    return chip.origin(f"/paths/{path.source}->{path.target}/width").origin


def _rate(chip: Chip, engine: Engine, opclass: str) -> Rate:
    by_dtype = tuple((dtype, str(rate)) for dtype, rate in engine.rates[opclass].items())
    return Rate(opclass, by_dtype, chip.origin(f"/engines/{engine.name}/rates/{opclass}").origin)


def _entry(chip: Chip, row: Row) -> Entry:
    return Entry(
        name=row.name,
        engine=row.engine,
        operands=tuple(OperandEntry(name, role.mode, role.spaces, role.dtypes) for name, role in row.operands),
        scalars=row.scalars,
        meaning=" ".join(row.summary.split()),
        cycles=_law(chip, row),
        opclass=row.opclass,
        constraints=tuple(dict.fromkeys(words for rule in row.rules if (words := _words(rule)))),
        source=row.source,
        implements=row.implements,
    )


def _law(chip: Chip, row: Row) -> str:
    """The law of a row's cycles in words; what has no operands takes the same time always."""
    if row.operands:
        return _words(row.cycles)
    return f"{row.cycles(chip, row, Instruction(row.name))}, always"


def _words(function: Callable[..., Any]) -> str:
    """What a law or a rule says of itself; one that was made by another function is explained by that one."""
    if isinstance(function, partial):
        function = function.func
    text = function.__doc__
    if not text and "<locals>" in function.__qualname__:
        maker = getattr(sys.modules[function.__module__], function.__qualname__.split(".")[0], None)
        text = getattr(maker, "__doc__", None)
    return " ".join((text or "").split())
