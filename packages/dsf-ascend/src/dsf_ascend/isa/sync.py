"""SetFlag and WaitFlag: what orders two engines of a core. Each engine's queue is in order; nothing else is."""

from __future__ import annotations

from dsf.isa import Isa
from dsf.isa.laws import fixed

__all__ = ["declare"]


def declare(isa: Isa) -> None:
    """Add the pair of flag instructions."""
    isa.add_flags(fixed(0), "asc-devkit guide, SetFlag/WaitFlag<HardEvent>; event ids 6 and 7 are reserved")
