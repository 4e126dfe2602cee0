"""Vector kernels over whole rows and by index: norms, softmax, reductions, rotary embedding, gathering, joining.

Written in primitives, so that every chip's library may offer them under its own name. Each generator has its reference
beside it: whole-tensor torch with casts at the generator's own rounding points.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from math import inf, prod

import torch
from attrs import evolve, frozen

from dsf import errors
from dsf.hdl import Chip
from dsf.intent.ir import Intent
from dsf.intent.tape import Window
from dsf.isa import Affine, Builder, Program, Scratch
from dsf.isa.program import affine, contiguous, dtype_name, torch_dtype
from dsf.kernels.compile import Compiler, as_bits, streams_of
from dsf.kernels.kernel import Limit
from dsf.kernels.target import Target
from dsf.kernels.vector import (
    Compute,
    Lane,
    Stream,
    Tile,
    declare,
    first_that_fits,
    params_of,
    reach,
    scratch_of,
    vector_nests,
    vector_phase,
    vector_program,
)  # fmt: skip

__all__ = [
    "LIMITS", "add_layer_norm", "add_rms_norm", "arg_reduce", "concat", "cumsum", "embedding", "gated_activation",
    "group_norm", "layer_norm", "masked_softmax", "moved_last", "pieces_of", "quantise", "reduce", "reduce_into",
    "rms_norm", "rotary", "row_reduce", "row_total", "row_totals", "softmax",
]  # fmt: skip


def rms_norm(target: Target, intent: Intent, name: str = "rms_norm") -> Program:
    """y = x * rsqrt(mean(x^2) + eps) (* weight) along the last dimension, in float32; x [..., C], weight [C]."""
    x, *weight = (r.window for r in intent.inputs)
    inputs = [x, *(along_rows(w, x) for w in weight)]
    streams = [Stream(k, "in", w) for k, w in enumerate(inputs)]
    streams.append(Stream(len(inputs), "out", intent.outputs[0].window))
    return _norm_program(target, name, streams, _RmsNorm(target, intent))


def add_rms_norm(target: Target, intent: Intent, name: str = "add_rms_norm") -> Program:
    """total = x + residual, rounded to its format; y = rms_norm(total, weight)."""
    x, residual, *weight = (r.window for r in intent.inputs)
    inputs = [x, residual, *(along_rows(w, x) for w in weight)]
    streams = [Stream(k, "in", w) for k, w in enumerate(inputs)]
    streams += [Stream(len(inputs) + k, "out", r.window) for k, r in enumerate(intent.outputs)]
    return _sum_norm_program(target, name, streams, _RmsNorm(target, intent))


def _norm_program(target: Target, name: str, streams: list[Stream], norm: _RmsNorm | _LayerNorm) -> Program:
    """(x, affine..., y): whole rows at once, or where no row fits on chip, in pieces."""

    def compute(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        return (norm(lane, *tiles),)

    def at_once(b: Builder) -> None:
        vector_phase(b, target, streams, compute, whole_rows=True)

    return first_that_fits(target, name, params_of(streams), [at_once, partial(norm.in_pieces, streams=streams)])


def _sum_norm_program(target: Target, name: str, streams: list[Stream], norm: _RmsNorm | _LayerNorm) -> Program:
    """(x, residual, affine..., y, total): as a norm of the sum, which is stored."""
    x, residual, *affine, y, total = streams
    dtype = dtype_name(total.window.dtype)

    def compute(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        together = _sum_of(target, lane, tiles[0], tiles[1], dtype)
        return norm(lane, together, *tiles[2:]), together

    def at_once(b: Builder) -> None:
        vector_phase(b, target, streams, compute, whole_rows=True)

    def in_pieces(b: Builder) -> None:
        vector_phase(
            b, target, [x, residual, total], lambda lane, tiles: (_sum_of(target, lane, tiles[0], tiles[1], dtype),)
        )
        norm.in_pieces(b, [evolve(total, role="in"), *affine, y])

    return first_that_fits(target, name, params_of(streams), [at_once, in_pieces])


def _sum_of(target: Target, lane: Lane, x: Tile, residual: Tile, dtype: str) -> Tile:
    """x + residual, added in float32 where the two differ in format, rounded once to *dtype*."""
    c = Compiler(target, lane, (x, residual))
    if x.dtype == residual.dtype == dtype:
        return c.apply("add", dtype, x, residual)
    return c.apply("add", dtype, lane.cast(x, "float32"), lane.cast(residual, "float32"))


@frozen
class _Norm:
    """One tile of a norm, with the weight and the bias that its intent has. A call is the norm of whole rows;
    *in_pieces* has phases of (x, affine..., y) for rows of any length."""

    target: Target
    intent: Intent

    def scale(self, c: Compiler, squares: Tile, count: int) -> Tile:
        """1 / sqrt(mean + eps) from a row's sum of squares."""
        mean = c.apply("mul", "float32", squares, c.lane.constant(1 / count, "float32"))
        eps = c.lane.constant(self.intent.attr("eps"), "float32")
        return c.apply("rsqrt", "float32", c.apply("add", "float32", mean, eps))


class _RmsNorm(_Norm):
    """x * rsqrt(mean(x^2) + eps) * weight."""

    def __call__(self, lane: Lane, x: Tile, *affine: Tile) -> Tile:
        c = Compiler(self.target, lane, (x, *affine))
        wide = lane.cast(x, "float32")
        square = c.apply("mul", "float32", wide, wide)
        scale = self.scale(c, row_reduce(lane, "sum", square), x.columns)
        normed = lane.op("mul", square, wide, scale)  # in its place: half the room for temporaries, twice the rows
        return self.weighted(c, normed, affine)

    def weighted(self, c: Compiler, normed: Tile, affine: tuple[Tile, ...]) -> Tile:
        dtype = dtype_name(self.intent.outputs[0].dtype)
        if not affine:
            return c.lane.cast(normed, dtype)
        (weight,) = affine
        if self.intent.attr("weight_after_cast"):
            return c.apply("mul", dtype, c.lane.cast(normed, dtype), c.lane.cast(weight, dtype))
        return c.lane.cast(c.apply("mul", "float32", normed, c.lane.cast(weight, "float32")), dtype)

    def in_pieces(self, b: Builder, streams: list[Stream]) -> None:
        x, *affine, y = streams
        target, count = self.target, x.window.shape[-1]

        def squared(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
            wide = lane.cast(tiles[0], "float32")
            return (lane.new("mul", wide.rows, wide.columns, "float32", wide, wide),)

        squares = row_totals(b, target, "squares", [x], squared)

        def compute(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
            c = Compiler(target, lane, tiles)
            normed = c.apply("mul", "float32", lane.cast(tiles[0], "float32"), self.scale(c, tiles[1], count))
            return (self.weighted(c, normed, tiles[2:]),)

        vector_phase(b, target, [x, squares, *affine, y], compute)


def row_totals(b: Builder, target: Target, name: str, streams: list[Stream], compute: Compute) -> Stream:
    """Phases that compute a float32 for each number of the streams and add up each row of them; the sum stands for the
    whole row."""
    shape = streams[0].window.shape
    each = Window(shape, contiguous(shape), 0, torch.float32)
    place = b.param(f"each {name}", "workspace", reach(each))
    vector_phase(b, target, [*streams, Stream(place, "out", each)], compute)
    return row_total(b, target, name, Stream(place, "in", each), "sum")


def row_total(b: Builder, target: Target, name: str, source: Stream, op: str) -> Stream:
    """Phases that reduce each row of *source* in float32; what is found stands for the whole row."""
    shape = source.window.shape
    one = Window((*shape[:-1], 1), contiguous((*shape[:-1], 1)), 0, torch.float32)
    place = b.param(name, "workspace", reach(one))
    reduce_into(b, target, op, source.param, source.window, (len(shape) - 1,), Stream(place, "out", one))
    return Stream(place, "in", evolve(one, shape=shape, stride=(*one.stride[:-1], 0)))


def layer_norm(target: Target, intent: Intent, name: str = "layer_norm") -> Program:
    """y = (x - mean) * rsqrt(var + eps) (* weight) (+ bias) along the last *axes* dimensions, in float32."""
    axes = intent.attr("axes")
    flat = [joined(r.window, axes) for r in (*intent.inputs, *intent.outputs)]
    x, n = flat[0], len(flat)
    streams = [
        Stream(k, "out" if k == n - 1 else "in", w if k in (0, n - 1) else along_rows(w, x)) for k, w in enumerate(flat)
    ]
    return _norm_program(target, name, streams, _LayerNorm(target, intent))


def add_layer_norm(target: Target, intent: Intent, name: str = "add_layer_norm") -> Program:
    """total = x + residual, rounded to its format; y = layer_norm(total)."""
    axes = intent.attr("axes")
    x, residual, *affine = (joined(r.window, axes) for r in intent.inputs)
    y, total = (joined(r.window, axes) for r in intent.outputs)
    inputs = [x, residual, *(along_rows(w, x) for w in affine)]
    streams = [Stream(k, "in", w) for k, w in enumerate(inputs)]
    streams += [Stream(len(inputs), "out", y), Stream(len(inputs) + 1, "out", total)]
    return _sum_norm_program(target, name, streams, _LayerNorm(target, intent))


class _LayerNorm(_Norm):
    """(x - mean) * rsqrt(var + eps) (* weight) (+ bias)."""

    def __call__(self, lane: Lane, x: Tile, *affine: Tile) -> Tile:
        c = Compiler(self.target, lane, (x, *affine))
        wide = lane.cast(x, "float32")
        centred = self.centred(c, wide, row_reduce(lane, "sum", wide), x.columns)
        square = c.apply("mul", "float32", centred, centred)
        result = lane.op("mul", square, centred, self.scale(c, row_reduce(lane, "sum", square), x.columns))
        return self.finished(lane, result, affine)

    def centred(self, c: Compiler, wide: Tile, total: Tile, count: int) -> Tile:
        mean = c.apply("mul", "float32", total, c.lane.constant(1 / count, "float32"))
        return c.apply("sub", "float32", wide, mean)

    def finished(self, lane: Lane, result: Tile, affine: tuple[Tile, ...]) -> Tile:
        if self.intent.attr("has_weight"):
            lane.op("mul", result, result, lane.cast(affine[0], "float32"))
        if self.intent.attr("has_bias"):
            lane.op("add", result, result, lane.cast(affine[-1], "float32"))
        return lane.cast(result, dtype_name(self.intent.outputs[0].dtype))

    def in_pieces(self, b: Builder, streams: list[Stream]) -> None:
        x, *affine, y = streams
        target, count = self.target, x.window.shape[-1]
        total = row_total(b, target, "total", x, "sum")

        def squared(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
            c = Compiler(target, lane, tiles)
            apart = self.centred(c, lane.cast(tiles[0], "float32"), tiles[1], count)
            return (c.apply("mul", "float32", apart, apart),)

        squares = row_totals(b, target, "squares", [x, total], squared)

        def compute(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
            c = Compiler(target, lane, tiles)
            apart = self.centred(c, lane.cast(tiles[0], "float32"), tiles[1], count)
            return (self.finished(lane, lane.op("mul", apart, apart, self.scale(c, tiles[2], count)), tiles[3:]),)

        vector_phase(b, target, [x, total, squares, *affine, y], compute)


def group_norm(target: Target, intent: Intent, name: str = "group_norm") -> Program:
    """The norm of each group of channels and of all that follows them, in float32; x [B, C, ...]. A weight and a bias
    stand once for each channel: they are spread over its row in main memory first, where a channel has more than one
    number."""
    x, y, groups = intent.inputs[0].window, intent.outputs[0].window, intent.attr("groups")
    batch, channels, *inner = x.shape
    area = prod(inner)
    shape = (batch, groups, channels // groups * area)
    params = [(f"in{k}", "in", reach(r.window)) for k, r in enumerate(intent.inputs)]
    out = len(params)
    norm = _LayerNorm(target, intent)

    def streams(b: Builder) -> list[Stream]:
        found = [Stream(0, "in", _grouped(x, shape))]
        for k, region in enumerate(intent.inputs[1:], 1):
            w = region.window
            lying = Window((channels, area), (w.stride[0], 0), 0, w.dtype)
            dense = evolve(lying, stride=contiguous(lying.shape))
            place = b.param(f"spread{k}", "workspace", reach(dense))
            vector_phase(b, target, [Stream(k, "in", lying), Stream(place, "out", dense)], lambda lane, tiles: tiles)
            found.append(Stream(place, "in", Window(shape, (0, shape[2], 1), 0, w.dtype)))
        return [*found, Stream(out, "out", _grouped(y, shape))]

    def at_once(b: Builder) -> None:
        vector_phase(b, target, streams(b), lambda lane, tiles: (norm(lane, *tiles),), whole_rows=True)

    params.append(("out", "out", reach(y)))

    def in_pieces(b: Builder) -> None:
        norm.in_pieces(b, streams(b))

    return first_that_fits(target, name, params, [at_once, in_pieces])


def _grouped(window: Window, shape: tuple[int, ...]) -> Window:
    """[B, C, ...] as [B, groups, the rest]."""
    flat = joined(window, len(window.shape) - 1)
    step = flat.stride[-1]
    return evolve(window, shape=shape, stride=(window.stride[0], shape[2] * step, step))


def quantise(target: Target, intent: Intent, name: str = "quantise") -> Program:
    """y = round(x / scale) + zero, halves to even, saturated to y's whole numbers."""
    y = intent.outputs[0].window
    streams = [evolve(s, window=_like(s.window, y)) for s in streams_of(intent)]
    least, most = (float(limit) for limit in (torch.iinfo(y.dtype).min, torch.iinfo(y.dtype).max))

    def compute(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        c = Compiler(target, lane, tiles)
        x, scale, *zero = (lane.cast(t, "float32") for t in tiles)
        number = c.apply("round", "float32", c.apply("div", "float32", x, scale))
        if zero:
            number = c.apply("add", "float32", number, zero[0])
        number = c.apply("max", "float32", number, lane.constant(least, "float32"))
        return (lane.cast(c.apply("min", "float32", number, lane.constant(most, "float32")), dtype_name(y.dtype)),)

    return vector_program(target, name, streams, compute)


def _like(window: Window, y: Window) -> Window:
    """The window with the dimensions of *y*, repeated along those that it lacks."""
    missing = len(y.shape) - len(window.shape)
    stride = (*(0 for _ in range(missing)), *window.stride)
    shape = (*(1 for _ in range(missing)), *window.shape)
    return evolve(window, shape=y.shape, stride=tuple(0 if n == 1 else s for n, s in zip(shape, stride, strict=True)))


def softmax(target: Target, intent: Intent, name: str = "softmax") -> Program:
    """Softmax (or its logarithm) along one dimension, in float32."""
    dim, log, dtype = intent.attr("dim"), intent.attr("log"), dtype_name(intent.outputs[0].dtype)
    streams = [evolve(s, window=moved_last(s.window, (dim,))) for s in streams_of(intent)]

    def compute(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        c = Compiler(target, lane, tiles)
        x = lane.cast(tiles[0], "float32")
        shifted = c.apply("sub", "float32", x, row_reduce(lane, "max", x))
        powers = c.apply("exp", "float32", shifted) if log else lane.op("exp", shifted, shifted)
        total = row_reduce(lane, "sum", powers)
        if log:
            return (lane.cast(c.apply("sub", "float32", shifted, c.apply("log", "float32", total)), dtype),)
        return (lane.cast(lane.op("div", powers, powers, total), dtype),)

    def shifted(c: Compiler, tiles: tuple[Tile, ...]) -> Tile:
        return c.apply("sub", "float32", c.lane.cast(tiles[0], "float32"), tiles[1])

    def power(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        c = Compiler(target, lane, tiles)
        return (c.apply("exp", "float32", shifted(c, tiles)),)

    def share(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        c = Compiler(target, lane, tiles)
        moved = shifted(c, tiles)
        if log:
            return (lane.cast(c.apply("sub", "float32", moved, c.apply("log", "float32", tiles[2])), dtype),)
        powers = c.apply("exp", "float32", moved)
        return (lane.cast(lane.op("div", powers, powers, tiles[2]), dtype),)

    def at_once(b: Builder) -> None:
        vector_phase(b, target, streams, compute, whole_rows=True)

    def in_pieces(b: Builder) -> None:
        x, y = streams
        most = row_total(b, target, "most", x, "max")
        total = row_totals(b, target, "powers", [x, most], power)
        vector_phase(b, target, [x, most, total, y], share)

    return first_that_fits(target, name, params_of(streams), [at_once, in_pieces])


def masked_softmax(
    target: Target, lane: Lane, scores: Tile, scale: float, mask: Tile | None, causal: bool, dtype: str,
    last: Tile | None = None,
) -> Tile:  # fmt: skip
    """One tile of attention weights from raw float32 *scores*, worked in place: scaled, masked, exponentiated, divided
    by their sum, rounded to *dtype*. *causal*: row i of the tile is query row lane.row + i.
    *last*, a column of int32: a row sees no key behind this one. A row that the mask hides
    whole has weights 0, as in torch's scaled_dot_product_attention; any other row's powers add up to 1 at least."""
    lane.op("mul", scores, scores, lane.constant(scale, "float32"))
    if mask is not None and mask.dtype == "bool":
        lane.op("where", scores, mask, scores, lane.constant(-inf, "float32"))
    elif mask is not None:
        lane.op("add", scores, scores, lane.cast(mask, "float32"))
    if causal or last is not None:
        column = lane.new("iota", 1, scores.columns, "int32", start=0, step=1)
        row = last or lane.op("iota", lane.tile(scores.rows, 1, "int32"), start=lane.row, step=1)
        later = lane.new("gt", scores.rows, scores.columns, "bool", column, row)
        lane.op("where", scores, later, lane.constant(-inf, "float32"), scores)
    highest = row_reduce(lane, "max", scores)
    blind = mask is not None or last is not None  # a row may see nothing
    if blind:
        lane.op("max", highest, highest, lane.constant(torch.finfo(torch.float32).min, "float32"))
    lane.op("sub", scores, scores, highest)
    lane.op("exp", scores, scores)
    total = row_reduce(lane, "sum", scores)
    if blind:
        lane.op("max", total, total, lane.constant(1.0, "float32"))
    lane.op("div", scores, scores, total)
    return lane.cast(scores, dtype)


def rotary(target: Target, intent: Intent, name: str = "rotary") -> Program:
    """y = x * cos + rotate(x) * sin over the two halves of the last dimension, or over its neighbours, or from
    neighbours in x to halves in y; every step rounded to x's format, or to the one that the intent names."""
    x, cos, sin = (Stream(k, "in", r.window) for k, r in enumerate(intent.inputs))
    y = Stream(3, "out", intent.outputs[0].window)
    result = dtype_name(y.window.dtype)
    dtype = dtype_name(intent.attr("compute") or torch.promote_types(x.window.dtype, cos.window.dtype))
    taken = split if intent.attr("style") == "half" else alternate
    given = alternate if intent.attr("style") == "interleaved" else split
    shared = cos.window.shape[-1] != y.window.shape[-1]
    turns = [pair for s in (cos, sin) for pair in ((s, s) if shared else given(s))]

    def compute(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        c = Compiler(target, lane, tiles)
        x1, x2, cos1, cos2, sin1, sin2 = (lane.cast(t, dtype) for t in tiles)
        first = c.apply("sub", dtype, c.apply("mul", dtype, x1, cos1), c.apply("mul", dtype, x2, sin1))
        second = c.apply("add", dtype, c.apply("mul", dtype, x2, cos2), c.apply("mul", dtype, x1, sin2))
        return lane.cast(first, result), lane.cast(second, result)

    return vector_program(target, name, [*taken(x), *turns, *given(y)], compute)


def split(stream: Stream) -> tuple[Stream, Stream]:
    """The two halves of a stream's last dimension."""
    w = stream.window
    half = evolve(w, shape=(*w.shape[:-1], w.shape[-1] // 2))
    return evolve(stream, window=half), evolve(
        stream, window=half, offset=stream.offset + w.shape[-1] // 2 * w.stride[-1]
    )


def alternate(stream: Stream) -> tuple[Stream, Stream]:
    """Every other number of a stream's last dimension, from the first and from the second on."""
    w = stream.window
    near = w.stride[-1]
    window = evolve(w, shape=(*w.shape[:-1], w.shape[-1] // 2), stride=(*w.stride[:-1], 2 * near))
    return evolve(stream, window=window), evolve(stream, window=window, offset=stream.offset + near)


def gated_activation(target: Target, intent: Intent, name: str = "gated_activation") -> Program:
    """act(gate) * up, the activation rounded to the result's format first."""
    dtype, act = dtype_name(intent.outputs[0].dtype), intent.attr("act")

    def compute(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        c = Compiler(target, lane, tiles)
        if act == "relu":
            opened = c.apply("max", dtype, tiles[0], lane.constant(0.0, tiles[0].dtype))
        else:
            opened = c.apply(act, dtype, tiles[0])
        return (c.apply("mul", dtype, opened, tiles[1]),)

    return vector_program(target, name, streams_of(intent), compute)


def embedding(target: Target, intent: Intent, name: str = "embedding") -> Program:
    """y [..., D] = table [ids [...], D]: rows of main memory by an index that is read on chip."""
    ids, table, y = (r.window for r in (*intent.inputs, *intent.outputs))
    index = evolve(ids, shape=(*ids.shape, 1), stride=(*ids.stride, 1))
    streams = [Stream(0, "in", index), Stream(2, "out", y)]
    b = target.builder(name)
    for title, role, window in (("ids", "in", ids), ("table", "in", table), ("y", "out", y)):
        b.param(title, role, reach(window))
    entry = b.gm(1, 0, table.shape, dtype_name(table.dtype), table.stride)

    def compute(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        rows = tiles[0].rows
        found = lane.tile(rows, table.shape[1], dtype_name(table.dtype))
        picked = tiles[0].operand(b, lane.space, rows, 1)
        b(target.row("gather").name, found.operand(b, lane.space, rows, table.shape[1]), entry, picked)
        return (found,)

    with b.phase(target.core_of(target.row("load"))):
        vector_nests(b, target, streams, compute, whole_rows=True)
    return b.build()


def concat(target: Target, intent: Intent, name: str = "concat") -> Program:
    """The inputs one after the other along one dimension: one set of copies for each, side by side."""
    dim, y = intent.attr("dim"), intent.outputs[0].window
    out = len(intent.inputs)
    pieces, start = [], 0
    for param, region in enumerate(intent.inputs):
        window = region.window
        part = Window(window.shape, y.stride, 0, y.dtype)
        pieces.append((as_bits(Stream(param, "in", window)), as_bits(Stream(out, "out", part, start * y.stride[dim]))))
        start += window.shape[dim]
    b = target.builder(name)
    declare(b, [s for piece in pieces for s in piece])
    with b.phase(target.core_of(target.row("load"))):
        for piece in pieces:
            vector_nests(b, target, piece, lambda lane, tiles: tiles)
    return b.build()


def reduce(target: Target, intent: Intent, name: str = "reduce") -> Program:
    """sum, mean, prod, max, min, any or all over some dimensions. A row that lies evenly and fits is reduced at once;
    else its innermost part first, in pieces, whose results in a workspace are then one row less long."""
    op, dims = intent.attr("op"), intent.attr("dims")
    x, y = intent.inputs[0].window, intent.outputs[0].window
    kept = [d for d in range(len(x.shape)) if d not in dims]
    reduction = _Reduction(target, op, tuple(x.shape[d] for d in kept), y.dtype, prod(x.shape[d] for d in dims))
    if not reduction.count:
        raise errors.KernelError(
            "DSF-K011", f"a reduction of {list(x.shape)} over {list(dims)} has no elements to combine"
        )
    b = target.builder(name)
    b.param("x", "in", reach(x))
    b.param("y", "out", reach(y))
    out = evolve(y, shape=(*reduction.kept, 1), stride=(*kept_strides(y, dims, intent.attr("keepdim")), 1))
    _reduced(b, reduction, 0, x, dims, Stream(1, "out", out))
    return b.build()


def reduce_into(
    b: Builder, target: Target, op: str, param: int, x: Window, dims: tuple[int, ...], result: Stream
) -> None:
    """Phases that reduce *x*, which parameter *param* holds, over *dims*; *result* has a last dimension of size 1."""
    kept = tuple(n for d, n in enumerate(x.shape) if d not in dims)
    reduction = _Reduction(target, op, kept, result.window.dtype, prod(x.shape[d] for d in dims))
    _reduced(b, reduction, param, x, dims, result)


def _reduced(b: Builder, reduction: _Reduction, param: int, x: Window, dims: tuple[int, ...], result: Stream) -> None:
    kept = [d for d in range(len(x.shape)) if d not in dims]
    source = _Rows(param, x.dtype, tuple(x.stride[d] for d in kept), walked(x, dims))
    while len(source.walk) > 1 or source.walk[0][0] > reduction.longest:
        source = reduction.shortened(b, source)
    with b.phase(reduction.target.core_of(reduction.target.row("load"))):
        reduction.emit(b, source.stream(reduction.kept), result, last=True)


def walked(window: Window, dims: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """*dims* as (size, stride) from the widest step to the closest, joined where they are walked as one."""
    walk = sorted(((window.shape[d], window.stride[d]) for d in dims if window.shape[d] != 1), key=lambda dim: -dim[1])
    result: list[tuple[int, int]] = []
    for n, stride in walk:
        if result and result[-1][1] == stride * n:
            result[-1] = result[-1][0] * n, stride
        else:
            result.append((n, stride))
    return tuple(result) or ((1, 1),)


@frozen
class _Rows:
    """What is left to reduce: a parameter, its format, the strides of the kept dimensions, the walk along a row."""

    param: int
    dtype: torch.dtype
    stride: tuple[int, ...]
    walk: tuple[tuple[int, int], ...]

    def stream(self, kept: tuple[int, ...]) -> Stream:
        """Whole rows, of a walk that is one step."""
        ((n, step),) = self.walk
        return Stream(self.param, "in", Window((*kept, n), (*self.stride, step), 0, self.dtype))


@frozen
class _Reduction:
    """One reduction: its *op*, the sizes it keeps, the result's format, and how many numbers a mean divides by."""

    target: Target
    op: str
    kept: tuple[int, ...]
    dtype: torch.dtype
    count: int

    @property
    def longest(self) -> int:
        """Elements of a row that is reduced at once."""
        limit = self.target.chip.limits.get("vector_row_elements", LONGEST_ROW)
        assert isinstance(limit, int), "the schema makes it a number"
        return limit

    @property
    def working(self) -> str:
        """The format that numbers are combined in."""
        summed = self.op in ("sum", "mean", "prod") and self.dtype.is_floating_point
        return "bool" if self.op in ("any", "all") else "float32" if summed else dtype_name(self.dtype)

    def shortened(self, b: Builder, source: _Rows) -> _Rows:
        """A phase that reduces the closest part of each walk, in pieces, into a workspace."""
        *outer, (n, step) = source.walk
        size = min(n, self.longest)
        pieces, rest = n // size, n % size
        lead = (*self.kept, *(count for count, _ in outer))
        strides = (*source.stride, *(stride for _, stride in outer))
        parts = pieces + (rest > 0)
        shape, dtype = (*lead, parts), torch_dtype(self.working)
        place = b.param("partial", "workspace", prod(shape) * dtype.itemsize)
        out = contiguous(shape)
        with b.phase(self.target.core_of(self.target.row("load"))):
            for first, count, length in ((0, pieces, size), (pieces, 1, rest)):
                window = Window((*lead, count, length), (*strides, size * step, step), 0, source.dtype)
                result = Window((*lead, count, 1), (*out, 1), 0, dtype)
                self.emit(
                    b, Stream(source.param, "in", window, first * size * step), Stream(place, "out", result, first)
                )
        return _Rows(place, dtype, out[: len(self.kept)], ((prod(shape[len(self.kept) :]), 1),))

    def emit(self, b: Builder, source: Stream, result: Stream, last: bool = False) -> None:
        """Reduce whole rows of *source*; only the *last* phase divides a mean and rounds to the result's format."""
        if source.window.shape[-1]:
            vector_nests(b, self.target, [source, result], partial(self._compute, last), whole_rows=True)

    def _compute(self, last: bool, lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        c = Compiler(self.target, lane, tiles)
        total = row_reduce(lane, "sum" if self.op == "mean" else self.op, c.cast(tiles[0], self.working))
        if last and self.op == "mean":
            total = c.apply("mul", self.working, total, lane.constant(1 / self.count, self.working))
        return (c.cast(total, dtype_name(self.dtype) if last else self.working),)


LONGEST_ROW = 16384  # elements, where the HDL limits nothing: with its casts it fits every vector memory


def cumsum(target: Target, intent: Intent, name: str = "cumsum") -> Program:
    """The running sum along one dimension, each row whole on chip, in the result's format (floats in float32)."""
    dim, dtype = intent.attr("dim"), dtype_name(intent.outputs[0].dtype)
    working = "float32" if intent.outputs[0].dtype.is_floating_point else dtype
    streams = [evolve(s, window=moved_last(s.window, (dim,))) for s in streams_of(intent)]

    def scan(result: str, lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        tile = lane.cast(tiles[0], working)
        return (lane.cast(lane.new("scan.cumsum", tile.rows, tile.columns, working, tile), result),)

    def at_once(b: Builder) -> None:
        vector_phase(b, target, streams, partial(scan, dtype), whole_rows=True)

    def in_pieces(b: Builder) -> None:
        """Pieces on their own, the running sum of what they end with, and for each piece that of those before it."""
        x, y = streams
        lead, n, kind = x.window.shape[:-1], x.window.shape[-1], torch_dtype(working)
        size = min(SCANNED, n)
        pieces, rest = n // size, n % size
        each = Window((*lead, n), contiguous((*lead, n)), 0, kind)
        own = Stream(b.param("pieces", "workspace", reach(each)), "out", each)
        for first, count, length in ((0, pieces, size), (pieces, 1, rest)):
            if length:
                parts = [pieces_of(s, first * size, count, size, length) for s in (x, own)]
                vector_phase(b, target, parts, partial(scan, working), whole_rows=True)
        ends = pieces_of(evolve(own, role="in"), size - 1, pieces, size, 1)
        ends = evolve(ends, window=evolve(ends.window, shape=(*lead, pieces), stride=ends.window.stride[:-1]))
        before = Window((*lead, pieces), contiguous((*lead, pieces)), 0, kind)
        sums = Stream(b.param("sums", "workspace", reach(before)), "out", before)
        vector_phase(b, target, [ends, sums], partial(scan, working), whole_rows=True)
        vector_phase(b, target, [pieces_of(s, 0, 1, size, size) for s in (evolve(own, role="in"), y)],
                     lambda lane, tiles: (lane.cast(tiles[0], dtype),))  # fmt: skip
        for first, count, length in ((1, pieces - 1, size), (pieces, 1, rest)):
            if count and length:
                parts = [pieces_of(s, first * size, count, size, length) for s in (evolve(own, role="in"), y)]
                base = Window((*lead, count, length), (*before.stride, 0), 0, kind)
                start = Stream(sums.param, "in", base, first - 1)
                vector_phase(b, target, [parts[0], start, parts[1]], _added)

    def _added(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        c = Compiler(target, lane, tiles)
        return (lane.cast(c.apply("add", working, *tiles), dtype),)

    return first_that_fits(target, name, params_of(streams), [at_once, in_pieces])


SCANNED = 4096  # elements of a piece of a running sum


def pieces_of(stream: Stream, start: int, count: int, step: int, length: int) -> Stream:
    """*count* pieces of *length* of each row, *step* numbers from each other, from number *start* on."""
    w = stream.window
    near = w.stride[-1]
    window = evolve(w, shape=(*w.shape[:-1], count, length), stride=(*w.stride[:-1], step * near, near))
    return evolve(stream, window=window, offset=stream.offset + start * near)


def row_reduce(lane: Lane, op: str, tile: Tile) -> Tile:
    """*op* over each row of *tile*: a column, in a format that the chip's reducer takes; long rows piece by piece."""
    working = reducing_format(lane.target, op, tile.dtype)
    source, total = lane.cast(tile, working), None
    for start, columns in lane.pieces(tile.columns):
        found = lane.new(f"reduce.{op}", tile.rows, 1, working, source.part(start, columns))
        total = found if total is None else lane.new(COMBINING[op], tile.rows, 1, working, total, found)
    assert total is not None, "a row has elements"
    return lane.cast(total, tile.dtype)


COMBINING = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and"}


def reducing_format(target: Target, op: str, dtype: str) -> str:
    """The format in which this chip reduces: its own on the vector engine, else what the HDL casts it to where that
    changes no result, else its own on the scalar engine, else float32."""
    if target.serves(f"reduce.{op}", dtype, "vector"):
        return dtype
    wider = target.chip.numerics.rule(dtype).vector.removeprefix("cast:")
    exact = op in ("max", "min", "argmax", "argmin") or torch_dtype(dtype).is_floating_point
    if wider != dtype and exact and target.serves(f"reduce.{op}", wider, "vector"):
        return wider
    return dtype if target.serves(f"reduce.{op}", dtype) else "float32"


def arg_reduce(target: Target, intent: Intent, name: str = "arg_reduce") -> Program:
    """argmax or argmin along one dimension, in chunks with a running best; the first of equals, NaN wins."""
    dim, keep = intent.attr("dim"), intent.attr("keepdim")
    x = intent.inputs[0].window
    source = joined(x, len(x.shape)) if dim is None else moved_last(x, (dim,))
    dims = tuple(range(len(x.shape))) if dim is None else (dim,)
    b = target.builder(name)
    b.param("x", "in", reach(x))
    for k, region in enumerate(intent.outputs):
        b.param(f"out{k}", "out", reach(region.window))
    with (
        b.phase(target.core_of(target.row("load"))),
        b.nest(**{f"l{d}": n for d, n in enumerate(source.shape[:-1])}) as at,
    ):
        scan = _Scan(target, b, source, intent.attr("op"))
        best, index = scan.run(_offset(at, source.stride[:-1], x.dtype.itemsize))
        results = [best, index] if intent.attr("has_values") else [index]
        scan.lane.leave(0)
        for k, (region, tile) in enumerate(zip(intent.outputs, results, strict=True)):
            strides = kept_strides(region.window, dims, keep)
            place = b.gm(1 + k, _offset(at, strides, region.dtype.itemsize), (1, 1), tile.dtype)
            b(target.row("store").name, place, tile.operand(b, scan.lane.space, 1, 1))
        b.order(target.row("store").engine, target.row("load").engine, 1)
    return b.build()


def _offset(at: tuple[Affine, ...], strides: tuple[int, ...], itemsize: int) -> Affine:
    return sum((v * (s * itemsize) for v, s in zip(at, strides, strict=True) if s), Affine())


class _Scan:
    """The running best of one row, chunk after chunk, in one block."""

    CHUNK = 4096  # elements: a chunk and its temporaries fit every vector memory

    def __init__(self, target: Target, b: Builder, source: Window, op: str) -> None:
        load, store = target.row("load"), target.row("store")
        self.target, self.b, self.source, self.op = target, b, source, op
        self.dtype = dtype_name(source.dtype)
        self.lane = Lane(target, b, Scratch(target.chip, scratch_of(target)), load.engine, store.engine)
        self.working = reducing_format(target, op, self.dtype)

    def run(self, base: Affine) -> tuple[Tile, Tile]:
        """Scan the row that starts *base* bytes from the parameter; the best value and its index."""
        lane, length = self.lane, self.source.shape[-1]
        chunk = min(self.CHUNK, length)
        buffer = lane.tile(1, chunk, self.dtype)
        self._load(buffer, base, affine(0), chunk)
        best, index = self._best(buffer)
        index = lane.cast(index, "int64")
        home = lane.current
        assert home is not None
        with self.b.loop(length // chunk - 1) as t:
            self._turn(buffer, base, t * chunk + chunk, chunk, best, index, home)
        if length % chunk:
            rest = evolve(buffer, columns=length % chunk, pitch=length % chunk)
            self._turn(rest, base, affine(length // chunk * chunk), length % chunk, best, index, home)
        return lane.cast(best, self.dtype), index

    def _load(self, buffer: Tile, base: Affine, start: Affine, count: int) -> None:
        stride = self.source.stride[-1]
        offset = base + start * (stride * self.source.dtype.itemsize)
        window = self.b.gm(0, offset, (1, count), self.dtype, (0, stride))
        self.b(self.target.row("load").name, buffer.operand(self.b, self.lane.space, 1, count), window)

    def _best(self, buffer: Tile) -> tuple[Tile, Tile]:
        """The best value of a chunk and its index in the chunk."""
        lane = self.lane
        tile = lane.cast(buffer, self.working)
        value = lane.new("reduce." + self.op.removeprefix("arg"), 1, 1, self.working, tile)
        return value, lane.new(f"reduce.{self.op}", 1, 1, "int64", tile)

    def _turn(self, buffer: Tile, base: Affine, start: Affine, count: int, best: Tile, index: Tile, home: str) -> None:
        """One more chunk: it takes over where it is not worse-or-equal and nothing before it was NaN."""
        lane = self.lane
        inbound = self.target.row("load").engine
        self.b.order(home, inbound, 4)
        self._load(buffer, base, start, count)
        self.b.order(inbound, home, 4)
        value, place = self._best(buffer)
        place = lane.new("add", 1, 1, "int64", place, lane.new("fill", 1, 1, "int64", value=start))
        keeps = lane.new("le" if self.op == "argmax" else "ge", 1, 1, "bool", value, best)
        sane = lane.new("eq", 1, 1, "bool", best, best)
        takes = lane.new("and", 1, 1, "bool", lane.new("not", 1, 1, "bool", keeps), sane)
        lane.op("where", best, takes, value, best)
        lane.op("where", index, takes, place, index)
        lane.switch(home)


def along_rows(window: Window, like: Window) -> Window:
    """A vector [C] as a matrix that repeats it along the leading dimensions of *like*."""
    lead = len(like.shape) - 1
    return evolve(window, shape=(*like.shape[:-1], window.shape[-1]), stride=(*(0,) * lead, window.stride[-1]))


def moved_last(window: Window, dims: tuple[int, ...]) -> Window:
    """The window with *dims* moved to the end, in their order."""
    order = [d for d in range(len(window.shape)) if d not in dims] + list(dims)
    return evolve(window, shape=tuple(window.shape[d] for d in order), stride=tuple(window.stride[d] for d in order))


def joined(window: Window, axes: int) -> Window:
    """The window with its last *axes* dimensions as one; a KernelError where they do not lie evenly."""
    if axes == 0:
        return evolve(window, shape=(*window.shape, 1), stride=(*window.stride, 1))
    shape, stride = window.shape[-axes:], window.stride[-axes:]
    kept = [(n, s) for n, s in zip(shape, stride, strict=True) if n != 1]
    for (_, outer), (n, inner) in pairwise(kept):
        if outer != inner * n:
            raise errors.KernelError(
                "DSF-K006", f"the last {axes} dimensions of {window.shape} do not lie evenly in memory"
            )
    last = kept[-1][1] if kept else 1
    return evolve(window, shape=(*window.shape[:-axes], prod(shape)), stride=(*window.stride[:-axes], last))


def kept_strides(y: Window, dims: tuple[int, ...], keepdim: bool) -> tuple[int, ...]:
    """Strides of a reduction's result along the dimensions that were not reduced."""
    if not keepdim:
        return y.stride
    return tuple(s for d, s in enumerate(y.stride) if d not in dims)


FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def _floats(chip: Chip, intent: Intent) -> bool:
    return all(r.dtype in FLOATS for r in (*intent.inputs, *intent.outputs))


def _in_single(chip: Chip, intent: Intent) -> bool:
    return intent.attr("compute") != torch.float64


def _even(chip: Chip, intent: Intent) -> bool:
    return intent.inputs[0].shape[-1] % 2 == 0


def _whole_ids(chip: Chip, intent: Intent) -> bool:
    return intent.inputs[0].dtype in (torch.int32, torch.int64)


def _quantised(chip: Chip, intent: Intent) -> bool:
    bytes_ = (torch.int8, torch.uint8)
    given = all(r.dtype in FLOATS for r in intent.inputs[:2]) and intent.outputs[0].dtype in bytes_
    return given and all(r.dtype in (*FLOATS, *bytes_, torch.int32) for r in intent.inputs[2:])


def _filled(chip: Chip, intent: Intent) -> bool:
    return all(r.numel for r in intent.inputs)


IN_SINGLE = Limit("the mean of squares is wanted in fp32 at most", _in_single)
FORMATS = Limit("operands and result are fp16, bf16 or fp32", _floats)
LIMITS: dict[str, tuple[Limit, ...]] = {
    "rms_norm": (FORMATS, IN_SINGLE),
    "add_rms_norm": (FORMATS, IN_SINGLE),
    "layer_norm": (FORMATS,),
    "add_layer_norm": (FORMATS,),
    "group_norm": (FORMATS, Limit("no dimension is empty", _filled)),
    "quantise": (Limit("x and scale are floats of 32 bits at most, y of 8 whole bits", _quantised),),
    "gated_activation": (FORMATS,),
    "rotary": (
        FORMATS,
        Limit("the head dimension is even", _even),
        Limit("every step is wanted in fp32 at most", _in_single),
    ),
    "softmax": (FORMATS,),
    "embedding": (Limit("ids are int32 or int64", _whole_ids),),
}
"""What the generators here ask of an intent, whatever the chip."""
