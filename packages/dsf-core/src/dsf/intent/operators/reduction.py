"""Operator rows of what looks at a whole row or window at once: norms, softmax, reductions, pools, order."""

from __future__ import annotations

from typing import Any

import torch

from dsf.intent.expression import cast, const
from dsf.intent.graph import Graph, Node
from dsf.intent.ir import Intent
from dsf.intent.operators.rows import Row, build, first_result_only, named
from dsf.intent.tape import Region
from dsf.intent.views import unsqueeze, view

__all__ = ["ROWS"]


# Normalisation


def _layer_norm(graph: Graph, node: Node) -> Intent | None:
    x, shape = node.args[:2]
    weight, bias, eps = node.arg(2, "weight"), node.arg(3, "bias"), node.arg(4, "eps", 1e-5)
    if not first_result_only(graph, node) or not x.dtype.is_floating_point:
        return None
    inputs = tuple(r for r in (x, weight, bias) if r is not None)
    return build("layer_norm", node, inputs, axes=len(shape), eps=float(eps), has_weight=weight is not None,
                 has_bias=bias is not None)  # fmt: skip


def _rms_norm(graph: Graph, node: Node) -> Intent | None:
    x, shape = node.args[:2]
    weight, eps = node.arg(2, "weight"), node.arg(3, "eps")
    if len(shape) != 1 or weight is None or not first_result_only(graph, node):
        return None
    compute = torch.float64 if x.dtype == torch.float64 else torch.float32
    eps = torch.finfo(compute).eps if eps is None else eps
    return build("rms_norm", node, (x, weight), compute=compute, eps=float(eps), weight_after_cast=False)


def _group_norm(graph: Graph, node: Node) -> Intent | None:
    """native_group_norm(x, weight, bias, batch, channels, size, groups, eps), or the composite's shorter list."""
    if node.name.startswith("native"):
        (x, weight, bias), (groups, eps) = node.args[:3], node.args[6:8]
    else:
        x, groups, weight, bias, eps = *node.args[:2], *(node.arg(i, n) for i, n in ((2, "weight"), (3, "bias"))), (
            node.arg(4, "eps", 1e-5))  # fmt: skip
    if not first_result_only(graph, node) or not x.dtype.is_floating_point or len(x.shape) < 2:
        return None
    inputs = tuple(r for r in (x, weight, bias) if r is not None)
    return build("group_norm", node, inputs, eps=float(eps), groups=groups, has_bias=bias is not None,
                 has_weight=weight is not None)  # fmt: skip


def _batch_norm(graph: Graph, node: Node) -> Intent | None:
    """In evaluation every channel is scaled and shifted: x * a + (bias - mean * a), a = weight / sqrt(var + eps)."""
    x, weight, bias, mean, variance = node.args[:5]
    training = "no_training" not in node.name and bool(node.args[5])
    if training or mean is None or variance is None or not x.dtype.is_floating_point:
        return None
    if not first_result_only(graph, node):
        return None
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    inputs: list[Region] = [x]

    def channel(region: Region) -> Any:
        inputs.append(_per_channel(region, x))
        return cast(("in", len(inputs) - 1), wide, [r.dtype for r in inputs])

    eps = const(wide, float(node.args[-1]))
    scale: Any = "div", wide, const(wide, 1), ("sqrt", wide, ("add", wide, channel(variance), eps))
    if weight is not None:
        scale = "mul", wide, scale, channel(weight)
    shift: Any = "mul", wide, channel(mean), scale
    shift = ("neg", wide, shift) if bias is None else ("sub", wide, channel(bias), shift)
    dtypes = [r.dtype for r in inputs]
    expr = "add", wide, ("mul", wide, cast(("in", 0), wide, dtypes), scale), shift
    return build("elementwise", node, tuple(inputs), expr=cast(expr, x.dtype, dtypes))


def _per_channel(vector: Region, x: Region) -> Region:
    """A vector over dimension 1, in the shape of *x*."""
    return view(vector, x.shape, tuple(vector.stride[0] if d == 1 else 0 for d in range(len(x.shape))))


def _softmax(log: bool) -> Row:
    def row(graph: Graph, node: Node) -> Intent | None:
        x, dim = node.args[:2]
        if not x.dtype.is_floating_point or not x.shape:
            return None
        return build("softmax", node, (x,), dim=dim % len(x.shape), log=log)

    return row


# Reductions


def _axes(x: Region, dims: Any) -> tuple[int, ...]:
    rank = len(x.shape)
    if dims is None or dims == ():
        return tuple(range(rank))
    return tuple(sorted(d % rank for d in (dims if isinstance(dims, tuple) else (dims,))))


def _reduce(op: str) -> Row:
    def row(graph: Graph, node: Node) -> Intent | None:
        x = node.args[0]
        if x.dtype.is_complex:
            return None
        x = x if x.shape else unsqueeze(x, 0)
        whole = node.name.endswith(".default") and not node.name.startswith("am")  # amax and amin take dims
        dims, keepdim = (None, False) if whole else (node.arg(1, "dim"), node.arg(2, "keepdim", False))
        return build("reduce", node, (x,), op=op, dims=_axes(x, dims), keepdim=bool(keepdim))

    return row


def _arg_reduce(op: str) -> Row:
    def row(graph: Graph, node: Node) -> Intent | None:
        x, dim, keepdim = node.args[0], node.arg(1, "dim"), bool(node.arg(2, "keepdim", False))
        if not x.shape or (dim is None and keepdim):
            return None
        axis = None if dim is None else dim % len(x.shape)
        both = len(node.outs) == 2
        return build("arg_reduce", node, (x,), *node.outs, op=op, dim=axis, keepdim=keepdim, has_values=both)

    return row


def _cumsum(graph: Graph, node: Node) -> Intent | None:
    x, dim = node.args[:2]
    return build("cumsum", node, (x,), dim=dim % len(x.shape)) if x.shape and not x.dtype.is_complex else None


# Pools


def _pool(op: str, rank: int) -> Row:
    def row(graph: Graph, node: Node) -> Intent | None:
        x, kernel = node.args[0], _sizes(node.args[1], rank)
        stride = _sizes(node.arg(2, "stride", ()) or kernel, rank)
        padding = _sizes(node.arg(3, "padding", 0), rank)
        if not x.dtype.is_floating_point or not first_result_only(graph, node):
            return None
        more: dict[str, Any] = {}
        if op == "max":
            dilation = _sizes(node.arg(4, "dilation", 1), rank)
            more["dilation"] = None if set(dilation) == {1} else dilation
            more["ceil"] = bool(node.arg(5, "ceil_mode", False))
        else:
            if node.arg(6, "divisor_override") is not None:
                return None
            more["ceil"] = bool(node.arg(4, "ceil_mode", False))
            more["count_padding"] = bool(node.arg(5, "count_include_pad", True)) or not any(padding)
        return build("pool", node, (x,), node.outs[0], kernel=kernel, op=op, padding=padding, stride=stride, **more)

    return row


def _sizes(value: Any, rank: int) -> tuple[int, ...]:
    """One size per dimension, where torch allows a single one."""
    sizes = value if isinstance(value, tuple) else (value,)
    return sizes * rank if len(sizes) == 1 else sizes


def _adaptive(op: str, rank: int) -> Row:
    """A pool of as many windows as asked for: equal ones, where the sizes divide."""

    def row(graph: Graph, node: Node) -> Intent | None:
        x, wanted = node.args[0], _sizes(node.args[1], rank)
        have = x.shape[-rank:]
        if not x.dtype.is_floating_point or not first_result_only(graph, node):
            return None
        if set(wanted) == {1}:
            dims = tuple(range(len(x.shape) - rank, len(x.shape)))
            name = "mean" if op == "mean" else "max"
            return build("reduce", node, (x,), node.outs[0], op=name, dims=dims, keepdim=True)
        if any(n == 0 or h % n for h, n in zip(have, wanted, strict=True)):
            return None
        kernel = tuple(h // n for h, n in zip(have, wanted, strict=True))
        return build("pool", node, (x,), node.outs[0], kernel=kernel, op=op, padding=(0,) * rank, stride=kernel)

    return row


# Order


def _sort(graph: Graph, node: Node) -> Intent | None:
    x = node.args[0]
    by_place = (None, 1, 2) if node.name == "sort.default" else (None, 2, 3)  # stable comes before dim
    dim, descending = node.arg(by_place[1], "dim", -1), bool(node.arg(by_place[2], "descending", False))
    if not x.shape or x.dtype.is_complex:
        return None
    return build("sort", node, (x,), *node.outs, dim=dim % len(x.shape), descending=descending)


def _top_k(graph: Graph, node: Node) -> Intent | None:
    x, k = node.args[:2]
    if not x.shape or x.dtype.is_complex:
        return None
    dim, largest = node.arg(2, "dim", -1), bool(node.arg(3, "largest", True))
    return build("top_k", node, (x,), *node.outs, dim=dim % len(x.shape), k=k, largest=largest)


def _histogram(graph: Graph, node: Node) -> Intent | None:
    x, bins = node.args[0], node.arg(1, "bins", 100)
    low, high = node.arg(2, "min", 0), node.arg(3, "max", 0)
    if low >= high:  # the range is that of the values
        return None
    return build("histogram", node, (x,), bins=bins, high=float(high), low=float(low))


ROWS: dict[str, Row] = {
    **named("layer_norm.default native_layer_norm.default", _layer_norm),
    **named("rms_norm.default _fused_rms_norm.default", _rms_norm),
    **named("native_group_norm.default group_norm.default", _group_norm),
    **named("native_batch_norm.default _native_batch_norm_legit.default _native_batch_norm_legit_no_training.default",
            _batch_norm),
    **named("softmax.int _softmax.default", _softmax(False)),
    **named("log_softmax.int _log_softmax.default", _softmax(True)),
    **named("sum.default sum.dim_IntList", _reduce("sum")), **named("mean.default mean.dim", _reduce("mean")),
    **named("prod.default prod.dim_int", _reduce("prod")),
    **named("amax.default max.default", _reduce("max")), **named("amin.default min.default", _reduce("min")),
    **named("any.default any.dim any.dims", _reduce("any")), **named("all.default all.dim all.dims", _reduce("all")),
    **named("argmax.default max.dim", _arg_reduce("argmax")), **named("argmin.default min.dim", _arg_reduce("argmin")),
    "cumsum.default": _cumsum,
    "max_pool2d_with_indices.default": _pool("max", 2), "max_pool3d_with_indices.default": _pool("max", 3),
    "avg_pool1d.default": _pool("mean", 1), "avg_pool2d.default": _pool("mean", 2),
    "avg_pool3d.default": _pool("mean", 3),
    "adaptive_avg_pool1d.default": _adaptive("mean", 1), "_adaptive_avg_pool2d.default": _adaptive("mean", 2),
    "_adaptive_avg_pool3d.default": _adaptive("mean", 3), "adaptive_max_pool2d.default": _adaptive("max", 2),
    "adaptive_max_pool3d.default": _adaptive("max", 3),
    **named("sort.default sort.stable", _sort), "topk.default": _top_k, "histc.default": _histogram,
}  # fmt: skip
