"""Attention without fusing: the cube and vector cores exchange data through GM only, so scores and weights go there."""

from __future__ import annotations

from functools import partial

from dsf.kernels.attention import LIMITS, ROUNDING, emit_attention, reference, row_fits
from dsf.kernels.kernel import Kernel, Limit
from dsf_ascend.kernels.cube import emit_product

__all__ = ["KERNELS"]

NAME = "MatMulSoftmaxMatMul"
SOURCE = "aclnnBatchMatMul and aclnnSoftmax; cube and vector cores exchange data through GM only: asc-devkit guide"
ROW = Limit("one row of scores, with its mask, fits UB", partial(row_fits, "UB"), "UB 192 KiB: ini")

KERNELS = (
    Kernel(
        NAME,
        "attention",
        "ascend",
        partial(emit_attention, emit_product, NAME),
        reference,
        (*LIMITS, ROW),
        ROUNDING,
        SOURCE,
    ),
)
