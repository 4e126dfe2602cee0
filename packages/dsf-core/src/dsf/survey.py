"""Which chips can be enabled here, who answers for each, and what is wrong with those that cannot."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from dsf import errors, hdl, units
from dsf.plugins import Registry

__all__ = ["Chips", "Line", "survey"]


@frozen
class Line:
    """One chip. *runs_on* is its vendor's plugin or `generic`, *peak_flops* of the matrix engines in *dtype*.

    A chip that cannot be enabled has the reason as its *problem*, and no numbers.
    """

    name: str
    title: str
    vendor: str
    runs_on: str | None = None
    device: str | None = None
    nbytes: int | None = None
    dtype: str | None = None
    peak_flops: int | None = None
    peak_origin: str | None = None
    problem: str | None = None

    @property
    def status(self) -> str:
        return self.problem or "ready"

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


def survey(registry: Registry) -> Chips:
    """Every chip of the catalogue, read and asked for its plugin, in the order of names."""
    folders = registry.hdl_folders()
    return Chips(tuple(_line(entry, folders, registry) for entry in hdl.catalogue(folders)))


def _line(entry: hdl.Entry, folders: tuple[str, ...], registry: Registry) -> Line:
    if entry.problem is not None:
        return _unusable(entry, entry.problem)
    try:
        chip = hdl.load(entry.name, folders)
        return _usable(chip, registry.view(chip).plugin)
    except (errors.HdlError, errors.PluginError) as error:
        return _unusable(entry, error.sentence)
    except Exception as fault:  # noqa: BLE001  # whatever one file does to us, the other chips are listed
        return _unusable(entry, f"a fault in DSF while it read {entry.path}: {type(fault).__name__}: {fault}")


def _unusable(entry: hdl.Entry, problem: str) -> Line:
    return Line(entry.name, entry.title, entry.vendor, problem=problem)


def _usable(chip: hdl.Chip, runs_on: str) -> Line:
    dtype = chip.numerics.preferred
    return Line(
        name=chip.name,
        title=chip.title,
        vendor=chip.vendor,
        runs_on=runs_on,
        device=chip.device,
        nbytes=chip.main_memory.nbytes,
        dtype=dtype,
        peak_flops=chip.peak_flops(dtype),
        peak_origin=_peak_origin(chip, dtype),
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
