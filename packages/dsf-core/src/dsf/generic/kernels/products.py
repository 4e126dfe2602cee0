"""What any chip builds around its matrix product: experts' layers."""

from __future__ import annotations

from functools import partial

from dsf.generic.kernels.matmul import emit_product
from dsf.kernels import experts
from dsf.kernels.kernel import Kernel

__all__ = ["KERNELS"]

SOURCE = "derived from the HDL"
GROUPED = "generic.grouped_matmul"

KERNELS = (
    Kernel(GROUPED, "grouped_linear", "generic", partial(experts.emit_grouped, emit_product, GROUPED),
           experts.reference, experts.LIMITS, experts.ROUNDING, SOURCE),
)  # fmt: skip
