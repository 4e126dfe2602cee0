"""MTE1, MTE2, MTE3: the engines that move tiles between memories. [asc-devkit: DataCopy, LoadData]

An operand's shape and strides stand for DataCopyParams (block count, block length, gaps); a copy into L1 or L0 holds
the tile in the engine's fractal order, which the operand's window leaves to the memory (tagged, not permuted).
"""

from __future__ import annotations

from collections.abc import Iterator

from dsf.hdl import Chip
from dsf.isa import Isa, Operand
from dsf.isa.families import add_copies, add_indexed
from dsf.isa.program import Instruction
from dsf.isa.rules import limit

__all__ = ["declare"]

SOURCE = "asc-devkit guide, DataCopy and LoadData; rates: ini AICoreMemoryRates"


def declare(isa: Isa) -> None:
    """Add the copies of the three engines."""
    add_copies(isa, "MTE2", "GM", "L1", "DataCopy.GM2L1", "load.matrix", SOURCE, [gap_fits_the_field])
    add_copies(isa, "MTE2", "GM", "UB", "DataCopy.GM2UB", "load", SOURCE, [gap_fits_the_field])
    add_copies(isa, "MTE3", "UB", "GM", "DataCopy.UB2GM", "store", SOURCE, [gap_fits_the_field])
    add_copies(isa, "MTE1", "L1", "L0A", "LoadData.L12L0A", "load.a", SOURCE)
    add_copies(isa, "MTE1", "L1", "L0B", "LoadData.L12L0B", "load.b", SOURCE)
    add_copies(isa, "MTE1", "L1", "BT", "DataCopy.L12BT", "load.bias", SOURCE, converts=True)
    add_indexed(isa, "MTE2", "GM", "UB", "DataCopy.Gather", "", SOURCE)
    add_indexed_store(isa)


def add_indexed_store(isa: Isa) -> None:
    """Scattering is MTE3's: rows leave UB for addresses that the scalar unit computes."""
    probe = Isa("probe")
    add_indexed(probe, "MTE3", "GM", "UB", "gather", "DataCopy.Scatter", SOURCE)
    isa.add(probe["DataCopy.Scatter"])


def gap_fits_the_field(chip: Chip, ins: Instruction) -> str | None:
    """DataCopy's gap field counts the blocks between the end of one row and the start of the next in 16 bits."""
    blocks, size = limit(chip, "copy_gap_blocks"), limit(chip, "vector_block_bytes")
    for operand in ins.operands:
        for gap in _gaps(operand):
            if gap > blocks * size:
                return f"a gap of {gap} bytes between rows exceeds {blocks} blocks of {size} bytes; copy row by row"
    return None


def _gaps(operand: Operand) -> Iterator[int]:
    """Bytes between the end of one piece and the start of the next, for every dimension from the closest on."""
    reach = 1
    for n, stride in sorted(zip(operand.shape, operand.stride, strict=True), key=lambda dim: dim[1]):
        if n > 1:
            yield (stride - reach) * operand.itemsize
            reach += (n - 1) * stride
