"""Which chips can be enabled here, who answers for each, and what is wrong with those that cannot."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from dsf import errors, hdl, plugins, units

__all__ = ["Chips", "Line", "survey"]


@frozen
class Line:
    """One chip. *runs_on* is its vendor's plugin or `generic`; *problem* is None for a chip that can be enabled.

    *note* is what a user should know all the same, such as why the vendor's own plugin does not answer.
    """

    name: str
    title: str
    vendor: str
    runs_on: str
    device: str | None
    nbytes: int | None
    dtype: str | None
    peak_flops: int | None
    peak_origin: str | None
    problem: str | None = None
    note: str | None = None

    @property
    def status(self) -> str:
        return self.problem or self.note or "ready"

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "vendor": self.vendor,
            "runs_on": self.runs_on,
            "device": self.device,
            "memory_bytes": self.nbytes,
            "dtype": self.dtype,
            "peak_flops": self.peak_flops,
            "peak_origin": self.peak_origin,
            "ready": self.problem is None,
            "status": self.status,
        }


@frozen
class Chips:
    """All chips, by name. Its *findings* are those that cannot be used."""

    lines: tuple[Line, ...]

    @property
    def findings(self) -> tuple[Line, ...]:
        return tuple(line for line in self.lines if line.problem)

    def to_json(self) -> dict[str, Any]:
        return {"chips": [line.to_json() for line in self.lines]}


def survey() -> Chips:
    """Every chip of the catalogue, read and asked for its plugin, in the order of names."""
    extra = plugins.hdl_files()
    return Chips(tuple(_line(entry, extra) for entry in hdl.catalogue(extra)))


def _line(entry: hdl.Entry, extra: tuple[str, ...]) -> Line:
    try:
        chip = hdl.load(entry.name, extra) if entry.problem is None else None
    except errors.HdlError as error:
        return _unusable(entry, error.sentence)
    return _usable(chip) if chip else _unusable(entry, entry.problem or "")


def _unusable(entry: hdl.Entry, problem: str) -> Line:
    return Line(entry.name, entry.title, entry.vendor, "", None, None, None, None, None, problem=problem)


def _usable(chip: hdl.Chip) -> Line:
    answer = plugins.answer(chip.vendor)
    dtype = chip.numerics.preferred
    return Line(
        name=chip.name,
        title=chip.title,
        vendor=chip.vendor,
        runs_on=answer.runs_on,
        device=chip.device,
        nbytes=chip.main_memory.nbytes,
        dtype=dtype,
        peak_flops=chip.peak_flops(dtype),
        peak_origin=_peak_origin(chip, dtype),
        note=answer.note,
        problem=answer.problem,
    )


def _peak_origin(chip: hdl.Chip, dtype: str) -> str:
    """The weakest claim among the rates, clocks and core counts of the matrix engines."""
    matrix = [engine for engine in chip.engines.values() if engine.kind == "matrix"]
    pointers = [
        pointer
        for engine in matrix
        for pointer in (
            f"/engines/{engine.name}/rates/mac/{dtype if dtype in engine.rates['mac'] else 'default'}",
            f"/clocks/{engine.clock}",
            *(f"/cores/{core}/count" for core in engine.core),
        )
    ]
    return units.weakest(chip.origin(pointer).origin for pointer in pointers)
