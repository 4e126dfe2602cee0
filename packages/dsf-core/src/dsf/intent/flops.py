"""The matrix FLOPs of an intent, as torch.utils.flop_counter counts them: a multiply-add is two, a causal mask halves
nothing, and only contractions count."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from dsf.intent.ir import Intent
from dsf.intent.tape import Slot

__all__ = ["flops"]


def flops(intent: Intent) -> int:
    """Matrix FLOPs of *intent*; 0 for kinds that contract nothing. Of pages all are counted, of experts' rows too."""
    formula = _FORMULAS.get(intent.kind)
    return formula(intent) if formula else 0


def _product(intent: Intent) -> int:
    return 2 * prod(intent.outputs[0].shape) * intent.inputs[0].shape[-1]


def _attention(intent: Intent) -> int:
    batch, heads, length, width = intent.inputs[0].shape
    kv, out = intent.inputs[2].shape[2:]
    return 2 * batch * heads * length * kv * (width + out)


def _paged(intent: Intent) -> int:
    keys = intent.inputs[3].shape[1] * intent.inputs[1].shape[1]
    return 4 * prod(intent.inputs[0].shape) * keys


def _latent(intent: Intent) -> int:
    q, rope, latent = (r.shape for r in intent.inputs[:3])
    return 2 * prod(q[:3]) * latent[1] * (2 * q[3] + rope[3])


def _convolution(intent: Intent) -> int:
    """Every place of the weight meets every place of the result (of the input, transposed) once."""
    x, w = (r.shape for r in intent.inputs[:2])
    places = x[2:] if intent.attr("transposed") else intent.outputs[0].shape[2:]
    return 2 * x[0] * prod(places) * prod(w)


def _opaque_flops(intent: Intent) -> int:
    """By torch's own formula for the operator, on tensors without memory."""
    namespace, name, *_ = intent.attr("target").split(".")
    formula = flop_registry.get(getattr(getattr(torch.ops, namespace), name))
    if formula is None:
        return 0
    tensors = [torch.empty(r.shape, dtype=r.dtype, device="meta") for r in (*intent.inputs, *intent.outputs)]

    def fill(value: Any) -> Any:
        if isinstance(value, Slot):
            return tensors[value.index]
        return [fill(v) for v in value] if isinstance(value, tuple) else value

    args, kwargs = intent.attr("args"), dict(intent.attr("kwargs"))
    names = (argument.name for argument in _schema(intent).arguments)
    mask = {**dict(zip(names, args, strict=False)), **kwargs}.get("output_mask")
    result = _as_masked(mask, tensors[len(intent.inputs) :])
    return int(formula(*map(fill, args), **{k: fill(v) for k, v in kwargs.items()}, out_val=result))


def _schema(intent: Intent) -> torch.FunctionSchema:
    operator: Any = torch.ops
    for part in intent.attr("target").split("."):
        operator = getattr(operator, part)
    schema: torch.FunctionSchema = operator._schema
    return schema


def _as_masked(mask: tuple[bool, ...] | None, outputs: list[torch.Tensor]) -> Any:
    """*outputs* as the operator gives them: with None for the gradients that its *mask* does not ask for."""
    if mask is None:
        return outputs[0]
    following = iter(outputs)
    return tuple(next(following) if wanted else None for wanted in mask)


_FORMULAS: dict[str, Callable[[Intent], int]] = {
    **dict.fromkeys(("linear", "matmul", "grouped_linear", "quant_linear", "scaled_linear"), _product),
    "attention": _attention, "paged_attention": _paged, "latent_attention": _latent, "convolution": _convolution,
    "opaque": _opaque_flops,
}  # fmt: skip
