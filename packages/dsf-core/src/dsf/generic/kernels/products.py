"""What any chip builds around its matrix product: experts' layers, epilogues, whole numbers, convolutions."""

from __future__ import annotations

from functools import partial

from dsf.generic.kernels.matmul import emit_product
from dsf.kernels import epilogues, experts, windows
from dsf.kernels.kernel import Kernel

__all__ = ["KERNELS"]

SOURCE = "derived from the HDL"
GROUPED, FUSED = "generic.grouped_matmul", "generic.fused_matmul"
CONVOLUTION = "generic.convolution"
WHOLE, SCALED, QUANT = "generic.int8_matmul", "generic.quant_matmul", "generic.weight_quant_matmul"

KERNELS = (
    Kernel(GROUPED, "grouped_linear", "generic", partial(experts.emit_grouped, emit_product, GROUPED),
           experts.reference, experts.LIMITS, experts.ROUNDING, SOURCE),
    Kernel(FUSED, "linear", "generic", partial(epilogues.emit_fused, emit_product, FUSED),
           epilogues.fused_reference, epilogues.FUSED_LIMITS, epilogues.FUSED_ROUNDING, SOURCE),
    Kernel(WHOLE, "linear", "generic", partial(epilogues.emit_whole, emit_product, WHOLE),
           epilogues.whole_reference, epilogues.WHOLE_LIMITS, epilogues.WHOLE_SUMS, SOURCE),
    Kernel(SCALED, "scaled_linear", "generic", partial(epilogues.emit_scaled, emit_product, SCALED),
           epilogues.scaled_reference, epilogues.SCALED_LIMITS, epilogues.WHOLE_SUMS, SOURCE),
    Kernel(QUANT, "quant_linear", "generic", partial(epilogues.emit_quantised, emit_product, QUANT),
           epilogues.quant_reference, epilogues.QUANT_LIMITS, epilogues.QUANT_ROUNDING, SOURCE),
    Kernel(CONVOLUTION, "convolution", "generic", partial(windows.emit_convolution, emit_product, CONVOLUTION),
           windows.reference, windows.CONVOLUTION_LIMITS, windows.ROUNDING, SOURCE),
)  # fmt: skip
