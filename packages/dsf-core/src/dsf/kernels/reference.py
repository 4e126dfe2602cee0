"""What the shared vector generators compute, on whole tensors in plain torch, rounded where they round.

These serve fidelity `operator` and are the yardstick of the executed programs. A 16-bit result is rounded once from
float32 unless the generator rounds in between, in which case so does the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi, prod, sqrt

import torch
from attrs import evolve

from dsf.intent.ir import Intent
from dsf.intent.meaning import meaning
from dsf.isa.families import in_range
from dsf.kernels.kernel import EXACT, Rounding

__all__ = ["REFERENCES", "ROUNDINGS", "plain"]

Reference = Callable[..., tuple[torch.Tensor, ...]]


plain: Reference = meaning
"""The kind's meaning is the kernel's reference where it rounds as the kernel does."""


def _rms_norm(intent: Intent, x: torch.Tensor, *affine: torch.Tensor) -> tuple[torch.Tensor, ...]:
    dtype, wide = intent.outputs[0].dtype, x.float()
    mean = (wide * wide).sum(-1, keepdim=True) * (1 / x.shape[-1])
    normed = wide * torch.rsqrt(mean + intent.attr("eps"))
    if not affine:
        return (normed.to(dtype),)
    (weight,) = affine
    if intent.attr("weight_after_cast"):
        return (_rounded_product(normed.to(dtype), weight.to(dtype)),)
    return ((normed * weight.float()).to(dtype),)


def _layer_norm(intent: Intent, x: torch.Tensor, *affine: torch.Tensor) -> tuple[torch.Tensor, ...]:
    dims = tuple(range(-intent.attr("axes"), 0))
    wide, share = x.float(), 1 / prod(x.shape[d] for d in dims)
    centred = wide - wide.sum(dims, keepdim=True) * share
    result = centred * torch.rsqrt((centred * centred).sum(dims, keepdim=True) * share + intent.attr("eps"))
    rest = [t.float() for t in affine]
    if intent.attr("has_weight"):
        result = result * rest.pop(0)
    if intent.attr("has_bias"):
        result = result + rest.pop(0)
    return (result.to(intent.outputs[0].dtype),)


def _added(norm: Reference) -> Reference:
    """What *norm* makes of x + residual, which is rounded to its own format first, and that sum."""

    def reference(
        intent: Intent, x: torch.Tensor, residual: torch.Tensor, *affine: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        total = (x.float() + residual.float()).to(intent.outputs[1].dtype)
        return *norm(intent, total, *affine), total

    return reference


def _group_norm(intent: Intent, x: torch.Tensor, *affine: torch.Tensor) -> tuple[torch.Tensor, ...]:
    grouped = x.float().reshape(x.shape[0], intent.attr("groups"), -1)
    share = 1 / grouped.shape[-1]
    centred = grouped - grouped.sum(-1, keepdim=True) * share
    scale = torch.rsqrt((centred * centred).sum(-1, keepdim=True) * share + intent.attr("eps"))
    result, rest = (centred * scale).view(x.shape), [t.float() for t in affine]
    spread = (-1, *(1 for _ in x.shape[2:]))
    if intent.attr("has_weight"):
        result = result * rest.pop(0).view(spread)
    if intent.attr("has_bias"):
        result = result + rest.pop(0).view(spread)
    return (result.to(intent.outputs[0].dtype),)


def _rounded_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.float() * b.float()).to(a.dtype)


def _gated_activation(intent: Intent, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x = gate.float()
    opened = {
        "silu": lambda: x * torch.sigmoid(x),
        "gelu": lambda: x * 0.5 * (torch.erf(x * sqrt(1 / 2)) + 1),
        "gelu_tanh": lambda: x * 0.5 * (torch.tanh((x + x * x * x * 0.044715) * sqrt(2 / pi)) + 1),
        "relu": lambda: torch.relu(x),
        "sigmoid": lambda: torch.sigmoid(x),
    }[intent.attr("act")]()
    return (_rounded_product(opened.to(intent.outputs[0].dtype), up),)


def _softmax(intent: Intent, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    function = torch.log_softmax if intent.attr("log") else torch.softmax
    return (function(x.float(), intent.attr("dim")).to(intent.outputs[0].dtype),)


def _reduce(intent: Intent, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    (total,) = meaning(_in_float32(intent), _wide(x))
    return (total.to(intent.outputs[0].dtype),)


def _cumsum(intent: Intent, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    (running,) = meaning(_in_float32(intent), _wide(x))
    return (running.to(intent.outputs[0].dtype),)


def _quantise(intent: Intent, x: torch.Tensor, scale: torch.Tensor, *zero: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """NaN becomes what the machine makes of it in whole numbers, which torch leaves open."""
    limits = torch.iinfo(intent.outputs[0].dtype)
    number = torch.round(x.float() / scale.float())
    number = number + zero[0].float() if zero else number
    return (number.clamp(limits.min, limits.max).to(intent.outputs[0].dtype),)


def _in_float32(intent: Intent) -> Intent:
    """The same intent with a float32 result in place of a 16-bit one, to be rounded once."""
    (y,) = intent.outputs
    wide = evolve(y, window=evolve(y.window, dtype=torch.float32))
    return evolve(intent, outputs=(wide,)) if y.dtype in (torch.float16, torch.bfloat16) else intent


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _embedding(intent: Intent, ids: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """An index out of range is what it is to the machine."""
    in_range(ids, table.shape[0])
    return meaning(intent, ids, table)


def _by_index(place: int) -> Reference:
    """Movement along one dimension by the index that is input *place*."""

    def reference(intent: Intent, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        in_range(inputs[place], inputs[0].shape[intent.attr("dim")])
        return meaning(intent, *inputs)

    return reference


def _by_indices(first: int) -> Reference:
    """Movement by the indices from input *first* on, which may count from the end."""

    def reference(intent: Intent, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        for index, dim in zip(inputs[first:], intent.attr("dims"), strict=True):
            size = inputs[0].shape[dim]
            in_range(torch.where(index < 0, index + size, index), size)
        return meaning(intent, *inputs)

    return reference


REFERENCES: dict[str, Reference] = {
    "rms_norm": _rms_norm,
    "add_rms_norm": _added(_rms_norm),
    "layer_norm": _layer_norm,
    "add_layer_norm": _added(_layer_norm),
    "group_norm": _group_norm,
    "quantise": _quantise,
    "gated_activation": _gated_activation,
    "softmax": _softmax,
    **dict.fromkeys(("rotary", "concat", "arg_reduce", "elementwise", "copy", "fill", "iota", "sort", "top_k",
                     "histogram", "pool"), meaning),
    "reduce": _reduce,
    "cumsum": _cumsum,
    "embedding": _embedding,
    "index": _by_indices(1),
    "index_put": _by_indices(2),
    "gather": _by_index(1),
    "scatter": _by_index(1),
    "kv_append": _by_index(2),
}  # fmt: skip
"""The plain meaning is a kind's reference where the generator rounds exactly as torch's own operators do."""

ROUNDINGS: dict[str, Rounding] = {
    "rms_norm": Rounding(
        2, 64, "sums and rsqrt in fp32; an ulp of the normed value, once rounded, is up to two of the product"
    ),
    "add_rms_norm": Rounding(2, 64, "as rms_norm; the sum is rounded once, to its own format"),
    "layer_norm": Rounding(1, 64, "sums and rsqrt in fp32, rounded once"),
    "add_layer_norm": Rounding(1, 64, "as layer_norm; the sum is rounded once, to its own format"),
    "group_norm": Rounding(1, 64, "sums and rsqrt in fp32, rounded once"),
    "quantise": EXACT,
    "gated_activation": Rounding(
        2, 4, "the activation in fp32; an ulp of it, once rounded, is up to two of the product"
    ),
    "softmax": Rounding(1, 512, "exp and sums in fp32 in another order, the longer the row the further, rounded once"),
    "reduce": Rounding(1, 16, "sums and products in fp32 in another order, rounded once"),
    "pool": Rounding(1, 64, "sums in fp32 in another order, divided and rounded once"),
    "cumsum": Rounding(1, 16, "running sums in fp32, rounded once"),
    "elementwise": Rounding(
        1, 32, "each step rounded as written; functions in fp32 by other means than torch's, gelu most"
    ),
    **dict.fromkeys(
        ("scatter", "index_put"), Rounding(8, 8, "what is added is rounded to the result's format each time")
    ),
    **dict.fromkeys(
        (
            "rotary",
            "embedding",
            "concat",
            "arg_reduce",
            "copy",
            "fill",
            "iota",
            "index",
            "gather",
            "kv_append",
            "sort",
            "top_k",
            "histogram",
        ),
        EXACT,
    ),
}
