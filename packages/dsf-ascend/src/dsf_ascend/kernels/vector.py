"""The vector cores' library under the vendor's names: norms, SwiGlu, rotary embedding, softmax, reductions, movement.

The generators are the shared ones of dsf.kernels; the instruction table that they are written to makes them Ascend's.
"""

from __future__ import annotations

from functools import partial

from dsf.kernels import rowwise
from dsf.kernels.kernel import Kernel
from dsf.kernels.reference import REFERENCES, ROUNDINGS

__all__ = ["KERNELS"]

NAMES = {
    "rms_norm": "RmsNorm",
    "layer_norm": "LayerNorm",
    "gated_activation": "SwiGlu",
    "rotary": "ApplyRotaryPosEmb",
    "softmax": "Softmax",
    "embedding": "Embedding",
    "concat": "Cat",
    "reduce": "Reduce",
    "arg_reduce": "ArgMax",
    "cumsum": "Cumsum",
}

KERNELS = tuple(
    Kernel(
        name, kind, "ascend", partial(getattr(rowwise, kind), name=name), REFERENCES[kind],
        rowwise.LIMITS.get(kind, ()), ROUNDINGS[kind], f"aclnn{name}",
    )
    for kind, name in NAMES.items()
)  # fmt: skip
