"""The 910B2 and its instruction set, and a way to ask for the cycles of one instruction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dsf import hdl
from dsf.hdl import Chip
from dsf.isa import Affine, Instruction, Operand
from dsf.isa.program import contiguous
from dsf_ascend.isa import ISA


@pytest.fixture(scope="session")
def chip() -> Chip:
    return hdl.load("ascend-910b2")


@pytest.fixture
def cycles(chip: Chip) -> Callable[..., int]:
    """Cycles of one instruction on operands given as (memory, shape, dtype) or (memory, shape, dtype, strides)."""

    def cycles(name: str, *operands: tuple[Any, ...]) -> int:
        made = tuple(window(*given) for given in operands)
        return ISA[name].cycles(chip, ISA[name], Instruction(name, made))

    return cycles


def window(space: str, shape: Sequence[int], dtype: str, stride: Sequence[int] | None = None) -> Operand:
    dims = tuple(shape)
    return Operand(space, dims, tuple(stride or contiguous(dims)), dtype, Affine(), 0 if space == "GM" else None)
