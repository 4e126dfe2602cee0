"""The fractal order NZ of a matrix: blocks of C0 columns, one below the other, C0 numbers being 32 bytes.

A matrix (rows, columns) is (ceil(columns / C0), rows, C0) in NZ; what the last block has too many is zero. [asc-devkit:
DataCopy ND2NZ]
"""

from __future__ import annotations

from math import ceil

import torch

from dsf.hdl import Chip
from dsf.isa.program import Instruction
from dsf.isa.rules import limit
from dsf.isa.table import Rule

__all__ = ["columns_in_fractals", "from_fractals", "to_fractals"]


def to_fractals(matrix: torch.Tensor, width: int) -> torch.Tensor:
    """(..., rows, columns) as (..., blocks, rows, *width*)."""
    columns = matrix.shape[-1]
    whole = matrix if columns % width == 0 else torch.nn.functional.pad(matrix, (0, -columns % width))
    return whole.unflatten(-1, (-1, width)).transpose(-2, -3)


def from_fractals(blocks: torch.Tensor, columns: int) -> torch.Tensor:
    """(..., blocks, rows, C0) as (..., rows, *columns*); the inverse of `to_fractals`."""
    return blocks.transpose(-2, -3).flatten(-2)[..., :columns]


def columns_in_fractals(blocks: int, matrix: int) -> Rule:
    """The operand at place *blocks* is in fractals what the one at place *matrix* is in rows."""

    def rule(chip: Chip, ins: Instruction) -> str | None:
        nz, nd = ins.operands[blocks], ins.operands[matrix]
        width = limit(chip, "vector_block_bytes") // nz.itemsize
        if len(nd.shape) != 2:
            return f"a matrix has rows and columns, not {nd.shape}"
        wanted = (ceil(nd.shape[1] / width), nd.shape[0], width)
        return None if nz.shape == wanted else f"{nd.shape} of {nz.dtype} are {wanted} in fractals, not {nz.shape}"

    rule.__doc__ = f"Operand {blocks + 1} is in fractals what operand {matrix + 1} is in rows."
    return rule
