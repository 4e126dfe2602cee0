"""Kernels for any chip: products on its matrix engine, attention around them, and everything vector from primitives."""

from __future__ import annotations

from dsf.generic.kernels import attention, matmul, products
from dsf.hdl import Chip
from dsf.kernels import compile as compiler
from dsf.kernels.kernel import Kernel
from dsf.kernels.reference import REFERENCES, ROUNDINGS
from dsf.kernels.shared import GENERATORS, library

__all__ = ["kernels"]

COMPILED = {
    "elementwise": compiler.compile_elementwise,
    "copy": compiler.compile_copy,
    "fill": compiler.compile_fill,
    "iota": compiler.compile_iota,
}


def kernels(chip: Chip) -> tuple[Kernel, ...]:
    """Generic's offers: rows by structure, then the fallback compiler's."""
    shared = library("generic", {kind: (f"generic.{kind}", "derived from the HDL") for kind in GENERATORS})
    compiled = tuple(
        Kernel(
            f"compiled.{kind}", kind, "compiled", emit, REFERENCES[kind], (), ROUNDINGS[kind], "the fallback compiler"
        )
        for kind, emit in COMPILED.items()
    )
    return (*matmul.KERNELS, *attention.KERNELS, *products.KERNELS, *shared, *compiled)
