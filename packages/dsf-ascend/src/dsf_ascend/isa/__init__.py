"""The instruction set of the Ascend 910B family (NpuArch 2201) in the vendor's own words: one module per engine, and
beside them what the vector unit fuses and shuffles, what MTE1 loads, and the fractal order."""

from __future__ import annotations

from dsf.isa import Isa
from dsf_ascend.isa import cube, fixpipe, fractal, move, scalar, sync, vector

__all__ = ["ISA"]

ISA = Isa("ascend-2201", wide=frozenset({"L0A", "L0B"}))
for engine in (move, cube, fixpipe, fractal, vector, scalar, sync):
    engine.declare(ISA)
