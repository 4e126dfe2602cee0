"""Attention without fusing: the cube and vector cores exchange data through GM only, so scores and weights go there."""

from __future__ import annotations

from functools import partial

from dsf.kernels import latent, paged
from dsf.kernels.attention import LIMITS, ROUNDING, emit_attention, reference, row_fits
from dsf.kernels.kernel import Kernel, Limit
from dsf_ascend.kernels.cube import emit_product

__all__ = ["KERNELS"]

NAME = "MatMulSoftmaxMatMul"
SOURCE = "aclnnBatchMatMul and aclnnSoftmax; cube and vector cores exchange data through GM only: asc-devkit guide"
ROW = Limit("one row of scores, with its mask, fits UB", partial(row_fits, "UB"), "UB 192 KiB: ini")

LATENT_ROW = Limit("one row of both scores, with its mask, fits UB", lambda chip, i: latent.row_fits(chip, "UB", i))
PAGED_ROW = Limit("one row of scores fits UB", lambda chip, i: paged.row_fits(chip, "UB", i))

KERNELS = (
    Kernel(NAME, "attention", "ascend", partial(emit_attention, emit_product, NAME), reference, (*LIMITS, ROW),
           ROUNDING, SOURCE),
    Kernel("MlaAttention", "latent_attention", "ascend", partial(latent.emit_latent, emit_product, "MlaAttention"),
           latent.reference, (*latent.LIMITS, LATENT_ROW), latent.ROUNDING,
           "aclnnFusedInferAttentionScore, MLA: latent 512, rope 64; here in four phases"),
    Kernel("PagedAttention", "paged_attention", "ascend", partial(paged.emit_paged, emit_product, "PagedAttention"),
           paged.reference, (*paged.LIMITS, PAGED_ROW), paged.ROUNDING,
           "aclnnIncreFlashAttention with a block table; pages are brought together first, as GatherV2 does"),
)  # fmt: skip
