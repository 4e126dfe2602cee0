"""MatMul and BatchMatMul: linear layers and products of activations on the cube core."""

from __future__ import annotations

from functools import partial

from dsf.kernels.contraction import (
    LIMITS,
    LINEAR_LIMITS,
    ROUNDING,
    batch_product,
    batch_reference,
    emit_batch,
    emit_linear,
    linear_product,
    linear_reference,
)
from dsf.kernels.kernel import Kernel
from dsf_ascend.kernels.cube import emit_product, variants

__all__ = ["KERNELS"]

SOURCE = "aclnnMatmul and aclnnBatchMatMul, supported dtypes; tiles and data paths: asc-devkit guide"

KERNELS = (
    Kernel(
        "MatMul",
        "linear",
        "ascend",
        partial(emit_linear, emit_product, "MatMul"),
        linear_reference,
        LINEAR_LIMITS,
        ROUNDING,
        SOURCE,
        partial(variants, linear_product),
    ),
    Kernel(
        "BatchMatMul",
        "matmul",
        "ascend",
        partial(emit_batch, emit_product, "BatchMatMul"),
        batch_reference,
        LIMITS,
        ROUNDING,
        SOURCE,
        partial(variants, batch_product),
    ),
)
