"""One row per ATen operator: what a single operation wants. The rows that take several operations are in `patterns`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dsf.intent import pointwise
from dsf.intent.expression import const
from dsf.intent.graph import Graph, Node
from dsf.intent.ir import Intent, attributes
from dsf.intent.pointwise import POINTWISE, Operands
from dsf.intent.tape import Region, Slot
from dsf.intent.views import broadcast_shapes, expand, is_contiguous, overlap, same, transposed, unsqueeze, view

__all__ = ["OPERATORS", "aliases_safely", "attention_operands", "build", "opaque", "single"]

Row = Callable[[Graph, Node], "Intent | None"]

# Kinds whose element i of the output needs nothing of an input but its element i, so that they may work in place.
_IN_PLACE = frozenset({"elementwise", "copy", "gated_activation", "scatter", "index_put"})


def build(kind: str, node: Node, inputs: tuple[Region, ...], *outputs: Region, **attrs: Any) -> Intent:
    """The intent of one operation; its outputs are what the operation produces unless given."""
    outputs = outputs or ((node.out,) if node.writes else ())
    return Intent(kind, inputs, outputs, attributes(kind, **attrs), (node.index,), node.op.scope, node.op.site)


def aliases_safely(intent: Intent) -> bool:
    """May a kernel write the outputs while it still reads the inputs? An output that overlaps an input must be the
    very same window, and the kind one that works in place. (An opaque operation sees to that itself.)"""
    if intent.kind == "opaque":
        return True
    for out in intent.outputs:
        for source in intent.inputs:
            if overlap(source, out) and not (intent.kind in _IN_PLACE and same(source, out)):
                return False
    return True


def single(graph: Graph, node: Node) -> Intent:
    """What one operation wants, by its row; opaque if it has none or the row declines."""
    if node.writes and all(region.numel == 0 for region in node.writes):
        return build("nothing", node, (), *node.writes)
    row = OPERATORS.get(node.name) or _out_variant(node)
    intent = row(graph, node) if row else None
    if intent is None or any(r.numel == 0 for r in intent.inputs) or not aliases_safely(intent):
        return opaque(node)
    return intent


def _out_variant(node: Node) -> Row | None:
    """The row of a variant that writes its `out=` argument."""
    base, _, overload = node.name.partition(".")
    if not overload.endswith("out"):
        return None
    kind = overload.removesuffix("out").removesuffix("_")
    names = [kind] if kind else ["default", "Tensor", "self"]
    return next((OPERATORS[f"{base}.{name}"] for name in names if f"{base}.{name}" in OPERATORS), None)


def opaque(node: Node) -> Intent:
    """The operation as it stands, for whoever can run any of them: the host."""
    signature = node.op.signature
    places: dict[int, int] = {}

    def renumber(value: Any) -> Any:
        if isinstance(value, Slot):
            return Slot(places.setdefault(value.index, len(places)))
        return tuple(map(renumber, value)) if isinstance(value, tuple) else value

    args = renumber(signature.args)
    kwargs = tuple((name, renumber(value)) for name, value in signature.kwargs)
    outs = signature.outs
    results = tuple(("input", places[s]) if s in places else ("result", outs.index(s)) for s in signature.writes)
    inputs = tuple(node.op.region(slot) for slot in places)
    attrs = {"target": signature.target, "args": args, "kwargs": kwargs, "results": results}
    return build("opaque", node, inputs, *node.writes, **attrs)


# Pointwise


def _pointwise(row: pointwise.Row) -> Row:
    def wanted(graph: Graph, node: Node) -> Intent | None:
        out = node.writes[0]
        operands = Operands(node, out.shape)
        try:
            expr = row(operands, node)
        except ValueError:  # operands that do not broadcast to the output
            return None
        if expr is None or any(r.dtype.is_complex for r in (out, *operands.inputs)):
            return None
        expr, inputs = operands.cast(expr, out.dtype), tuple(operands.inputs)
        if expr[0] == "in":
            return build("copy", node, inputs, out)
        if expr[0] == "const":
            return build("fill", node, (), out, value=expr[2])
        return build("elementwise", node, inputs, out, expr=expr)

    return wanted


# Contractions


def _linear(graph: Graph, node: Node) -> Intent | None:
    x, weight = node.args[:2]
    bias = node.arg(2, "bias")
    if len(weight.shape) != 2 or not _one_dtype(x, weight, *([bias] if bias else [])):
        return None
    inputs = (x, weight, bias) if bias else (x, weight)
    return build("linear", node, inputs, has_bias=bias is not None, transposed=True)


def _one_dtype(*regions: Region) -> bool:
    return len({r.dtype for r in regions}) == 1


def _mm(graph: Graph, node: Node) -> Intent | None:
    return _contract(node, node.args[0], node.args[1], None)


def _addmm(graph: Graph, node: Node) -> Intent | None:
    bias, a, b = node.args[:3]
    width = b.shape[1]
    if node.arg(3, "beta", 1) != 1 or node.arg(4, "alpha", 1) != 1 or bias.shape not in ((width,), (1, width)):
        return None
    return _contract(node, a, b, view(bias, bias.shape[-1:], bias.stride[-1:]))


def _contract(node: Node, a: Region, b: Region, bias: Region | None) -> Intent | None:
    """a @ b by the rules of torch.matmul; a matrix on the right makes it a linear."""
    out = node.out
    if not _one_dtype(a, b, out) or not a.shape or not b.shape:
        return None
    if len(b.shape) == 1:
        b, out = unsqueeze(b, 1), unsqueeze(out, -1)
    if len(b.shape) == 2:
        stored = b.stride[0] == 1 and not is_contiguous(b)
        inputs = (a, transposed(b) if stored else b, *([bias] if bias else []))
        return build("linear", node, inputs, out, has_bias=bias is not None, transposed=stored)
    if len(a.shape) == 1:
        a, out = unsqueeze(a, 0), unsqueeze(out, -2)
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return build("matmul", node, (expand(a, batch + a.shape[-2:]), expand(b, batch + b.shape[-2:])), out)


# Attention


def attention_operands(node: Node) -> tuple[Region, Region, Region, Region | None] | None:
    """q, k, v and mask of an sdpa operation in four dimensions; None where it is not plain attention."""
    q, k, v, mask = *node.args[:3], node.arg(3, "attn_mask")
    if node.arg(4, "dropout_p", 0.0) or not _one_dtype(q, k, v) or len({len(r.shape) for r in (q, k, v)}) != 1:
        return None
    lead = 4 - len(q.shape)
    if lead not in (0, 1) or k.shape[:-1] != v.shape[:-1] or q.shape[: 1 - lead] != k.shape[: 1 - lead]:
        return None
    q, k, v = (unsqueeze(r, 0) if lead else r for r in (q, k, v))
    if q.shape[1] % k.shape[1] or (q.shape[1] != k.shape[1] and not node.arg(7, "enable_gqa", False)):
        return None
    return q, k, v, None if mask is None else expand(mask, (*q.shape[:3], k.shape[2]))


def attention(node: Node, q: Region, k: Region, v: Region, mask: Region | None) -> Intent:
    """The intent of an sdpa operation on these operands."""
    out = node.out if len(node.out.shape) == 4 else unsqueeze(node.out, 0)
    scale = node.arg(6, "scale")
    return build(
        "attention", node, (q, k, v) if mask is None else (q, k, v, mask), out,
        causal=bool(node.arg(5, "is_causal", False)), groups=q.shape[1] // k.shape[1], has_mask=mask is not None,
        scale=float(q.shape[-1] ** -0.5 if scale is None else scale),
    )  # fmt: skip


def _sdpa(graph: Graph, node: Node) -> Intent | None:
    operands = attention_operands(node)
    return attention(node, *operands) if operands else None


# Normalisation


def _only_first_result(graph: Graph, node: Node) -> bool:
    return all(graph.hidden(r.buffer) and r.buffer not in graph.readers for r in node.outs[1:])


def _layer_norm(graph: Graph, node: Node) -> Intent | None:
    x, shape = node.args[:2]
    weight, bias, eps = node.arg(2, "weight"), node.arg(3, "bias"), node.arg(4, "eps", 1e-5)
    if not _only_first_result(graph, node) or not x.dtype.is_floating_point:
        return None
    inputs = tuple(r for r in (x, weight, bias) if r is not None)
    return build("layer_norm", node, inputs, axes=len(shape), eps=float(eps), has_weight=weight is not None,
                 has_bias=bias is not None)  # fmt: skip


def _rms_norm(graph: Graph, node: Node) -> Intent | None:
    x, shape = node.args[:2]
    weight, eps = node.arg(2, "weight"), node.arg(3, "eps")
    if len(shape) != 1 or weight is None or eps is None or not _only_first_result(graph, node):
        return None
    compute = torch.float64 if x.dtype == torch.float64 else torch.float32
    return build("rms_norm", node, (x, weight), compute=compute, eps=float(eps), weight_after_cast=False)


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


# Movement by index


def _embedding(graph: Graph, node: Node) -> Intent | None:
    table, ids = node.args[:2]
    return build("embedding", node, (ids, table))


def _indices(indices: tuple[Region | None, ...]) -> tuple[tuple[int, ...], tuple[Region, ...]] | None:
    """Which dimensions an advanced index takes, and its index tensors in their common shape."""
    dims = tuple(d for d, index in enumerate(indices) if index is not None)
    given = [index for index in indices if index is not None]
    if not given or any(index.dtype not in (torch.int64, torch.int32) for index in given):
        return None
    shape = broadcast_shapes(*(index.shape for index in given))
    return dims, tuple(expand(index, shape) for index in given)


def _index(graph: Graph, node: Node) -> Intent | None:
    taken = _indices(node.args[1])
    return build("index", node, (node.args[0], *taken[1]), dims=taken[0]) if taken else None


def _index_select(graph: Graph, node: Node) -> Intent | None:
    x, dim, index = node.args[:3]
    if not x.shape or len(index.shape) != 1:
        return None
    return build("index", node, (x, index), dims=(dim % len(x.shape),))


def _gather(graph: Graph, node: Node) -> Intent | None:
    x, dim, index = node.args[:3]
    return build("gather", node, (x, index), dim=dim % len(x.shape)) if x.shape else None


def _scatter(reduce: str | None) -> Row:
    def row(graph: Graph, node: Node) -> Intent | None:
        x, dim, index, source = node.args[:4]
        if not x.shape or node.arg(4, "reduce") is not None:
            return None
        given = isinstance(source, Region)
        if given and source.dtype != x.dtype:
            return None
        value = None if given else const(x.dtype, source)[2]
        inputs = (x, index, source) if given else (x, index)
        return build("scatter", node, inputs, dim=dim % len(x.shape), has_src=given, reduce=reduce, value=value)

    return row


def _put(node: Node, taken: tuple[tuple[int, ...], tuple[Region, ...]], source: Region, add: bool) -> Intent | None:
    x, (dims, indices) = node.args[0], taken
    lead, tail = dims[0], dims[-1] + 1
    at = indices[0].shape
    if dims == tuple(range(lead, tail)):
        shape = x.shape[:lead] + at + x.shape[tail:]
    else:
        shape = at + tuple(n for d, n in enumerate(x.shape) if d not in dims)
    if source.dtype != x.dtype:
        return None
    return build("index_put", node, (x, expand(source, shape), *indices), accumulate=add, dims=dims)


def _index_put(graph: Graph, node: Node) -> Intent | None:
    taken = _indices(node.args[1])
    return _put(node, taken, node.args[2], bool(node.arg(3, "accumulate", False))) if taken else None


def _index_copy(graph: Graph, node: Node) -> Intent | None:
    x, dim, index, source = node.args[:4]
    if len(index.shape) != 1 or len(source.shape) != len(x.shape):
        return None
    return _put(node, ((dim % len(x.shape),), (index,)), source, False)


# Joining and repeating


def _cat(graph: Graph, node: Node) -> Intent | None:
    parts, out = tuple(r for r in node.args[0] if r.numel), node.out
    if not _one_dtype(out, *parts):
        return None
    if len(parts) == 1:
        return build("copy", node, parts)
    return build("concat", node, parts, dim=node.arg(1, "dim", 0) % len(out.shape))


def _stack(graph: Graph, node: Node) -> Intent | None:
    dim = node.arg(1, "dim", 0) % len(node.out.shape)
    parts = tuple(unsqueeze(r, dim) for r in node.args[0])
    return build("concat", node, parts, dim=dim) if _one_dtype(node.out, *parts) else None


def _repeat(graph: Graph, node: Node) -> Intent | None:
    """y[r * n + i] = x[i] per dimension: a copy between windows with every dimension split in (repeat, element)."""
    x, repeats = node.args[:2]
    x = expand(x, (1,) * (len(repeats) - len(x.shape)) + x.shape)
    out = node.out
    shape = tuple(n for pair in zip(repeats, x.shape, strict=True) for n in pair)
    source = tuple(s for stride in x.stride for s in (0, stride))
    target = tuple(s for n, stride in zip(x.shape, out.stride, strict=True) for s in (n * stride, stride))
    return build("copy", node, (view(x, shape, source),), view(out, shape, target))


def _dropout(graph: Graph, node: Node) -> Intent | None:
    return None if node.args[2] and node.args[1] else build("copy", node, (node.args[0],))


# Creation


def _fill(position: int | None, value: Any = None) -> Row:
    def row(graph: Graph, node: Node) -> Intent | None:
        number = value if position is None else node.args[position]
        if isinstance(number, complex):
            return None
        if isinstance(number, Region):
            x = Operands(node, node.out.shape)
            expr = x(number, node.out.dtype)
            kind, attrs = ("copy", {}) if expr[0] == "in" else ("elementwise", {"expr": expr})
            return build(kind, node, tuple(x.inputs), **attrs)
        return build("fill", node, (), value=const(node.out.dtype, number)[2])

    return row


def _empty(graph: Graph, node: Node) -> Intent | None:
    return build("nothing", node, (), *node.writes)


def _arange(graph: Graph, node: Node) -> Intent | None:
    numbers = [a for a in node.args if not isinstance(a, Region)]
    start = 0 if len(numbers) == 1 else numbers[0]
    step = numbers[2] if len(numbers) > 2 else 1
    kind = float if node.out.dtype.is_floating_point else int
    if kind is int and (start != int(start) or step != int(step)):
        return None
    return build("iota", node, (), start=kind(start), step=kind(step))


def _rows(names: str, row: Row) -> dict[str, Row]:
    return dict.fromkeys(names.split(), row)


OPERATORS: dict[str, Row] = {
    **{name: _pointwise(row) for name, row in POINTWISE.items()},
    "linear.default": _linear, "addmm.default": _addmm,
    **_rows("mm.default bmm.default matmul.default mv.default dot.default", _mm),
    "scaled_dot_product_attention.default": _sdpa,
    **_rows("layer_norm.default native_layer_norm.default", _layer_norm),
    **_rows("rms_norm.default _fused_rms_norm.default", _rms_norm),
    **_rows("softmax.int _softmax.default", _softmax(False)),
    **_rows("log_softmax.int _log_softmax.default", _softmax(True)),
    **_rows("sum.default sum.dim_IntList", _reduce("sum")), **_rows("mean.default mean.dim", _reduce("mean")),
    **_rows("prod.default prod.dim_int", _reduce("prod")),
    **_rows("amax.default max.default", _reduce("max")), **_rows("amin.default min.default", _reduce("min")),
    **_rows("any.default any.dim any.dims", _reduce("any")), **_rows("all.default all.dim all.dims", _reduce("all")),
    **_rows("argmax.default max.dim", _arg_reduce("argmax")), **_rows("argmin.default min.dim", _arg_reduce("argmin")),
    "cumsum.default": _cumsum,
    "embedding.default": _embedding, "index.Tensor": _index, "index_select.default": _index_select,
    "gather.default": _gather,
    **_rows("scatter.src scatter.value", _scatter(None)), "scatter_add.default": _scatter("add"),
    "index_put.default": _index_put, "index_copy.default": _index_copy,
    "cat.default": _cat, "stack.default": _stack, "repeat.default": _repeat, "dropout.default": _dropout,
    **_rows("full.default full_like.default fill.Scalar fill.Tensor", _fill(1)), "new_full.default": _fill(2),
    "scalar_tensor.default": _fill(0),
    **_rows("zeros.default zeros_like.default new_zeros.default zero.default", _fill(None, 0)),
    **_rows("ones.default ones_like.default new_ones.default", _fill(None, 1)),
    **_rows("empty.memory_format empty_like.default empty_strided.default empty_permuted.default", _empty),
    **_rows("new_empty.default new_empty_strided.default", _empty),
    **_rows("arange.default arange.start arange.start_step", _arange),
}  # fmt: skip
