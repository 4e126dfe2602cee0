"""Sort and Topk on the vector unit: rows of 32 by Sort32, then four sorted queues into one by MrgSort, row by row.

Scores travel as pairs of a float32 and its place. The largest come first, so that NaN does, as torch has it; what fills
a row up to whole rows of 32 is -inf with places behind all others, and never among the first.
"""

from __future__ import annotations

from functools import partial
from math import inf

import torch
from attrs import evolve, frozen

from dsf.hdl import Chip
from dsf.intent.ir import Intent
from dsf.intent.tape import Window
from dsf.isa import Affine, Builder, Operand, Program
from dsf.kernels.indexed import rows_by_index
from dsf.kernels.kernel import Kernel, Limit
from dsf.kernels.reference import REFERENCES, ROUNDINGS
from dsf.kernels.sorting import Order, in_rows, ordered
from dsf.kernels.target import Target
from dsf.kernels.vector import Lane, Stream, Tile, declare, vector_phase

__all__ = ["KERNELS"]

REPEAT = 32  # scores that Sort32 puts in order
QUEUES = 4
PAIR = 8  # bytes


ROOM = 40  # bytes for each number: it, as float32, its place, two pairs, it and its place again


@frozen
class BySort32:
    """Whole rows by Sort32 and MrgSort, the largest first."""

    room: int = ROOM

    def __call__(self, target: Target, lane: Lane, numbers: Tile, places: Tile | None, count: int) -> tuple[Tile, Tile]:
        return _Rows(lane, numbers.rows, -(-numbers.columns // REPEAT) * REPEAT).first(numbers, places, count)


def emit(name: str, target: Target, intent: Intent) -> Program:
    """The first of each row, as many as the result has, the largest first."""
    return ordered(target, name, intent, BySort32())


def emit_whole(name: str, target: Target, intent: Intent) -> Program:
    """A row of whole numbers: sorted by one digit of 24 bits after the other, the least first, each time without
    changing the order of equal ones; a float32 holds a digit exactly."""
    x, values, indices = in_rows(intent)
    n, falling = x.shape[-1], intent.attr("descending")
    b = target.builder(name)
    declare(b, [Stream(0, "in", x), Stream(1, "out", values), Stream(2, "out", indices)])
    order = Order(target, BySort32(), (1,), torch.float32, n)
    places = order.counted(b, n)
    index = Stream(places.param, "in", Window((n,), (1,), 0, torch.int32))
    column = Window((n, 1), (1, 1), 0, torch.float32)
    digit, taken = (b.param(title, "workspace", n * 4) for title in ("digit", "taken"))
    words = x.dtype.itemsize // 4
    parts = [Stream(0, "in", Window((n, 1), (x.stride[-1] * words, 1), 0, torch.int32), word) for word in range(words)]
    for number in range(words + 1):
        key = partial(_digit, number, falling)
        place = digit if number else taken
        vector_phase(b, target, [*parts, Stream(place, "out", column)], key)
        if number:
            rows_by_index(b, target, Stream(digit, "in", column), index, Stream(taken, "out", column))
        order.rounds(b, Stream(taken, "out", Window((1, n), (n, 1), 0, torch.float32)), places)
    own, result = (Window((n, 1), (w.stride[-1], 1), 0, w.dtype) for w in (x, values))
    rows_by_index(b, target, Stream(0, "in", own), index, Stream(1, "out", result))
    where = Window((n,), (indices.stride[-1],), 0, torch.int64)
    vector_phase(b, target, [index, Stream(2, "out", where)], lambda lane, tiles: (lane.cast(tiles[0], "int64"),))
    return b.build()


def _digit(number: int, falling: bool, lane: Lane, words: tuple[Tile, ...]) -> tuple[Tile, ...]:
    """Digit *number* of 24 bits of numbers in one or two words, the last one signed: the larger first where they fall,
    else negated. Words are signed, so what is shifted out is taken away."""
    low, *high = words
    rows, columns = low.rows, low.columns

    def op(primitive: str, *operands: Tile, **scalars: int) -> Tile:
        return lane.new(primitive, rows, columns, "int32", *operands, **scalars)

    top = op("shift_right.scalar", low, value=24)
    if number == 0:
        found = op("sub", low, op("shift_left.scalar", top, value=24))
    elif not high:
        found = top
    else:
        upper = op("shift_right.scalar", high[0], value=16)
        if number == 2:
            found = upper
        else:
            lower = op("sub", high[0], op("shift_left.scalar", upper, value=16))
            negative = lane.new("lt", rows, columns, "bool", top, lane.constant(0, "int32"))
            byte = op("where", negative, op("add", top, lane.constant(256, "int32")), top)
            found = op("add", byte, op("shift_left.scalar", lower, value=8))
    key = lane.cast(found, "float32")
    return (key if falling else lane.new("neg", rows, columns, "float32", key),)


@frozen
class _Rows:
    """*rows* of *width* scores, whole rows of 32."""

    lane: Lane
    rows: int
    width: int

    @property
    def b(self) -> Builder:
        return self.lane.builder

    def first(self, x: Tile, places: Tile | None, count: int) -> tuple[Tile, Tile]:
        """Values and places of the first *count* of each row, in order; places are counted where none are given."""
        lane, rows = self.lane, self.rows
        scores = lane.tile(rows, self.width, "float32")
        if x.columns < self.width:
            lane.op("fill", scores, value=-inf)
        lane.op("cast", evolve(scores, columns=x.columns), x)
        place = lane.tile(rows, self.width, "int32")
        if places is None or x.columns < self.width:
            lane.op("iota", place, start=0, step=1)
        if places is not None:
            lane.op("cast", evolve(place, columns=x.columns), places)
        one, other = (lane.tile(rows, 2 * self.width, "float32") for _ in range(2))
        repeats = rows * self.width // REPEAT
        scored, placed = (self.b.on(lane.space, t.offset, (repeats, REPEAT), t.dtype) for t in (scores, place))
        self.b("Sort32", self.b.on(lane.space, one.offset, (repeats, REPEAT, 2), "float32"), scored, placed)
        length = REPEAT
        while length < self.width:
            self._merge(one, other, length)
            one, other, length = other, one, length * QUEUES
        value, index = (self._half(one, count, dtype, pattern) for dtype, pattern in (("float32", 1), ("int32", 2)))
        if rows > 1 and places is None:
            begin = lane.new("iota", rows, 1, "int32", start=0, step=self.width)
            lane.op("sub", index, index, begin)
        return lane.cast(value, x.dtype), index

    def _merge(self, source: Tile, result: Tile, length: int) -> None:
        """Queues of *length* in each row of *source*, four and four into one; what is left over at its end as well."""
        together = QUEUES * length
        full, rest = self.width // together, self.width % together
        with self.b.loop(self.rows) as row:
            start = row * (self.width * PAIR)
            with self.b.loop(full) as group:
                self._one(source, result, start + group * (together * PAIR), length, together)
            if rest:
                self._one(source, result, start + full * together * PAIR, length, rest)

    def _one(self, source: Tile, result: Tile, start: Affine, length: int, total: int) -> None:
        queues = [
            self._pairs(source, start + begin * PAIR, min(length, total - begin)) for begin in range(0, total, length)
        ]
        name = "Copy" if len(queues) == 1 else f"MrgSort.{len(queues)}"
        self.b(name, self._pairs(result, start, total), *queues)

    def _pairs(self, tile: Tile, start: Affine | int, count: int) -> Operand:
        return self.b.on(self.lane.space, tile.offset + start, (count, 2), "float32")

    def _half(self, pairs: Tile, count: int, dtype: str, pattern: int) -> Tile:
        """The scores, or the places, of the first *count* pairs of each row."""
        found = self.lane.tile(self.rows, count, dtype)
        source = evolve(pairs, columns=2 * count, dtype=dtype)
        own, pair = (
            t.operand(self.b, self.lane.space, self.rows, t.columns) for t in (found, source)
        )  # fmt: skip
        self.b("GatherMask", own, pair, pattern=pattern)
        return found


def _scores(chip: Chip, intent: Intent) -> bool:
    return intent.inputs[0].dtype in (torch.float16, torch.bfloat16, torch.float32)


def _falling(chip: Chip, intent: Intent) -> bool:
    return bool(intent.attr("largest" if intent.kind == "top_k" else "descending"))


def _whole_numbers(chip: Chip, intent: Intent) -> bool:
    return intent.inputs[0].dtype in (torch.int32, torch.int64)


def _one_long_row(chip: Chip, intent: Intent) -> bool:
    x = intent.inputs[0]
    return len(x.shape) == 1 and FEW < x.numel < 1 << 31


FEW = 256  # what the scalar unit has in order before the vector unit has begun
WHOLE_LIMITS = (
    Limit("numbers are int32 or int64", _whole_numbers),
    Limit("a single row of more than 256 numbers is sorted", _one_long_row),
)
LIMITS = (
    Limit("scores are fp16, bf16 or fp32", _scores, "asc-devkit guide, Sort32: scores of float"),
    Limit("the largest come first", _falling, "asc-devkit guide, Sort32 and MrgSort sort downward"),
)
KERNELS = (
    *(
        Kernel(name, kind, "ascend", partial(emit, name), REFERENCES[kind], LIMITS, ROUNDINGS[kind], f"aclnn{name}")
        for kind, name in (("sort", "Sort"), ("top_k", "Topk"))
    ),
    Kernel(
        "Sort.digits", "sort", "ascend", partial(emit_whole, "Sort.digits"), REFERENCES["sort"], WHOLE_LIMITS,
        ROUNDINGS["sort"], "aclnnSort on whole numbers; asc-devkit guide, Sort32: scores of float",
    ),
)  # fmt: skip
