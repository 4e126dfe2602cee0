"""The kernel library of the 910B family: program generators under the names of CANN's operators."""

from __future__ import annotations

from dsf_ascend.kernels import attention, flash, matmul, products, sorting, vector

__all__ = ["KERNELS"]

KERNELS = (
    *matmul.KERNELS, *flash.KERNELS, *attention.KERNELS, *products.KERNELS, *sorting.KERNELS, *vector.KERNELS,
)  # fmt: skip
