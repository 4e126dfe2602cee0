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

__all__ = ["MEANINGS", "activated", "meaning"]

Result = torch.Tensor | tuple[torch.Tensor, ...]


def meaning(intent: Intent, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The outputs of *intent* for these CPU tensors, which are shaped as its inputs and never changed."""
    result = MEANINGS[intent.kind](intent, *inputs)
    results = result if isinstance(result, tuple) else (result,)
    return tuple(t if t.dtype == r.dtype else t.to(r.dtype) for t, r in zip(results, intent.outputs, strict=True))


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _linear(intent: Intent, x: torch.Tensor, w: torch.Tensor, *rest: torch.Tensor) -> Result:
    others, dtype = iter(rest), intent.outputs[0].dtype
    weight = w if intent.attr("transposed") else w.t()
    if not x.is_floating_point():
        return _whole(x, weight)
    y = F.linear(_wide(x), _wide(weight), _wide(next(others)) if intent.attr("has_bias") else None).to(dtype)
    if intent.attr("activation") is not None:
        y = activated(intent.attr("activation"), y)
    return y + next(others) if intent.attr("has_residual") else y


def _whole(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """x [..., K] @ w [N, K]^T of whole numbers, added up in int32."""
    return F.linear(x.double(), w.double()).to(torch.int64).to(torch.int32)


def _grouped_linear(intent: Intent, x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> Result:
    y, start = torch.zeros(intent.outputs[0].shape, dtype=_wide(x).dtype), 0
    for expert, end in zip(w, ends.tolist(), strict=True):
        y[start:end] = F.linear(_wide(x[start:end]), _wide(expert if intent.attr("transposed") else expert.t()))
        start = max(start, end)
    return y


def _quant_linear(intent: Intent, x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, *rest: torch.Tensor) -> Result:
    others = iter(rest)
    whole = torch.stack((w & 15, w >> 4), -1).flatten(-2) if intent.attr("bits") == 4 else w
    numbers = whole.to(x.dtype).unflatten(-1, (-1, intent.attr("group")))
    if intent.attr("has_zero"):
        numbers = numbers - next(others).to(x.dtype).unsqueeze(-1)
    weight = (numbers * scale.to(x.dtype).unsqueeze(-1)).flatten(-2)
    return F.linear(_wide(x), _wide(weight), _wide(next(others)) if intent.attr("has_bias") else None)


def _scaled_linear(
    intent: Intent, x: torch.Tensor, w: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor, *bias: torch.Tensor
) -> Result:
    y = _whole(x, w if intent.attr("transposed") else w.t()).float() * x_scale.float() * w_scale.float()
    return y + bias[0].float() if bias else y


def _convolution(intent: Intent, x: torch.Tensor, w: torch.Tensor, *bias: torch.Tensor) -> Result:
    transposed, stride = intent.attr("transposed"), intent.attr("stride")
    result: torch.Tensor = torch.convolution(
        _wide(x), _wide(w), _wide(bias[0]) if bias else None, stride, intent.attr("padding"), intent.attr("dilation"),
        transposed, intent.attr("output_padding") or [0] * len(stride), intent.attr("groups"),
    )  # fmt: skip
    return result


def _matmul(intent: Intent, a: torch.Tensor, b: torch.Tensor) -> Result:
    return _wide(a) @ _wide(b)


def _attention(intent: Intent, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *mask: torch.Tensor) -> Result:
    groups, window, cap = intent.attr("groups"), intent.attr("window"), intent.attr("softcap")
    if groups > 1:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    if window is None and cap is None and not intent.attr("has_bias"):
        return F.scaled_dot_product_attention(
            _wide(q), _wide(k), _wide(v), attn_mask=_wide(mask[0]) if mask else None, is_causal=intent.attr("causal"),
            scale=intent.attr("scale"),
        )  # fmt: skip
    scores = _wide(q) @ _wide(k).mT * intent.attr("scale")
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    return _weights(scores, intent.attr("causal"), mask, window) @ _wide(v)


def _weights(
    scores: torch.Tensor, causal: bool, mask: tuple[torch.Tensor, ...], window: int | None = None
) -> torch.Tensor:
    """Softmax of the scores that are seen; a row that sees nothing is zero for a bool mask, as torch has it."""
    for given in mask:
        scores = scores.masked_fill(~given, -torch.inf) if given.dtype == torch.bool else scores + _wide(given)
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        seen = seen if window is None else seen & ~seen.tril(-window)
        scores = scores.masked_fill(~seen, -torch.inf)
    weights = torch.softmax(scores, -1)
    return weights.masked_fill((scores == -torch.inf).all(-1, keepdim=True), 0.0)


def _paged_attention(
    intent: Intent, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor
) -> Result:
    results = []
    for one, pages, length in zip(q, table.long().clamp(0, k.shape[0] - 1), lengths.tolist(), strict=True):
        keys, values = (t[pages].flatten(0, 1)[:length].movedim(0, 1) for t in (k, v))
        keys, values = (_wide(t).repeat_interleave(intent.attr("groups"), 0) for t in (keys, values))
        scores = _wide(one) @ keys.mT * intent.attr("scale")
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(length - one.shape[-2])
        results.append(_weights(scores, False, (seen,)) @ values)
    return torch.stack(results) if results else torch.zeros(intent.outputs[0].shape)


def _latent_attention(
    intent: Intent, q: torch.Tensor, rope: torch.Tensor, latent: torch.Tensor, key: torch.Tensor, *mask: torch.Tensor
) -> Result:
    latent, key = _wide(latent).unsqueeze(1), _wide(key).unsqueeze(1)
    scores = (_wide(q) @ latent.mT + _wide(rope) @ key.mT) * intent.attr("scale")
    return _weights(scores, intent.attr("causal"), mask) @ latent


def _rms_norm(intent: Intent, x: torch.Tensor, *weight: torch.Tensor) -> Result:
    compute = intent.attr("compute")
    wide = x.to(compute)
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + intent.attr("eps"))
    if not weight:
        return normed
    if intent.attr("weight_after_cast"):
        return weight[0] * normed.to(intent.outputs[0].dtype)
    return weight[0].to(compute) * normed


def _add_rms_norm(intent: Intent, x: torch.Tensor, residual: torch.Tensor, *weight: torch.Tensor) -> Result:
    total = (x + residual).to(intent.outputs[1].dtype)
    return _one(_rms_norm(intent, total, *weight)), total


def _add_layer_norm(intent: Intent, x: torch.Tensor, residual: torch.Tensor, *affine: torch.Tensor) -> Result:
    total = (x + residual).to(intent.outputs[1].dtype)
    return _one(_layer_norm(intent, total, *affine)), total


def _one(result: Result) -> torch.Tensor:
    assert isinstance(result, torch.Tensor)
    return result


def _group_norm(intent: Intent, x: torch.Tensor, *affine: torch.Tensor) -> Result:
    parameters = iter(affine)
    weight = _wide(next(parameters)) if intent.attr("has_weight") else None
    bias = _wide(next(parameters)) if intent.attr("has_bias") else None
    return F.group_norm(_wide(x), intent.attr("groups"), weight, bias, intent.attr("eps"))


def _layer_norm(intent: Intent, x: torch.Tensor, *affine: torch.Tensor) -> Result:
    parameters = iter(affine)
    weight = _wide(next(parameters)) if intent.attr("has_weight") else None
    bias = _wide(next(parameters)) if intent.attr("has_bias") else None
    return F.layer_norm(_wide(x), x.shape[-intent.attr("axes") :], weight, bias, intent.attr("eps"))


def _rotary(intent: Intent, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Result:
    style, compute = intent.attr("style"), intent.attr("compute")
    if compute is not None:
        x, cos, sin = x.to(compute), cos.to(compute), sin.to(compute)
    if style == "gathered":
        x = torch.cat((x[..., ::2], x[..., 1::2]), -1)
    if cos.shape[-1] != x.shape[-1]:
        cos, sin = (t.repeat_interleave(2, -1) if style == "interleaved" else torch.cat((t, t), -1) for t in (cos, sin))
    if style == "interleaved":
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    else:
        first, second = x.chunk(2, -1)
        turned = torch.cat((-second, first), -1)
    return x * cos + turned * sin


def _softmax(intent: Intent, x: torch.Tensor) -> Result:
    function = torch.log_softmax if intent.attr("log") else torch.softmax
    wide = intent.outputs[0].dtype if intent.outputs[0].dtype == torch.float64 else _wide(x).dtype
    result: torch.Tensor = function(x.to(wide), intent.attr("dim"))
    return result


def _elementwise(intent: Intent, *inputs: torch.Tensor) -> Result:
    return evaluate(intent.attr("expr"), inputs).broadcast_to(intent.outputs[0].shape)


def _gated_activation(intent: Intent, gate: torch.Tensor, up: torch.Tensor) -> Result:
    return activated(intent.attr("act"), gate) * up


def activated(name: str, x: torch.Tensor) -> torch.Tensor:
    """What the activation called *name* makes of x, in its format."""
    result: torch.Tensor = torch.relu(x) if name == "relu" else PRIMITIVES[name].function(x)
    return result


def _quantise(intent: Intent, x: torch.Tensor, scale: torch.Tensor, *zero: torch.Tensor) -> Result:
    dtype = intent.outputs[0].dtype
    whole = torch.round(_wide(x) / _wide(scale)) + (zero[0] if zero else 0)
    return whole.clamp(torch.iinfo(dtype).min, torch.iinfo(dtype).max)


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


def _pool(intent: Intent, x: torch.Tensor) -> Result:
    kernel, stride, padding = intent.attr("kernel"), intent.attr("stride"), intent.attr("padding")
    rank, ceil = len(kernel), intent.attr("ceil")
    if intent.attr("op") == "max":
        function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1]
        result: torch.Tensor = function(x, kernel, stride, padding, intent.attr("dilation") or (1,) * rank, ceil)
        return result
    mean: Callable[..., torch.Tensor] = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
    return mean(_wide(x), kernel, stride, padding, ceil, intent.attr("count_padding"))


def _sort(intent: Intent, x: torch.Tensor) -> Result:
    values, indices = torch.sort(x, dim=intent.attr("dim"), descending=intent.attr("descending"), stable=True)
    return values, indices


def _top_k(intent: Intent, x: torch.Tensor) -> Result:
    """Of equal ones the first: torch leaves that open."""
    dim, largest = intent.attr("dim"), intent.attr("largest")
    values, indices = torch.sort(x, dim=dim, descending=largest, stable=True)
    return values.narrow(dim, 0, intent.attr("k")), indices.narrow(dim, 0, intent.attr("k"))


def _histogram(intent: Intent, x: torch.Tensor) -> Result:
    return torch.histc(x.double(), intent.attr("bins"), intent.attr("low"), intent.attr("high"))


def _kv_append(intent: Intent, cache: torch.Tensor, new: torch.Tensor, position: torch.Tensor) -> Result:
    return torch.index_copy(cache, intent.attr("dim"), position.long(), new)


def _collective(intent: Intent, x: torch.Tensor) -> Result:
    """Alone among its ranks: what a rank would hold if all others sent what it has itself."""
    ranks, op, out = len(intent.attr("group")), intent.attr("op"), intent.outputs[0]
    if op == "all_gather":
        return torch.cat([x] * ranks)
    total = x * ranks if intent.attr("reduce") == "sum" else x
    return total[: out.shape[0]] if op == "reduce_scatter" else total.clone()


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
    "linear": _linear, "matmul": _matmul, "grouped_linear": _grouped_linear, "quant_linear": _quant_linear,
    "scaled_linear": _scaled_linear, "convolution": _convolution, "attention": _attention,
    "paged_attention": _paged_attention, "latent_attention": _latent_attention, "rms_norm": _rms_norm,
    "add_rms_norm": _add_rms_norm, "layer_norm": _layer_norm, "add_layer_norm": _add_layer_norm,
    "group_norm": _group_norm, "quantise": _quantise, "pool": _pool, "sort": _sort, "top_k": _top_k,
    "histogram": _histogram, "kv_append": _kv_append, "collective": _collective,
    "rotary": _rotary, "softmax": _softmax, "elementwise": _elementwise, "gated_activation": _gated_activation,
    "copy": _copy, "fill": _fill, "iota": _iota, "nothing": _nothing, "reduce": _reduce, "arg_reduce": _arg_reduce,
    "cumsum": _cumsum, "embedding": _embedding, "index": _index, "gather": _gather, "scatter": _scatter,
    "index_put": _index_put, "concat": _concat, "opaque": _opaque,
}  # fmt: skip
