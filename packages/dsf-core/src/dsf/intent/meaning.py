"""What every kind of intent means, in plain torch: the reference that kernels are held against.

16-bit floats are computed in float32 and rounded once at the end where the kind is one computation (linear, matmul,
attention, norms, softmax), and rounded after every step where the kind says so (elementwise, rotary, gated activation).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from dsf.intent.expression import PRIMITIVES, evaluate
from dsf.intent.ir import Intent
from dsf.intent.tape import Slot

__all__ = ["MEANINGS", "meaning"]

Result = torch.Tensor | tuple[torch.Tensor, ...]


def meaning(intent: Intent, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The outputs of *intent* for these CPU tensors, which are shaped as its inputs and never changed."""
    result = MEANINGS[intent.kind](intent, *inputs)
    results = result if isinstance(result, tuple) else (result,)
    return tuple(t if t.dtype == r.dtype else t.to(r.dtype) for t, r in zip(results, intent.outputs, strict=True))


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _linear(intent: Intent, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> Result:
    weight = _wide(w) if intent.attr("transposed") else _wide(w).t()
    return F.linear(_wide(x), weight, None if bias is None else _wide(bias))


def _matmul(intent: Intent, a: torch.Tensor, b: torch.Tensor) -> Result:
    return _wide(a) @ _wide(b)


def _attention(intent: Intent, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *mask: torch.Tensor) -> Result:
    groups = intent.attr("groups")
    if groups > 1:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    return F.scaled_dot_product_attention(
        _wide(q), _wide(k), _wide(v), attn_mask=_wide(mask[0]) if mask else None, is_causal=intent.attr("causal"),
        scale=intent.attr("scale"),
    )  # fmt: skip


def _rms_norm(intent: Intent, x: torch.Tensor, weight: torch.Tensor) -> Result:
    compute = intent.attr("compute")
    wide = x.to(compute)
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + intent.attr("eps"))
    if intent.attr("weight_after_cast"):
        return weight * normed.to(intent.outputs[0].dtype)
    return weight.to(compute) * normed


def _layer_norm(intent: Intent, x: torch.Tensor, *affine: torch.Tensor) -> Result:
    parameters = iter(affine)
    weight = _wide(next(parameters)) if intent.attr("has_weight") else None
    bias = _wide(next(parameters)) if intent.attr("has_bias") else None
    return F.layer_norm(_wide(x), x.shape[-intent.attr("axes") :], weight, bias, intent.attr("eps"))


def _rotary(intent: Intent, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Result:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def _softmax(intent: Intent, x: torch.Tensor) -> Result:
    function = torch.log_softmax if intent.attr("log") else torch.softmax
    wide = intent.outputs[0].dtype if intent.outputs[0].dtype == torch.float64 else _wide(x).dtype
    result: torch.Tensor = function(x.to(wide), intent.attr("dim"))
    return result


def _elementwise(intent: Intent, *inputs: torch.Tensor) -> Result:
    return evaluate(intent.attr("expr"), inputs).broadcast_to(intent.outputs[0].shape)


def _gated_activation(intent: Intent, gate: torch.Tensor, up: torch.Tensor) -> Result:
    act = intent.attr("act")
    activated: torch.Tensor = torch.relu(gate) if act == "relu" else PRIMITIVES[act].function(gate)
    return activated * up


def _copy(intent: Intent, x: torch.Tensor) -> Result:
    return x.clone()


def _fill(intent: Intent) -> Result:
    out = intent.outputs[0]
    return torch.full(out.shape, intent.attr("value"), dtype=out.dtype)


def _iota(intent: Intent) -> Result:
    out = intent.outputs[0]
    start, step = intent.attr("start"), intent.attr("step")
    wide = torch.float64 if out.dtype.is_floating_point else torch.int64
    result: torch.Tensor = start + step * torch.arange(out.shape[0], dtype=wide)
    return result


def _nothing(intent: Intent, *inputs: torch.Tensor) -> Result:
    return tuple(torch.zeros(r.shape, dtype=r.dtype) for r in intent.outputs)


def _total(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda x, dims, keepdim, dtype: function(x, dims, keepdim, dtype=dtype)


def _pick(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda x, dims, keepdim, dtype: function(x, dims, keepdim)


def _prod(x: torch.Tensor, dims: tuple[int, ...], keepdim: bool, dtype: torch.dtype) -> torch.Tensor:
    for dim in reversed(dims):
        x = torch.prod(x, dim, keepdim, dtype=dtype)
    return x


_REDUCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "sum": _total(torch.sum), "mean": _total(torch.mean), "prod": _prod,
    "max": _pick(torch.amax), "min": _pick(torch.amin), "any": _pick(torch.any), "all": _pick(torch.all),
}  # fmt: skip


def _reduce(intent: Intent, x: torch.Tensor) -> Result:
    reduction = _REDUCTIONS[intent.attr("op")]
    return reduction(x, intent.attr("dims"), intent.attr("keepdim"), intent.outputs[0].dtype)


def _arg_reduce(intent: Intent, x: torch.Tensor) -> Result:
    largest, dim, keepdim = intent.attr("op") == "argmax", intent.attr("dim"), intent.attr("keepdim")
    if intent.attr("has_values"):
        values, indices = (torch.max if largest else torch.min)(x, dim, keepdim)
        return values, indices
    return (torch.argmax if largest else torch.argmin)(x, dim, keepdim)


def _cumsum(intent: Intent, x: torch.Tensor) -> Result:
    return torch.cumsum(x, intent.attr("dim"), dtype=intent.outputs[0].dtype)


def _embedding(intent: Intent, ids: torch.Tensor, table: torch.Tensor) -> Result:
    return table[ids.long()]


def _at(intent: Intent, indices: tuple[torch.Tensor, ...]) -> Any:
    """The subscript that puts the index tensors into their dimensions."""
    place = dict(zip(intent.attr("dims"), indices, strict=True))
    return tuple(place[d].long() if d in place else slice(None) for d in range(max(place) + 1))


def _index(intent: Intent, x: torch.Tensor, *indices: torch.Tensor) -> Result:
    return x[_at(intent, indices)]


def _gather(intent: Intent, x: torch.Tensor, index: torch.Tensor) -> Result:
    return torch.gather(x, intent.attr("dim"), index.long())


def _scatter(intent: Intent, x: torch.Tensor, index: torch.Tensor, *source: torch.Tensor) -> Result:
    value = source[0] if source else intent.attr("value")
    if intent.attr("reduce") == "add":
        return torch.scatter_add(x, intent.attr("dim"), index, value)
    return torch.scatter(x, intent.attr("dim"), index, value)


def _index_put(intent: Intent, x: torch.Tensor, source: torch.Tensor, *indices: torch.Tensor) -> Result:
    places = [None] * (intent.attr("dims")[-1] + 1)
    for dim, index in zip(intent.attr("dims"), indices, strict=True):
        places[dim] = index.long()
    result: torch.Tensor = torch.ops.aten.index_put.default(x, places, source, intent.attr("accumulate"))
    return result


def _concat(intent: Intent, *inputs: torch.Tensor) -> Result:
    return torch.cat(inputs, intent.attr("dim"))


def _opaque(intent: Intent, *inputs: torch.Tensor) -> Result:
    changed = {place for kind, place in intent.attr("results") if kind == "input"}
    tensors = [t.clone() if i in changed else t for i, t in enumerate(inputs)]

    def fill(value: Any) -> Any:
        if isinstance(value, Slot):
            return tensors[value.index]
        if isinstance(value, torch.device):
            return torch.device("cpu")
        return [fill(v) for v in value] if isinstance(value, tuple) else value

    function: Any = torch.ops
    for part in intent.attr("target").split("."):
        function = getattr(function, part)
    result = function(*map(fill, intent.attr("args")), **{name: fill(v) for name, v in intent.attr("kwargs")})
    results = _tensors(result)
    return tuple(tensors[i] if kind == "input" else results[i] for kind, i in intent.attr("results"))


def _tensors(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    return [t for item in result or () for t in _tensors(item)]


MEANINGS: dict[str, Callable[..., Result]] = {
    "linear": _linear, "matmul": _matmul, "attention": _attention, "rms_norm": _rms_norm, "layer_norm": _layer_norm,
    "rotary": _rotary, "softmax": _softmax, "elementwise": _elementwise, "gated_activation": _gated_activation,
    "copy": _copy, "fill": _fill, "iota": _iota, "nothing": _nothing, "reduce": _reduce, "arg_reduce": _arg_reduce,
    "cumsum": _cumsum, "embedding": _embedding, "index": _index, "gather": _gather, "scatter": _scatter,
    "index_put": _index_put, "concat": _concat, "opaque": _opaque,
}  # fmt: skip
