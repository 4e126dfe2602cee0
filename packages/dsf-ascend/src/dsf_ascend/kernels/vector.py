"""The vector cores' library under the vendor's names: norms, SwiGlu, rotary embedding, softmax, reductions, movement.

The generators are the shared ones of dsf.kernels: what makes them Ascend's is the instruction table they are written to.
"""

from __future__ import annotations

from functools import partial

import torch

from dsf.hdl import Chip
from dsf.intent.ir import Intent
from dsf.kernels import rowwise
from dsf.kernels.kernel import Kernel, Limit
from dsf.kernels.reference import REFERENCES

__all__ = ["KERNELS"]

FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def _floats(chip: Chip, intent: Intent) -> bool:
    return all(r.dtype in FLOATS for r in intent.outputs)


def _even(chip: Chip, intent: Intent) -> bool:
    return intent.inputs[0].shape[-1] % 2 == 0


FORMATS = Limit("the result is fp16, bf16 or fp32", _floats)
EVEN = Limit("the head dimension is even", _even, "aclnnApplyRotaryPosEmb")
NAMES = {
    "rms_norm": ("RmsNorm", (FORMATS,)),
    "layer_norm": ("LayerNorm", (FORMATS,)),
    "gated_activation": ("SwiGlu", (FORMATS,)),
    "rotary": ("ApplyRotaryPosEmb", (FORMATS, EVEN)),
    "softmax": ("Softmax", (FORMATS,)),
    "embedding": ("Embedding", ()),
    "concat": ("Cat", ()),
    "reduce": ("Reduce", ()),
    "arg_reduce": ("ArgMax", ()),
    "cumsum": ("Cumsum", ()),
}

KERNELS = tuple(
    Kernel(
        name, kind, "ascend", partial(getattr(rowwise, kind), name=name), REFERENCES[kind], limits,
        "bit-equal to its reference but for exp, sigmoid, rsqrt and sums in fp32: 1 ulp of the result", f"aclnn{name}",
    )
    for kind, (name, limits) in NAMES.items()
)  # fmt: skip
