"""What is built around the cube's product under CANN's names: experts' layers."""

from __future__ import annotations

from functools import partial

from dsf.kernels import experts
from dsf.kernels.kernel import Kernel
from dsf_ascend.kernels.cube import emit_product

__all__ = ["KERNELS"]

KERNELS = (
    Kernel(
        "GroupedMatmul", "grouped_linear", "ascend", partial(experts.emit_grouped, emit_product, "GroupedMatmul"),
        experts.reference, experts.LIMITS, experts.ROUNDING,
        "aclnnGroupedMatmul, group list on the device; rows are gathered tile by tile as in aclnnMoeInitRouting",
    ),
)  # fmt: skip
