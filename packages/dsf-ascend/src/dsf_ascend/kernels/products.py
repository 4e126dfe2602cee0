"""What is built around the cube's product, under CANN's names: experts, epilogues, whole numbers, convolutions."""

from __future__ import annotations

from functools import partial

from dsf import errors
from dsf.isa import Builder
from dsf.kernels import epilogues, experts, windows
from dsf.kernels.contraction import Product
from dsf.kernels.kernel import Kernel
from dsf.kernels.target import Target
from dsf_ascend.kernels.cube import Tiling, emit_product, emit_tiled

__all__ = ["KERNELS"]

COLUMNS = (256, 128, 64, 32)  # of a tile: multiples of 32, as Mmad of int8 wants them
DEEP = 32  # numbers of int8 in a burst: where a slab begins in L1


def emit_int8(b: Builder, target: Target, product: Product) -> None:
    """Emit one phase that computes a product of int8, of a multiple of 32 columns."""
    if target.strict_layouts:
        raise errors.KernelError("DSF-K023", "strict layouts know no fractals of int8")
    memories, cores = target.chip.memories, target.chip.cores["AIC"].count
    m = min(128, product.m)
    fits = [n for n in COLUMNS if n <= product.n] or [COLUMNS[-1]]
    n = next((n for n in fits if -(-product.m // m) * -(-product.n // n) >= cores), fits[-1])
    high = -(-m // 16) * 16
    half = min(memories["L0A"].nbytes // 2 // high, memories["L0B"].nbytes // 2 // n)
    k0 = min(half // DEEP * DEEP, -(-product.k // DEEP) * DEEP)
    room = memories["L1"].nbytes // 2 - memories["BT"].nbytes
    k1 = max(room // (high + n) // k0 * k0, k0)
    emit_tiled(b, product, Tiling(m, n, k0, min(k1, -(-product.k // k0) * k0)))


KERNELS = (
    Kernel(
        "GroupedMatmul", "grouped_linear", "ascend", partial(experts.emit_grouped, emit_product, "GroupedMatmul"),
        experts.reference, experts.LIMITS, experts.ROUNDING,
        "aclnnGroupedMatmul, group list on the device; rows are gathered tile by tile as in aclnnMoeInitRouting",
    ),
    Kernel(
        "FusedMatmul", "linear", "ascend", partial(epilogues.emit_fused, emit_product, "FusedMatmul"),
        epilogues.fused_reference, epilogues.FUSED_LIMITS, epilogues.FUSED_ROUNDING,
        "aclnnFusedMatmul; the cube's result goes to the vector cores by way of GM: asc-devkit guide",
    ),
    Kernel(
        "MatmulInt8", "linear", "ascend", partial(epilogues.emit_whole, emit_int8, "MatmulInt8"),
        epilogues.whole_reference, epilogues.WHOLE_LIMITS, epilogues.WHOLE_SUMS,
        "asc-devkit guide, Mmad of int8: a multiple of 32 columns",
    ),
    Kernel(
        "QuantMatmul", "scaled_linear", "ascend", partial(epilogues.emit_scaled, emit_int8, "QuantMatmul"),
        epilogues.scaled_reference, epilogues.SCALED_LIMITS, epilogues.WHOLE_SUMS, "aclnnQuantMatmul",
    ),
    Kernel(
        "WeightQuantBatchMatmul", "quant_linear", "ascend",
        partial(epilogues.emit_quantised, emit_product, "WeightQuantBatchMatmul"),
        epilogues.quant_reference, epilogues.QUANT_LIMITS, epilogues.QUANT_ROUNDING, "aclnnWeightQuantBatchMatmul",
    ),
    Kernel(
        "Convolution", "convolution", "ascend", partial(windows.emit_convolution, emit_product, "Convolution"),
        windows.reference, windows.CONVOLUTION_LIMITS, windows.ROUNDING,
        "aclnnConvolution; columns by the vector cores where the vendor's library has LoadData3D make them",
    ),
)  # fmt: skip
