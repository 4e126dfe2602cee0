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
from dsf.isa import Affine, Builder, Operand, Program
from dsf.kernels.kernel import Kernel, Limit
from dsf.kernels.reference import REFERENCES, ROUNDINGS
from dsf.kernels.sorting import in_rows
from dsf.kernels.target import Target
from dsf.kernels.vector import Lane, Stream, Tile, vector_program

__all__ = ["KERNELS"]

REPEAT = 32  # scores that Sort32 puts in order
QUEUES = 4
PAIR = 8  # bytes


def emit(name: str, target: Target, intent: Intent) -> Program:
    """The first of each row, as many as the result has, the largest first."""
    x, values, indices = in_rows(intent)
    count = values.shape[-1]

    def compute(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        return _Rows(lane, tiles[0].rows, -(-x.shape[-1] // REPEAT) * REPEAT).first(tiles[0], count)

    streams = [Stream(0, "in", x), Stream(1, "out", values), Stream(2, "out", indices)]
    return vector_program(target, name, streams, compute, whole_rows=True)


@frozen
class _Rows:
    """*rows* of *width* scores, whole rows of 32."""

    lane: Lane
    rows: int
    width: int

    @property
    def b(self) -> Builder:
        return self.lane.builder

    def first(self, x: Tile, count: int) -> tuple[Tile, Tile]:
        """Values and places of the first *count* of each row, in order."""
        lane, rows = self.lane, self.rows
        scores = lane.tile(rows, self.width, "float32")
        if x.columns < self.width:
            lane.op("fill", scores, value=-inf)
        lane.op("cast", evolve(scores, columns=x.columns), x)
        place = lane.new("iota", rows, self.width, "int32", start=0, step=1)
        one, other = (lane.tile(rows, 2 * self.width, "float32") for _ in range(2))
        repeats = rows * self.width // REPEAT
        scored, placed = (self.b.on(lane.space, t.offset, (repeats, REPEAT), t.dtype) for t in (scores, place))
        self.b("Sort32", self.b.on(lane.space, one.offset, (repeats, REPEAT, 2), "float32"), scored, placed)
        length = REPEAT
        while length < self.width:
            self._merge(one, other, length)
            one, other, length = other, one, length * QUEUES
        value, index = (self._half(one, count, dtype, pattern) for dtype, pattern in (("float32", 1), ("int32", 2)))
        if rows > 1:
            begin = lane.new("iota", rows, 1, "int32", start=0, step=self.width)
            lane.op("sub", index, index, begin)
        return lane.cast(value, x.dtype), lane.cast(index, "int64")

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


LIMITS = (
    Limit("scores are fp16, bf16 or fp32", _scores, "asc-devkit guide, Sort32: scores of float"),
    Limit("the largest come first", _falling, "asc-devkit guide, Sort32 and MrgSort sort downward"),
)
KERNELS = tuple(
    Kernel(name, kind, "ascend", partial(emit, name), REFERENCES[kind], LIMITS, ROUNDINGS[kind], f"aclnn{name}")
    for kind, name in (("sort", "Sort"), ("top_k", "Topk"))
)
