"""M: the matrix engine. [asc-devkit: Mmad, SetHF32Mode, SetHF32TransMode]

What CANN sets in mode registers (hf32, how it is rounded) is part of an instruction's name here, so that a listing says
what is computed. int4 stands one number to a byte and is checked; the chip packs two, so that tiles of int4 take twice
their room here.
"""

from __future__ import annotations

from functools import partial

from dsf.hdl import Chip
from dsf.isa import Isa
from dsf.isa.products import INT4, INT8, Product, WholeProduct, add_matrix
from dsf.isa.program import Instruction
from dsf.isa.rules import limit
from dsf.numerics.quantise import in_range, quantise

__all__ = ["declare"]

MMAD = "asc-devkit guide, Mmad: cycles = dt + ceil16(m) * ceil16(n) * ceil_k0(k) / (cube_m * cube_n * cube_k)"
HF32 = f"{MMAD}; HF32: operands rounded to 11 mantissa bits, SetHF32TransMode 0 to even, 1 away from zero"
FLOATS = ("float16", "bfloat16", "float32")


def declare(isa: Isa) -> None:
    """Add Mmad for floating point, hf32, int8 and int4, each alone and on a bias from BT (cmatrixSource = BT)."""
    add = partial(add_matrix, isa, "M")
    where = "L0C", "L0A", "L0B"
    even, away = (Product(partial(quantise, form="hf32", rounding=mode)) for mode in ("nearest-even", "nearest-away"))
    int8, int4 = WholeProduct(longest=INT8), WholeProduct(partial(in_range, form="int4"), longest=INT4)
    for suffix, bias in (("", ""), (".bias", "BT")):
        on = ".bias" if bias else ""
        add(f"Mmad{suffix}", *where, FLOATS, bias=bias, source=MMAD)
        add(f"Mmad.s8{suffix}", *where, ("int8",), "int32", product=int8, bias=bias, rules=(whole_fractals,),
            source=MMAD)  # fmt: skip
        add(f"Mmad.s4{suffix}", *where, ("int8",), "int32", product=int4, form="int4", bias=bias,
            implements=f"matmul.int4{on}", source=MMAD)  # fmt: skip
        add(f"Mmad.hf32{suffix}", *where, ("float32",), product=even, form="hf32", bias=bias,
            implements=f"matmul.hf32{on}", source=HF32)  # fmt: skip
        add(f"Mmad.hf32.away{suffix}", *where, ("float32",), product=away, form="hf32", bias=bias,
            implements=f"matmul.hf32.away{on}", source=HF32)  # fmt: skip


def whole_fractals(chip: Chip, ins: Instruction) -> str | None:
    """A product of int8 has a multiple of 32 columns."""
    columns, step = ins.operands[0].shape[-1], limit(chip, "int8_matmul_n_multiple")
    return f"{columns} columns of int8; expected a multiple of {step}" if columns % step else None
