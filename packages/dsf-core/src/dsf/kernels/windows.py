"""Convolutions and pooling: windows that slide over the last one to three dimensions.

A convolution is a product. The numbers that each place of a window sees are copied side by side, a row for each channel
and place and a column for each result (im2col); the weights times that are the results. A transposed one copies the
other way: each number goes where it is wanted. Pooling goes along one dimension after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from itertools import product as product_of
from math import inf, prod

import torch
from attrs import evolve, frozen

from dsf.hdl import Chip
from dsf.intent.ir import Intent
from dsf.intent.tape import Window
from dsf.isa import Builder, Program
from dsf.isa.program import contiguous, dtype_name
from dsf.kernels.compile import Compiler
from dsf.kernels.contraction import FLOATS, Batch, EmitProduct, Product, Side, rows_copied_together
from dsf.kernels.kernel import Limit, Rounding
from dsf.kernels.reference import plain
from dsf.kernels.target import Target
from dsf.kernels.vector import Lane, Stream, Tile, reach, vector_nests, vector_phase

__all__ = ["CONVOLUTION_LIMITS", "LIMITS", "ROUNDING", "emit_convolution", "pool", "reference"]

Run = tuple[int, int, int]
"""Along one dimension: (first result, first number, how many of each)."""

MOST_COLUMNS = 1 << 32  # bytes of a workspace


@frozen
class Axis:
    """One dimension that windows slide over: numbers, results, and the window's size and steps."""

    size: int
    results: int
    kernel: int
    stride: int
    padding: int
    dilation: int

    def seen(self, tap: int) -> Run:
        """What place *tap* of the windows sees: it steps by the stride over the numbers."""
        start = tap * self.dilation - self.padding
        first = max(0, -(start // self.stride))
        last = min(self.results - 1, (self.size - 1 - start) // self.stride)
        return first, first * self.stride + start, max(0, last - first + 1)

    def sent(self, tap: int) -> Run:
        """Where place *tap* of a transposed one sends the numbers: it steps by the stride over the results."""
        start = tap * self.dilation - self.padding
        first = max(0, -(start // self.stride))
        last = min(self.size - 1, (self.results - 1 - start) // self.stride)
        return first * self.stride + start, first, max(0, last - first + 1)


@frozen
class Sizes:
    """A convolution: its axes, groups, and the channels of a group that come in and go out."""

    batch: int
    groups: int
    channels: int
    outputs: int
    axes: tuple[Axis, ...]
    transposed: bool

    @classmethod
    def of(cls, intent: Intent) -> Sizes:
        x, w, y = intent.inputs[0], intent.inputs[1], intent.outputs[0]
        steps = zip(
            x.shape[2:], y.shape[2:], w.shape[2:], intent.attr("stride"), intent.attr("padding"),
            intent.attr("dilation"), strict=True,
        )  # fmt: skip
        groups = intent.attr("groups")
        return cls(x.shape[0], groups, x.shape[1] // groups, y.shape[1] // groups,
                   tuple(Axis(*numbers) for numbers in steps), intent.attr("transposed"))  # fmt: skip

    @property
    def results(self) -> int:
        return prod(axis.results for axis in self.axes)

    @property
    def taps(self) -> int:
        return prod(axis.kernel for axis in self.axes)

    @property
    def depth(self) -> int:
        return self.channels * self.taps

    @property
    def is_plain(self) -> bool:
        """Whether the numbers are their own columns: windows of one place, side by side."""
        return all((a.kernel, a.stride, a.padding, a.results) == (1, 1, 0, a.size) for a in self.axes)

    @property
    def columns(self) -> tuple[int, ...]:
        """Batch, group, a row for each channel and tap, results."""
        return self.batch, self.groups, self.channels, self.taps, *(axis.results for axis in self.axes)


def emit_convolution(emit: EmitProduct, name: str, target: Target, intent: Intent) -> Program:
    """The program of a convolution; *emit* is the chip's matrix product."""
    s, y = Sizes.of(intent), intent.outputs[0].window
    b = target.builder(name)
    for k, region in enumerate(intent.inputs):
        b.param(f"in{k}", "in", reach(region.window))
    out = b.param("out", "out", reach(y))
    weights = _weights(b, target, s, intent.inputs[1].window)
    columns = None if s.is_plain else _columns(b, target, s, intent.inputs[0].window)
    if not intent.attr("has_bias"):
        emit(b, target, product_of_sizes(s, intent, weights, columns, out, y))
        return b.build()
    sums = Window(y.shape, contiguous(y.shape), 0, torch.float32)
    place = b.param("sums", "workspace", reach(sums))
    emit(b, target, product_of_sizes(s, intent, weights, columns, place, sums))
    bias = intent.inputs[2].window
    spread = Window(y.shape, (0, bias.stride[0], *(0 for _ in s.axes)), 0, bias.dtype)

    def compute(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        c = Compiler(target, lane, tiles)
        total = c.apply("add", "float32", tiles[0], lane.cast(tiles[1], "float32"))
        return (lane.cast(total, dtype_name(y.dtype)),)

    vector_phase(b, target, [Stream(place, "in", sums), Stream(2, "in", spread), Stream(out, "out", y)], compute)
    return b.build()


def product_of_sizes(
    s: Sizes, intent: Intent, weights: int, columns: int | None, out: int, result: Window
) -> Product:  # fmt: skip
    """weights [O, C * taps] by the columns [C * taps, results] of each group and each of the batch."""
    x = intent.inputs[0].window
    dtype = dtype_name(x.dtype)
    if columns is None:
        side, step, group = Side(0, x.stride[1], _near(x), dtype), x.stride[0], s.channels * x.stride[1]
    else:
        group = s.depth * s.results
        side, step = Side(columns, s.results, 1, dtype), s.groups * group
    batch = (
        Batch(s.batch, 0, step, result.stride[0]),
        Batch(s.groups, s.outputs * s.depth, group, s.outputs * result.stride[1]),
    )
    return Product(
        s.outputs, s.results, s.depth, Side(weights, s.depth, 1, dtype), side,
        Side(out, result.stride[1], _near(result), dtype_name(result.dtype)), batch,
    )  # fmt: skip


def _near(window: Window) -> int:
    """From result to result along the last dimensions, which are walked as one."""
    return next((s for n, s in zip(reversed(window.shape[2:]), reversed(window.stride[2:]), strict=True) if n > 1), 1)


def _as_it_is(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
    return tiles


def _weights(b: Builder, target: Target, s: Sizes, w: Window) -> int:
    """The weights as dense rows of C * taps numbers, one for each output of each group: as they are, or copied so."""
    shape = (s.groups, s.outputs, s.channels, s.taps)
    taps = tuple(axis.kernel for axis in s.axes)
    if s.transposed:
        stride = (s.channels * w.stride[0], w.stride[1], w.stride[0])
    elif w.stride == contiguous(w.shape):
        return 1
    else:
        stride = (s.outputs * w.stride[0], w.stride[0], w.stride[1])
    dense = Window((*shape[:3], *taps), contiguous((*shape[:3], *taps)), 0, w.dtype)
    place = b.param("weights", "workspace", reach(dense))
    own = evolve(dense, stride=(*stride, *w.stride[2:]))
    vector_phase(b, target, [Stream(1, "in", own), Stream(place, "out", dense)], _as_it_is)
    return place


def _columns(b: Builder, target: Target, s: Sizes, x: Window) -> int:
    """What each place of the windows sees of x, a zero where that is nothing."""
    shape = s.columns
    whole = Window(shape, contiguous(shape), 0, x.dtype)
    place = b.param("columns", "workspace", reach(whole))
    runs = list(_runs(s))
    if any(run[2] < axis.results for taps in runs for run, axis in zip(taps, s.axes, strict=True)):
        zero = 0 if not x.dtype.is_floating_point else 0.0
        vector_phase(b, target, [Stream(place, "out", whole)],
                     lambda lane, tiles: (lane.constant(zero, dtype_name(x.dtype)),))  # fmt: skip
    with b.phase(target.core_of(target.row("load"))):
        for tap, taps in enumerate(runs):
            count = tuple(n for _, _, n in taps)
            near = tuple(a.stride if not s.transposed else 1 for a in s.axes)
            far = tuple(1 if not s.transposed else a.stride for a in s.axes)
            lead = (s.batch, s.groups, s.channels)
            source = Window(
                (*lead, *count),
                (x.stride[0], s.channels * x.stride[1], x.stride[1],
                 *(step * stride for step, stride in zip(near, x.stride[2:], strict=True))), 0, x.dtype,
            )  # fmt: skip
            result = Window(
                (*lead, *count),
                (*whole.stride[:3], *(step * stride for step, stride in zip(far, whole.stride[4:], strict=True))), 0,
                x.dtype,
            )  # fmt: skip
            first = sum(r[1] * stride for r, stride in zip(taps, x.stride[2:], strict=True))
            begin = tap * whole.stride[3] + sum(r[0] * t for r, t in zip(taps, whole.stride[4:], strict=True))
            vector_nests(b, target, [Stream(0, "in", source, first), Stream(place, "out", result, begin)], _as_it_is)
    return place


def _runs(s: Sizes) -> Iterator[tuple[Run, ...]]:
    """For each tap, what it sees (or where it sends) along every axis."""
    for tap in product_of(*(range(axis.kernel) for axis in s.axes)):
        yield tuple((a.sent if s.transposed else a.seen)(t) for a, t in zip(s.axes, tap, strict=True))


def pool(target: Target, intent: Intent, name: str = "pool") -> Program:
    """The largest number of each window, or their mean, along one dimension after the other."""
    x, y, op = intent.inputs[0].window, intent.outputs[0].window, intent.attr("op")
    rank = len(intent.attr("kernel"))
    steps = zip(
        x.shape[-rank:], y.shape[-rank:], intent.attr("kernel"), intent.attr("stride"), intent.attr("padding"),
        intent.attr("dilation") or (1,) * rank, strict=True,
    )  # fmt: skip
    axes = [Axis(*numbers) for numbers in steps]
    b = target.builder(name)
    b.param("x", "in", reach(x))
    b.param("y", "out", reach(y))
    source = Stream(0, "in", x)
    for k, axis in enumerate(axes):
        dim = len(x.shape) - rank + k
        source = _slid(b, target, source, dim, axis, op)
    if op == "max":
        vector_phase(b, target, [source, Stream(1, "out", y)], _as_it_is)
    else:
        _mean(b, target, source, Stream(1, "out", y), axes, intent.attr("count_padding"))
    return b.build()


TOGETHER = 8  # places of a window that are combined in one pass


def _slid(b: Builder, target: Target, source: Stream, dim: int, axis: Axis, op: str) -> Stream:
    """*source* with every window along *dim* combined into one number; sums are of float32."""
    w = source.window
    dtype = w.dtype if op == "max" else torch.float32
    padded = _padded(b, target, source, dim, axis, dtype, -inf if op == "max" else 0.0)
    shape = (*w.shape[:dim], axis.results, *w.shape[dim + 1 :])
    lying = Window(shape, contiguous(shape), 0, dtype)
    place = b.param(f"slid{dim}", "workspace", reach(lying))
    step = padded.window.stride[dim]
    stride = (*padded.window.stride[:dim], step * axis.stride, *padded.window.stride[dim + 1 :])
    seen = [
        Stream(padded.param, "in", Window(shape, stride, 0, dtype), tap * axis.dilation * step)
        for tap in range(axis.kernel)
    ]
    name = dtype_name(dtype)

    def compute(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        c, result = Compiler(target, lane, tiles), tiles[0]
        for tile in tiles[1:]:
            result = c.apply("max" if op == "max" else "add", name, result, tile)
        return (result,)

    for first in range(0, len(seen), TOGETHER):
        before = [Stream(place, "in", lying)] if first else []
        vector_phase(b, target, [*before, *seen[first : first + TOGETHER], Stream(place, "out", lying)], compute)
    return Stream(place, "in", lying)


def _padded(
    b: Builder, target: Target, source: Stream, dim: int, axis: Axis, dtype: torch.dtype, value: float
) -> Stream:  # fmt: skip
    """*source* in *dtype* with *value* before and behind along *dim*, as far as any window reaches."""
    w = source.window
    reached = max(axis.size + axis.padding, (axis.results - 1) * axis.stride + (axis.kernel - 1) * axis.dilation + 1)
    shape = (*w.shape[:dim], reached, *w.shape[dim + 1 :])
    whole = Window(shape, contiguous(shape), 0, dtype)
    place = b.param(f"padded{dim}", "workspace", reach(whole))
    name = dtype_name(dtype)
    if reached > axis.size:
        vector_phase(b, target, [Stream(place, "out", whole)], lambda lane, tiles: (lane.constant(value, name),))
    inner = evolve(whole, shape=w.shape)
    result = Stream(place, "out", inner, axis.padding * whole.stride[dim])
    vector_phase(b, target, [source, result], lambda lane, tiles: (lane.cast(tiles[0], name),))
    return Stream(place, "in", whole)


def _mean(
    b: Builder, target: Target, source: Stream, result: Stream, axes: Sequence[Axis], count_padding: bool
) -> None:  # fmt: skip
    """Sums over how many numbers each window has: those inside, or all but what lies beyond the padding."""
    lead = len(result.window.shape) - len(axes)
    dtype = dtype_name(result.window.dtype)
    with b.phase(target.core_of(target.row("load"))):
        for runs in product_of(*(list(_counted(axis, count_padding)) for axis in axes)):
            count = prod(n for _, _, n in runs)
            cut = [_cut(s, lead, [(first, n) for first, n, _ in runs]) for s in (source, result)]
            vector_nests(b, target, cut, _over(target, float(count), dtype))


def _over(target: Target, count: float, dtype: str) -> Callable[[Lane, tuple[Tile, ...]], tuple[Tile, ...]]:
    def compute(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        c = Compiler(target, lane, tiles)
        return (lane.cast(c.apply("div", "float32", tiles[0], lane.constant(count, "float32")), dtype),)

    return compute


def _counted(axis: Axis, count_padding: bool) -> Iterator[tuple[int, int, int]]:
    """(first result, how many, numbers of each of their windows) along one dimension."""
    before = None
    for t in range(axis.results + 1):
        start = t * axis.stride - axis.padding
        end = min(start + axis.kernel, axis.size + axis.padding)
        own = end - start if count_padding else min(end, axis.size) - max(start, 0)
        if before is None:
            before = t, own
        elif t == axis.results or own != before[1]:
            yield before[0], t - before[0], before[1]
            before = t, own


def _cut(stream: Stream, lead: int, runs: Sequence[tuple[int, int]]) -> Stream:
    """The part of *stream* in which the last dimensions are cut to (first, how many)."""
    w = stream.window
    shape = (*w.shape[:lead], *(n for _, n in runs))
    first = sum(begin * stride for (begin, _), stride in zip(runs, w.stride[lead:], strict=True))
    return evolve(stream, window=evolve(w, shape=shape), offset=stream.offset + first)


reference = plain


def _formats(chip: Chip, intent: Intent) -> bool:
    x, w, *_ = intent.inputs
    return x.dtype == w.dtype and all(r.dtype in FLOATS for r in (*intent.inputs, *intent.outputs))


def _filled(chip: Chip, intent: Intent) -> bool:
    return all(r.numel for r in (*intent.inputs, *intent.outputs))


def _few(chip: Chip, intent: Intent) -> bool:
    s = Sizes.of(intent)
    return s.is_plain or prod(s.columns) * intent.inputs[0].dtype.itemsize <= MOST_COLUMNS


def _even(window: Window) -> bool:
    """Whether the last dimensions lie as one."""
    kept = [(n, s) for n, s in zip(window.shape[2:], window.stride[2:], strict=True) if n > 1]
    return all(outer == n * inner for (_, outer), (n, inner) in pairwise(kept))


def _dense(chip: Chip, intent: Intent) -> bool:
    """Results lie side by side, and so do the numbers where they are the columns."""
    s, x, y = Sizes.of(intent), intent.inputs[0].window, intent.outputs[0].window
    own = [y] if not intent.attr("has_bias") else []
    own += [x] if s.is_plain else []
    return all(_even(w) and _near(w) == 1 for w in own)


def _together(chip: Chip, intent: Intent) -> bool:
    s, y = Sizes.of(intent), intent.outputs[0].window
    return rows_copied_together(chip, product_of_sizes(s, intent, 1, None if s.is_plain else 3, 4, y))


def _floats(chip: Chip, intent: Intent) -> bool:
    return all(r.dtype in FLOATS for r in (*intent.inputs, *intent.outputs))


CONVOLUTION_LIMITS = (
    Limit("x, w and bias are fp16, bf16 or fp32, x and w of one format", _formats, "aclnnConvolution"),
    Limit("no dimension is empty", _filled),
    Limit("the columns of all windows have 4 GiB at most", _few),
    Limit("results lie side by side, and so do numbers that are their own columns", _dense),
    Limit("rows lie no further apart than a copy can skip", _together, "DataCopy: a gap of 65535 blocks of 32 bytes"),
)
ROUNDING = Rounding(1, 64, "sums in fp32 in another order, rounded once")
LIMITS: dict[str, tuple[Limit, ...]] = {
    "pool": (
        Limit("operands and result are fp16, bf16 or fp32", _floats), Limit("no dimension is empty", _filled),
    ),
}  # fmt: skip
