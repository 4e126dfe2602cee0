"""What a chip can do: instructions as table rows, programs as values, and the writing of programs."""

from __future__ import annotations

from dsf.isa.builder import Builder, Scratch
from dsf.isa.program import Affine, Instruction, Loop, Nest, Operand, Param, Phase, Program
from dsf.isa.table import Isa, Role, Row, accumulate, read, write

__all__ = [
    "Affine", "Builder", "Instruction", "Isa", "Loop", "Nest", "Operand", "Param", "Phase", "Program", "Role", "Row",
    "Scratch", "accumulate", "read", "write",
]  # fmt: skip
