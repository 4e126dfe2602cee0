"""Operator rows of what only moves values: by index, joined, repeated, turned, created, sent to other chips."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import distributed_c10d

from dsf.intent.expression import const
from dsf.intent.graph import Graph, Node
from dsf.intent.ir import Intent
from dsf.intent.operators.rows import Row, build, named, one_dtype
from dsf.intent.pointwise import Operands
from dsf.intent.tape import Region
from dsf.intent.views import broadcast_shapes, expand, narrow, reshape, unsqueeze, view

__all__ = ["ROWS"]


# By index


def _embedding(graph: Graph, node: Node) -> Intent | None:
    table, ids = node.args[:2]
    return build("embedding", node, (ids, table))


Indices = tuple[tuple[int, ...], tuple[Region, ...]]


def _indices(indices: tuple[Region | None, ...]) -> Indices | None:
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
        how = node.arg(4, "reduce")
        if node.name == "scatter_reduce.two":
            how = {"sum": "add"}.get(how, how) if node.arg(5, "include_self", True) else "of the sources alone"
        if not x.shape or how not in (None, reduce):
            return None
        given = isinstance(source, Region)
        if given and source.dtype != x.dtype:
            return None
        value = None if given else const(x.dtype, source)[2]
        inputs = (x, index, source) if given else (x, index)
        return build("scatter", node, inputs, dim=dim % len(x.shape), has_src=given, reduce=reduce, value=value)

    return row


def _put(node: Node, taken: Indices, source: Region, add: bool) -> Intent | None:
    x, (dims, indices) = node.args[0], taken
    if source.dtype != x.dtype:
        return None
    if _appends(node, taken) and not add:
        shape = (*x.shape[: dims[0]], indices[0].shape[0], *x.shape[dims[0] + 1 :])
        return build("kv_append", node, (x, expand(source, shape), indices[0]), dim=dims[0])
    lead, tail = dims[0], dims[-1] + 1
    at = indices[0].shape
    if dims == tuple(range(lead, tail)):
        shape = x.shape[:lead] + at + x.shape[tail:]
    else:
        shape = at + tuple(n for d, n in enumerate(x.shape) if d not in dims)
    return build("index_put", node, (x, expand(source, shape), *indices), accumulate=add, dims=dims)


def _appends(node: Node, taken: Indices) -> bool:
    """Are whole slices of a tensor with heads or rows written where they belong: what a cache in place does?"""
    (x, (dims, indices)) = node.args[0], taken
    return node.inplace and len(x.shape) > 2 and len(dims) == 1 and len(indices[0].shape) == 1


def _index_put(graph: Graph, node: Node) -> Intent | None:
    taken = _indices(node.args[1])
    return _put(node, taken, node.args[2], bool(node.arg(3, "accumulate", False))) if taken else None


def _index_copy(graph: Graph, node: Node) -> Intent | None:
    x, dim, index, source = node.args[:4]
    if len(index.shape) != 1 or len(source.shape) != len(x.shape) or not x.shape:
        return None
    return _put(node, ((dim % len(x.shape),), (index,)), source, False)


def _index_add(graph: Graph, node: Node) -> Intent | None:
    x, dim, index, source = node.args[:4]
    if len(index.shape) != 1 or len(source.shape) != len(x.shape) or not x.shape or node.arg(4, "alpha", 1) != 1:
        return None
    return _put(node, ((dim % len(x.shape),), (index,)), source, True)


# Joined, repeated, turned


def _cat(graph: Graph, node: Node) -> Intent | None:
    parts, out = tuple(r for r in node.args[0] if r.numel), node.out
    if not one_dtype(out, *parts):
        return None
    if len(parts) == 1:
        return build("copy", node, parts)
    return build("concat", node, parts, dim=node.arg(1, "dim", 0) % len(out.shape))


def _stack(graph: Graph, node: Node) -> Intent | None:
    dim = node.arg(1, "dim", 0) % len(node.out.shape)
    parts = tuple(unsqueeze(r, dim) for r in node.args[0])
    return build("concat", node, parts, dim=dim) if one_dtype(node.out, *parts) else None


def _repeat(graph: Graph, node: Node) -> Intent | None:
    """y[r * n + i] = x[i] per dimension: a copy between windows with every dimension split in (repeat, element)."""
    x, repeats = node.args[:2]
    x = expand(x, (1,) * (len(repeats) - len(x.shape)) + x.shape)
    out = node.out
    shape = tuple(n for pair in zip(repeats, x.shape, strict=True) for n in pair)
    source = tuple(s for stride in x.stride for s in (0, stride))
    target = tuple(s for n, stride in zip(x.shape, out.stride, strict=True) for s in (n * stride, stride))
    return build("copy", node, (view(x, shape, source),), view(out, shape, target))


def _nearest(graph: Graph, node: Node) -> Intent | None:
    """Upsampling by whole numbers repeats every element: y[i * n + r] = x[i]."""
    x, out = node.args[0], node.out
    if any(n % m for n, m in zip(out.shape, x.shape, strict=True)) or not _scales_agree(node, x, out):
        return None
    times = [n // m for n, m in zip(out.shape, x.shape, strict=True)]
    shape = tuple(n for pair in zip(x.shape, times, strict=True) for n in pair)
    source = tuple(s for stride in x.stride for s in (stride, 0))
    target = tuple(s for n, stride in zip(times, out.stride, strict=True) for s in (n * stride, stride))
    return build("copy", node, (view(x, shape, source),), view(out, shape, target))


def _scales_agree(node: Node, x: Region, out: Region) -> bool:
    """Scales that are given count, rather than the sizes they lead to; they must be the same ratio."""
    given = [a for a in node.args[2:] if a is not None]
    given = list(given[0]) if given and isinstance(given[0], tuple) else given
    ratios = [n / m for n, m in zip(out.shape[2:], x.shape[2:], strict=True)]
    return not given or given == ratios


def _roll(graph: Graph, node: Node) -> Intent | None:
    """Along one dimension: its end and then its beginning. Without a dimension the tensor is one long row."""
    x, shifts, dims = node.args[0], node.args[1], node.arg(2, "dims", ())
    out, axis = node.out, dims[0] if dims else 0
    if len(shifts) != 1 or len(dims) > 1 or not x.shape:
        return None
    if not dims:
        flat, row = reshape(x, (x.numel,)), reshape(out, (x.numel,))
        if flat is None or row is None:
            return None
        x, out = flat, row
    axis, size = axis % len(x.shape), x.shape[axis]
    shift = shifts[0] % size
    if not shift:
        return build("copy", node, (x,), out)
    return build(
        "concat", node, (narrow(x, axis, size - shift, shift), narrow(x, axis, 0, size - shift)), out, dim=axis
    )


def _dropout(graph: Graph, node: Node) -> Intent | None:
    return None if node.args[2] and node.args[1] else build("copy", node, (node.args[0],))


def _glu(graph: Graph, node: Node) -> Intent | None:
    """a * sigmoid(b) of the two halves."""
    x, dim = node.args[0], node.arg(1, "dim", -1)
    half = x.shape[dim] // 2
    gate, up = narrow(x, dim, half, half), narrow(x, dim, 0, half)
    return build("gated_activation", node, (gate, up), act="sigmoid") if x.dtype.is_floating_point else None


# Created


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


# Between chips


def _ranks(name: str, size: int | None) -> tuple[int, ...] | None:
    """The ranks of the process group *name*; without torch.distributed, 0 to *size*."""
    for group, known in distributed_c10d._world.pg_names.items():
        if known == name:
            return tuple(distributed_c10d.get_process_group_ranks(group))
    return None if size is None else tuple(range(size))


_REDUCTIONS = {"sum": "sum", "avg": "mean", "max": "max", "min": "min"}


def _collective(op: str, *, reduces: bool = False, sized: bool = False) -> Row:
    """A functional collective: (x, [reduce], [group size], ..., group name)."""

    def row(graph: Graph, node: Node) -> Intent | None:
        x, *rest, name = node.args
        how = _REDUCTIONS.get(rest.pop(0).lower()) if reduces else None
        size = rest.pop(0) if sized else None
        group = _ranks(name, size)
        if group is None or (reduces and how is None):
            return None
        if op == "all_to_all" and len({*rest[0], *rest[1]}) > 1:  # parts of different sizes
            return None
        return build("collective", node, (x,), group=group, op=op, reduce=how)

    return row


def _wait(graph: Graph, node: Node) -> Intent | None:
    """A collective is done when its program is; waiting is no work."""
    return Intent("nothing", (), tuple(node.writes), (), (node.index,), node.op.scope, node.op.site)


_C10D = "_c10d_functional"

ROWS: dict[str, Row] = {
    "embedding.default": _embedding, "index.Tensor": _index, "index_select.default": _index_select,
    "gather.default": _gather,
    **named("scatter.src scatter.value", _scatter(None)),
    **named("scatter_add.default scatter.reduce scatter_reduce.two", _scatter("add")),
    **named("index_put.default _unsafe_index_put.default _index_put_impl.default", _index_put),
    "_unsafe_index.Tensor": _index, "index_copy.default": _index_copy, "index_add.default": _index_add,
    "cat.default": _cat, "stack.default": _stack, "repeat.default": _repeat, "dropout.default": _dropout,
    "roll.default": _roll, "glu.default": _glu,
    **named("upsample_nearest1d.default upsample_nearest2d.default upsample_nearest3d.default", _nearest),
    **named("full.default full_like.default fill.Scalar fill.Tensor", _fill(1)), "new_full.default": _fill(2),
    "scalar_tensor.default": _fill(0),
    **named("zeros.default zeros_like.default new_zeros.default zero.default", _fill(None, 0)),
    **named("ones.default ones_like.default new_ones.default", _fill(None, 1)),
    **named("empty.memory_format empty_like.default empty_strided.default empty_permuted.default", _empty),
    **named("new_empty.default new_empty_strided.default", _empty),
    **named("arange.default arange.start arange.start_step", _arange),
    **named(f"{_C10D}.all_reduce.default", _collective("all_reduce", reduces=True)),
    f"{_C10D}.all_gather_into_tensor.default": _collective("all_gather", sized=True),
    f"{_C10D}.reduce_scatter_tensor.default": _collective("reduce_scatter", reduces=True, sized=True),
    f"{_C10D}.all_to_all_single.default": _collective("all_to_all"),
    f"{_C10D}.broadcast.default": _collective("broadcast"),
    f"{_C10D}.wait_tensor.default": _wait,
}  # fmt: skip
