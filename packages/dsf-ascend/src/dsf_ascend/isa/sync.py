"""SetFlag and WaitFlag order two engines of a core, PipeBarrier all of them. Each engine's queue is in order; nothing
else is. What crosses cores (CrossCoreSetFlag, SyncAll) is the end of a phase: see SOURCES.md."""

from __future__ import annotations

from typing import NoReturn

from dsf.hdl import Chip
from dsf.isa import Isa
from dsf.isa.laws import fixed
from dsf.isa.program import Instruction
from dsf.isa.table import Row

__all__ = ["declare"]


def declare(isa: Isa) -> None:
    """Add the pair of flag instructions and the barrier."""
    isa.add_flags(fixed(0), "asc-devkit guide, SetFlag/WaitFlag<HardEvent>; event ids 6 and 7 are reserved")
    isa.add(
        Row("PipeBarrier", "S", fixed(0), (), _no_value,
            "hold all engines of the core (pipe ALL) until each has done all that was emitted before",
            rules=(of_all_pipes,), source="asc-devkit guide, PipeBarrier<PIPE_ALL>", barrier=True)
    )  # fmt: skip


def _no_value(pipe: str) -> NoReturn:
    raise AssertionError("a barrier has no value")


def of_all_pipes(chip: Chip, ins: Instruction) -> str | None:
    """One engine's own queue is in order without a barrier."""
    pipe = dict(ins.scalars).get("pipe")
    return None if pipe == "ALL" else f"pipe={pipe}; expected ALL, as a single engine's queue is in order by itself"
