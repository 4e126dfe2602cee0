"""Kernels for any chip: products on its matrix engine, attention around them, and everything vector from primitives."""

from __future__ import annotations

from functools import partial

from dsf.generic.kernels import attention, matmul
from dsf.hdl import Chip
from dsf.kernels import compile as compiler
from dsf.kernels import rowwise
from dsf.kernels.kernel import Kernel
from dsf.kernels.reference import REFERENCES, ROUNDINGS

__all__ = ["kernels"]

ROWWISE = (
    "rms_norm", "layer_norm", "gated_activation", "rotary", "softmax", "embedding", "concat", "reduce", "arg_reduce",
    "cumsum",
)  # fmt: skip
COMPILED = {
    "elementwise": compiler.compile_elementwise,
    "copy": compiler.compile_copy,
    "fill": compiler.compile_fill,
    "iota": compiler.compile_iota,
}


def kernels(chip: Chip) -> tuple[Kernel, ...]:
    """Generic's offers: rows by structure, then the fallback compiler's."""
    shared = tuple(
        Kernel(f"generic.{kind}", kind, "generic", partial(getattr(rowwise, kind), name=f"generic.{kind}"),
               REFERENCES[kind], rowwise.LIMITS.get(kind, ()), ROUNDINGS[kind], "derived from the HDL")
        for kind in ROWWISE
    )  # fmt: skip
    compiled = tuple(
        Kernel(
            f"compiled.{kind}", kind, "compiled", emit, REFERENCES[kind], (), ROUNDINGS[kind], "the fallback compiler"
        )
        for kind, emit in COMPILED.items()
    )
    return (*matmul.KERNELS, *attention.KERNELS, *shared, *compiled)
