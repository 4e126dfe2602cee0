"""M and FIX: the matrix engine and the engine that takes its results out of L0C. [asc-devkit: Mmad, Fixpipe]"""

from __future__ import annotations

import torch

from dsf.isa import Isa, accumulate, laws, read, write
from dsf.isa.families import add_matrix, summed_otherwise
from dsf.isa.rules import one_dtype, one_shape, product_shapes

__all__ = ["declare"]

MMAD = "asc-devkit guide, Mmad: cycles = dt + ceil16(m) * ceil16(n) * ceil_k0(k) / (cube_m * cube_n * cube_k)"
FIXPIPE = "asc-devkit guide, Fixpipe; ini AICoreMemoryRates L0C to UB 256 B a cycle"
FLOATS = ("float16", "bfloat16", "float32")


def declare(isa: Isa) -> None:
    """Add Mmad for floating point and int8, its form with a bias from BT, and Fixpipe."""
    add_matrix(isa, "M", "Mmad", "L0C", "L0A", "L0B", FLOATS, source=MMAD)
    add_matrix(isa, "M", "Mmad.s8", "L0C", "L0A", "L0B", ("int8",), "int32", source=MMAD)
    declare_bias(isa)
    declare_fixpipe(isa)


def declare_bias(isa: Isa) -> None:
    """Mmad whose accumulator starts from the bias table (cmatrixSource = BT)."""

    @isa.instruction(
        "M", laws.fractals, name="Mmad.bias", implements="matmul.bias", source=MMAD, fast=_bias_fast, lanes=_bias_lanes,
        macs=lambda chip, ins: laws.padded_macs(chip, isa.rows["Mmad.bias"], ins),
        rules=(product_shapes, one_dtype(1, 2)),
        c=accumulate("L0C", dtypes=("float32",)), a=read("L0A", dtypes=FLOATS), b=read("L0B", dtypes=FLOATS),
        bias=read("BT", dtypes=("float32",)),
    )  # fmt: skip
    def mmad_bias(
        c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, accumulate: int
    ) -> torch.Tensor:
        """c (m, n) = a (m, k) @ b (k, n) + (c where accumulate, else bias (n))"""
        return torch.addmm(c if accumulate else bias, a.to(c.dtype), b.to(c.dtype))


def _bias_fast(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, accumulate: int) -> None:
    if not accumulate:
        c.copy_(bias)
    c.addmm_(a.to(c.dtype), b.to(c.dtype))


def _bias_lanes(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, accumulate: int) -> None:
    if not accumulate:
        c.copy_(bias.unsqueeze(1))
    if summed_otherwise(a, b):
        for lane in zip(c, a, b, strict=True):
            _bias_fast(*lane, bias, 1)
        return
    c.baddbmm_(a.to(c.dtype), b.to(c.dtype))


def _store(dst: torch.Tensor, src: torch.Tensor) -> None:
    dst.copy_(src)


def declare_fixpipe(isa: Isa) -> None:
    """L0C to main memory, cast to the destination's format on the way (F322F16, F322BF16, NoQuant)."""

    @isa.instruction(
        "FIX", laws.stream, name="Fixpipe", implements="store.matrix", source=FIXPIPE, fast=_store, lanes=_store,
        rules=(one_shape,),
        dst=write("GM", dtypes=("float16", "bfloat16", "float32", "int32")), src=read("L0C"),
    )  # fmt: skip
    def fixpipe(dst: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
        """dst in GM = src in L0C, rounded to nearest even in dst's dtype"""
        return src
