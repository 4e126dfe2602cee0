"""Order and counts: sorting and the first k of a row by the scalar engine, and how many numbers lie in which part.

A row that does not fit on chip is sorted in chunks: two neighbours at a time are sorted together, in as many rounds as
there are chunks, even and odd pairs in turn. Equal numbers never cross, so that the whole is as stable as each step.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from math import inf, prod
from typing import Protocol

import torch
from attrs import evolve, frozen

from dsf.hdl import Chip
from dsf.intent.ir import Intent
from dsf.intent.tape import Window
from dsf.isa import Affine, Builder, Program, Scratch
from dsf.isa.program import affine, contiguous, dtype_name
from dsf.kernels.indexed import scalar
from dsf.kernels.kernel import Limit
from dsf.kernels.rowwise import moved_last, pieces_of, reduce_into
from dsf.kernels.target import Target
from dsf.kernels.vector import (
    Lane,
    Stream,
    Tile,
    declare,
    first_that_fits,
    params_of,
    reach,
    scratch_of,
    vector_phase,
)  # fmt: skip

__all__ = ["LIMITS", "ByScalar", "Order", "Sorter", "edges", "histogram", "in_rows", "ordered", "sort", "top_k"]


def sort(target: Target, intent: Intent, name: str = "sort") -> Program:
    """Values and indices in order along one dimension; equal ones keep their order, NaN is the largest."""
    return ordered(target, name, intent, ByScalar.of(intent.attr("descending"), intent.inputs[0].dtype))


def top_k(target: Target, intent: Intent, name: str = "top_k") -> Program:
    """The k largest (or smallest) along one dimension, in their order."""
    return ordered(target, name, intent, ByScalar.of(intent.attr("largest"), intent.inputs[0].dtype))


def in_rows(intent: Intent) -> tuple[Window, Window, Window]:
    """Numbers, values and indices, with the dimension that is ordered as the last one."""
    x, values, indices = (_row(r.window, intent.attr("dim")) for r in (*intent.inputs, *intent.outputs))
    return x, values, indices


def _row(window: Window, dim: int) -> Window:
    """The window with *dim* last; a single number is a row of one."""
    if not window.shape:
        return evolve(window, shape=(1,), stride=(1,))
    return moved_last(window, (dim,))


class Sorter(Protocol):
    """How whole rows are put in order on chip: *room* bytes are taken for each number of them."""

    @property
    def room(self) -> int: ...

    def __call__(self, target: Target, lane: Lane, numbers: Tile, places: Tile | None, count: int) -> tuple[Tile, Tile]:
        """The first *count* of each row in order, and their int32 *places*, which are counted where none are given."""


@frozen
class ByScalar:
    """By an instruction of the scalar engine that says where the numbers stand, and one that takes them."""

    primitive: str
    room: int

    @classmethod
    def of(cls, descending: bool, dtype: torch.dtype) -> ByScalar:
        """For numbers of *dtype*: they, their places and their order before, they and their places behind."""
        return cls("order.descending" if descending else "order.ascending", 2 * dtype.itemsize + 12)

    def __call__(self, target: Target, lane: Lane, numbers: Tile, places: Tile | None, count: int) -> tuple[Tile, Tile]:
        order = lane.tile(numbers.rows, numbers.columns, "int32")
        scalar(target, lane, self.primitive, (order, order.columns), (numbers, numbers.columns))
        found = self._taken(target, lane, numbers, order, count)
        if places is None:
            return found, evolve(order, columns=count)
        return found, self._taken(target, lane, places, order, count)

    def _taken(self, target: Target, lane: Lane, tile: Tile, order: Tile, count: int) -> Tile:
        found = lane.tile(tile.rows, count, tile.dtype)
        scalar(target, lane, "take", (found, count), (tile, tile.columns), (order, count))
        return found


def ordered(target: Target, name: str, intent: Intent, sorter: Sorter) -> Program:
    """The program of a sort or a top_k: the first numbers in order, as many as are wanted, by *sorter*."""
    x, values, indices = in_rows(intent)
    order = Order(target, sorter, x.shape[:-1], x.dtype, values.shape[-1])
    streams = [Stream(0, "in", x), Stream(1, "out", values), Stream(2, "out", indices)]
    long = order.in_pieces if order.wanted * 4 <= order.chunk() else order.in_chunks
    ways = [partial(order.at_once, streams), partial(long, streams)]
    return first_that_fits(target, name, params_of(streams), ways)


@frozen
class Order:
    """How rows of numbers are ordered, *lead* rows of them, and how many numbers of each are wanted."""

    target: Target
    sorter: Sorter
    lead: tuple[int, ...]
    dtype: torch.dtype
    wanted: int

    def at_once(self, streams: list[Stream], b: Builder) -> None:
        """Rows that fit on chip."""

        def compute(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
            found, places = self.sorter(self.target, lane, tiles[0], None, self.wanted)
            return found, lane.cast(places, "int64")

        vector_phase(b, self.target, streams, compute, whole_rows=True)

    def chunk(self) -> int:
        """Half of what is sorted together."""
        return max(1, self.target.chip.memories[scratch_of(self.target)].nbytes * 7 // 8 // self.sorter.room // 2)

    def in_pieces(self, streams: list[Stream], b: Builder) -> None:
        """The first few of long rows: those of each piece, then those of what the pieces leave, until all fit."""
        lead, size, source = self.lead, 2 * self.chunk(), streams[0]
        places: Stream | None = None
        if prod(lead) == 0 or self.wanted == 0:
            return
        while (n := source.window.shape[-1]) > size:
            pieces = [(0, n // size, size), (n // size * size, 1, n % size)][: 1 + (n % size > 0)]
            kept = sum(count * min(self.wanted, length) for _, count, length in pieces)
            left = Window((*lead, kept), contiguous((*lead, kept)), 0, self.dtype)
            where = evolve(left, dtype=torch.int32)
            sides = [b.param(w, "workspace", reach(p)) for w, p in (("numbers", left), ("places", where))]
            for at, (first, count, length) in enumerate(pieces):
                k = min(self.wanted, length)
                begin = at * pieces[0][1] * self.wanted
                inputs = [pieces_of(s, first, count, size, length) for s in (source, places) if s is not None]
                results = [pieces_of(Stream(p, "out", w), begin, count, k, k)
                           for p, w in zip(sides, (left, where), strict=True)]  # fmt: skip
                of_piece = partial(self._piece, first, size, k)
                vector_phase(b, self.target, [*inputs, *results], of_piece, whole_rows=True, rows_apart=True)
            source, places = Stream(sides[0], "in", left), Stream(sides[1], "in", where)
        assert places is not None, "a row that fits is ordered at once"

        def compute(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
            found, where = self.sorter(self.target, lane, tiles[0], tiles[1], self.wanted)
            return found, lane.cast(where, "int64")

        vector_phase(b, self.target, [source, places, *streams[1:]], compute, whole_rows=True)

    def _piece(self, first: int, size: int, k: int, lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        """The first *k* of each piece with their places in the whole row, which for numbers fresh from it are counted:
        piece p of *size* begins at *first* + p * size."""
        numbers, *places = tiles
        found, where = self.sorter(self.target, lane, numbers, places[0] if places else None, k)
        if places:
            return found, where
        begin = lane.new("iota", numbers.rows, 1, "int32", start=lane.row * size + first, step=size)
        return found, lane.new("add", numbers.rows, k, "int32", where, begin)

    def in_chunks(self, streams: list[Stream], b: Builder) -> None:
        """Rows of any length, by way of workspaces for numbers and places."""
        n = streams[0].window.shape[-1]
        if prod(self.lead) == 0 or self.wanted == 0:
            return
        shape = (*self.lead, n)
        numbers = Stream(b.param("numbers", "workspace", prod(shape) * self.dtype.itemsize), "out",
                         Window(shape, contiguous(shape), 0, self.dtype))  # fmt: skip
        vector_phase(b, self.target, [streams[0], numbers], _as_it_is)
        places = self.counted(b, n)
        self.rounds(b, numbers, places)
        cut = (*self.lead, self.wanted)
        found, where = (evolve(s, role="in", window=evolve(s.window, shape=cut)) for s in (numbers, places))
        vector_phase(b, self.target, [found, streams[1]], _as_it_is)
        vector_phase(b, self.target, [where, streams[2]], lambda lane, tiles: (lane.cast(tiles[0], "int64"),))

    def counted(self, b: Builder, n: int) -> Stream:
        """The places of *n* numbers in each row, in a workspace."""
        line, shape = Window((n,), (1,), 0, torch.int32), (*self.lead, n)
        once = b.param("counted", "workspace", reach(line))
        vector_phase(b, self.target, [Stream(once, "out", line)], self._count)
        every = Window(shape, contiguous(shape), 0, torch.int32)
        places = Stream(b.param("places", "workspace", reach(every)), "out", every)
        spread = Stream(once, "in", evolve(every, stride=(*(0 for _ in self.lead), 1)))
        vector_phase(b, self.target, [spread, places], _as_it_is)
        return places

    def rounds(self, b: Builder, numbers: Stream, places: Stream) -> None:
        """Phases that put dense rows of *numbers* and their *places* in order where they lie."""
        n, size = numbers.window.shape[-1], self.chunk()
        for turn in range(-(-n // size)):
            for first, count, length in _pairs(turn % 2 * size, n, size):
                results = [pieces_of(s, first, count, 2 * size, length) for s in (numbers, places)]
                both = [evolve(s, role="in") for s in results]
                vector_phase(b, self.target, [*both, *results], self._pair, whole_rows=True)

    def _count(self, lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        return (lane.new("iota", 1, lane.width, "int32", start=lane.column, step=1),)

    def _pair(self, lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        return self.sorter(self.target, lane, tiles[0], tiles[1], tiles[0].columns)


def _as_it_is(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
    return tiles


def _pairs(start: int, n: int, size: int) -> list[tuple[int, int, int]]:
    """(first, count, length) of the neighbours from *start* on, then of what is left over."""
    count = (n - start) // (2 * size)
    rest = (n - start) % (2 * size)
    found = [(start, count, 2 * size)] if count else []
    return [*found, (start + count * 2 * size, 1, rest)] if rest > (size if start or count else 0) else found


def histogram(target: Target, intent: Intent, name: str = "histogram") -> Program:
    """How many numbers lie in each of equal parts: those not below each part's first number are counted, and each
    count less the next one is a part's own."""
    x, y = intent.inputs[0].window, intent.outputs[0].window
    firsts = edges(intent.attr("low"), intent.attr("high"), intent.attr("bins"), x.dtype)
    b = target.builder(name)
    declare(b, [Stream(0, "in", x), Stream(1, "out", y)])
    n = prod(x.shape)
    flat = Window((n,), (1,), 0, x.dtype)
    source = b.param("flat", "workspace", reach(flat))
    lying = Window(x.shape, contiguous(x.shape), 0, x.dtype)
    vector_phase(b, target, [Stream(0, "in", x), Stream(source, "out", lying)], _as_it_is)
    piece = max(1, min(PIECE, n))
    parts = -(-n // piece)
    counts = Window((parts, len(firsts)), (len(firsts), 1), 0, torch.float32)
    place = b.param("counts", "workspace", reach(counts))
    with b.phase(target.core_of(target.row("load"))):
        for start, count, length in ((0, n // piece, piece), (n // piece, 1, n % piece)):
            if length:
                numbers = Stream(source, "in", flat, start * piece)
                counted = Stream(place, "out", counts, start * len(firsts))
                with b.nest(i=count) as (i,):
                    _count_piece(target, b, numbers, counted, i, length, piece, firsts)
    total = b.param("total", "workspace", len(firsts) * 4)
    sums = Window((len(firsts), 1), (1, 1), 0, torch.float32)
    reduce_into(b, target, "sum", place, counts, (0,), Stream(total, "out", sums))
    each = Window((len(firsts) - 1,), (1,), 0, torch.float32)
    result = Stream(1, "out", y)

    def compute(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        own = lane.new("sub", tiles[0].rows, tiles[0].columns, "float32", *tiles)
        return (lane.cast(own, dtype_name(y.dtype)),)

    vector_phase(b, target, [Stream(total, "in", each), Stream(total, "in", each, 1), result], compute)
    return b.build()


PIECE = 128  # numbers that are compared with all edges at once
MOST_BINS = 256


def _count_piece(
    target: Target, b: Builder, source: Stream, result: Stream, at: Affine, length: int, piece: int,
    firsts: tuple[float, ...],
) -> None:  # fmt: skip
    """One block: how many of *length* numbers are not below each edge."""
    load, store = target.row("load"), target.row("store")
    lane = Lane(target, b, Scratch(target.chip, scratch_of(target)), load.engine, store.engine)
    bins = len(firsts)
    tile = lane.tile(1, length, dtype_name(source.window.dtype))
    item = source.window.dtype.itemsize
    offset = at * (piece * item) + source.offset * item
    b(load.name, tile.operand(b, lane.space, 1, length), b.gm(source.param, offset, (1, length), tile.dtype))
    numbers = lane.cast(tile, "float32")
    least = _column(lane, firsts)
    reached = lane.new("ge", bins, length, "bool", numbers, least)
    counted = lane.cast(reached, "float32")
    total = lane.new("reduce.sum", bins, 1, "float32", counted)
    lane.leave(0)
    place = b.gm(result.param, at * (bins * 4) + result.offset * 4, (bins, 1), "float32", (1, 1))
    b(store.name, place, total.operand(b, lane.space, bins, 1))
    b.order(store.engine, load.engine, 1)


def _column(lane: Lane, values: tuple[float, ...]) -> Tile:
    """A column of these numbers: a ramp in one instruction, others one by one, each in a burst of its own."""
    steps = {b - a for a, b in pairwise(values)}
    if len(steps) == 1 and all(v == int(v) for v in values):
        column = lane.new("iota", len(values), 1, "int32", start=int(values[0]), step=int(steps.pop()))
        return lane.cast(column, "float32")
    pitch = max(1, lane.scratch.memory.alignment // 4)
    base = lane.scratch.take(len(values) * pitch * 4, "edges")
    for n, value in enumerate(values):
        lane.op("fill", Tile(affine(base + n * pitch * 4), 1, 1, 1, "float32"), value=value)
    return Tile(affine(base), len(values), 1, pitch, "float32")


def edges(low: float, high: float, bins: int, dtype: torch.dtype) -> tuple[float, ...]:
    """The least number of *dtype* in each part, then the least one beyond the last, each as a float32: what torch's
    histc, in float64, puts there: trunc((x - low) * bins / (high - low)), *high* itself into the last part."""
    whole = not dtype.is_floating_point
    below, above = (int(low) - 1, int(high) + 1) if whole else (_rank(low), _rank(high))
    if not whole:
        below, above = below - 2, above + 2
    least = torch.full((bins + 1,), below, dtype=torch.int64)
    most = torch.full((bins + 1,), above, dtype=torch.int64)
    wanted = torch.arange(bins + 1)
    while bool((most - least > 1).any()):
        middle = (least + most).div(2, rounding_mode="floor")
        x = middle.double() if whole else _unranked(middle)
        part = ((x - low) * bins / (high - low)).trunc()
        reached = torch.where(x > high, bins, torch.where(x < low, -1, part.clamp(max=bins - 1))) >= wanted
        most, least = torch.where(reached, middle, most), torch.where(reached, least, middle)
    return tuple((most.double() if whole else _unranked(most)).tolist())


def _rank(value: float) -> int:
    """Where the float32 nearest to *value* stands among all float32."""
    bits = int(torch.tensor(value, dtype=torch.float32).view(torch.int32).item())
    return bits if bits >= 0 else -(bits & 0x7FFFFFFF)


def _unranked(ranks: torch.Tensor) -> torch.Tensor:
    size = ranks.abs().to(torch.int32).view(torch.float32).double()
    return torch.where(ranks < 0, -size, size)


def _stated(chip: Chip, intent: Intent) -> bool:
    low, high = intent.attr("low"), intent.attr("high")
    return bool(low < high) and max(abs(low), abs(high)) <= EXACT and high - low < inf


def _few(chip: Chip, intent: Intent) -> bool:
    return bool(0 < intent.attr("bins") <= MOST_BINS)


def _counted(chip: Chip, intent: Intent) -> bool:
    return 0 < intent.inputs[0].numel <= EXACT


def _in_single(chip: Chip, intent: Intent) -> bool:
    return intent.inputs[0].dtype != torch.float64


EXACT = 1 << 24  # float32 holds all whole numbers up to here
LIMITS: dict[str, tuple[Limit, ...]] = {
    "histogram": (
        Limit("numbers are of 64 bits only where they are whole", _in_single),
        Limit("low and high are stated, apart, and no further from zero than 2^24", _stated),
        Limit("there are 1 to 256 parts", _few),
        Limit("1 to 2^24 numbers are counted", _counted),
    ),
}  # fmt: skip
"""What the generators here ask of an intent, whatever the chip."""
