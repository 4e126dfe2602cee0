"""The instruction set of the Ascend 910B family (NpuArch 2201), one module per engine, in the vendor's own words."""

from __future__ import annotations

from dsf.isa import Isa
from dsf_ascend.isa import cube, move, scalar, sync, vector

__all__ = ["ISA"]

ISA = Isa("ascend-2201", wide=frozenset({"L0A", "L0B"}))
for engine in (move, cube, vector, scalar, sync):
    engine.declare(ISA)
