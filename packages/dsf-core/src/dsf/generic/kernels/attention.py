"""Attention for any chip: two products and a softmax between them, scores and weights in main memory."""

from __future__ import annotations

from functools import partial

from dsf.generic.isa import memories
from dsf.generic.kernels.matmul import emit_product
from dsf.hdl import Chip
from dsf.intent.ir import Intent
from dsf.kernels.attention import LIMITS, ROUNDING, emit_attention, reference, row_fits
from dsf.kernels.kernel import Kernel, Limit

__all__ = ["KERNELS"]

NAME = "generic.attention"


def _row_fits(chip: Chip, intent: Intent) -> bool:
    return row_fits(memories(chip).scratch, chip, intent)


ROW = Limit("one row of scores, with its mask, fits the scratch memory", _row_fits)
KERNELS = (
    Kernel(NAME, "attention", "generic", partial(emit_attention, emit_product, NAME), reference, (*LIMITS, ROW),
           ROUNDING, "derived from the HDL"),
)  # fmt: skip
