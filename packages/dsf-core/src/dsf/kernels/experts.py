"""Products of rows with the matrix of their expert, where only the device knows which rows are whose.

A program's loops are fixed before any number is known, so rows are moved to where fixed loops find them: each expert's
rows begin at a multiple of a tile's height, and a list says whose tile each is.

    vector  ends                        -> begin and length of each expert, its first tile     a compare of all with all
    vector  tile i                      -> its expert, and which row of x each of its rows is
    vector  rows of x by index          -> workspace, tile by tile
    matrix  tile i @ w[expert of i]     -> workspace; the expert's number is read from main memory
    vector  rows of that by index       -> y, zero past the last end

There are as many tiles as the worst division of the rows needs: one for each *height* rows and one more for each expert
that may have some. That is what is computed and timed, whatever the data: at a balanced load up to one tile for each
expert too much.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import evolve, frozen

from dsf import errors
from dsf.hdl import Chip
from dsf.intent.ir import Intent
from dsf.intent.tape import Window
from dsf.isa import Builder, Program
from dsf.isa.program import dtype_name
from dsf.kernels.compile import Compiler
from dsf.kernels.contraction import FLOATS, ROUNDING, Batch, EmitProduct, Pick, Product, Side, rows_copied_together
from dsf.kernels.indexed import rows_by_index
from dsf.kernels.kernel import Limit
from dsf.kernels.reference import plain
from dsf.kernels.rowwise import row_reduce
from dsf.kernels.target import Target
from dsf.kernels.vector import Lane, Stream, Tile, reach, vector_phase

__all__ = ["LIMITS", "ROUNDING", "emit_grouped", "reference"]

HEIGHTS = (16, 32, 64, 128)
SINGLE = torch.float32

reference = plain


@frozen
class Groups:
    """The sizes of a grouped product, and how its rows are cut into tiles."""

    rows: int
    experts: int
    depth: int
    width: int

    @classmethod
    def of(cls, intent: Intent) -> Groups:
        x, w, _ = intent.inputs
        return cls(x.shape[0], w.shape[0], x.shape[1], intent.outputs[0].shape[1])

    @property
    def height(self) -> int:
        """Rows of a tile: about those of one expert at a balanced load."""
        return next((h for h in HEIGHTS if h * self.experts >= self.rows), HEIGHTS[-1])

    @property
    def tiles(self) -> int:
        return self.rows // self.height + min(self.experts, self.rows)


def emit_grouped(emit: EmitProduct, name: str, target: Target, intent: Intent) -> Program:
    """The program of a grouped_linear; *emit* is the chip's matrix product."""
    if target.strict_layouts:
        raise errors.KernelError("DSF-K022", f"{name}: strict layouts know no block of a weight by index")
    g = Groups.of(intent)
    x, w, ends = (r.window for r in intent.inputs)
    y = intent.outputs[0].window
    b = target.builder(name)
    for title, role, window in (("x", "in", x), ("w", "in", w), ("ends", "in", ends), ("y", "out", y)):
        b.param(title, role, reach(window))
    expert, source, place, counts = _divided(b, target, g, Stream(2, "in", ends))
    padded = b.param("rows", "workspace", g.tiles * g.height * g.depth * x.dtype.itemsize)
    result = b.param("products", "workspace", g.tiles * g.height * g.width * y.dtype.itemsize)
    total = g.tiles * g.height
    rows = Window((total, g.depth), (g.depth, 1), 0, x.dtype)
    rows_by_index(b, target, Stream(0, "in", x), source, Stream(padded, "out", rows))
    emit(b, target, _product(target, intent, g, padded, result, expert))
    products = Window((total, g.width), (g.width, 1), 0, y.dtype)
    zero = 0.0

    def finish(lane: Lane, found: Tile, others: tuple[Tile, ...]) -> Tile:
        has = lane.new("gt", others[0].rows, 1, "bool", others[0], lane.constant(zero, "float32"))
        c = Compiler(target, lane, others)
        return c.apply("where", found.dtype, has, found, lane.constant(zero, found.dtype))

    rows_by_index(b, target, Stream(result, "in", products), place, Stream(3, "out", y), [counts], finish)
    return b.build()


def _product(target: Target, intent: Intent, g: Groups, rows: int, result: int, expert: Stream) -> Product:
    w, dtype = intent.inputs[1].window, dtype_name(intent.inputs[0].dtype)
    w_k, w_n = (w.stride[2], w.stride[1]) if intent.attr("transposed") else w.stride[1:]
    pick = Pick(expert.param, g.experts, w.stride[0], target.row("gather.block").name)
    return Product(
        g.height, g.width, g.depth, Side(rows, g.depth, 1, dtype), Side(1, w_k, w_n, dtype),
        Side(result, g.width, 1, dtype_name(intent.outputs[0].dtype)),
        (Batch(g.tiles, g.height * g.depth, 0, g.height * g.width),), pick=pick,
    )  # fmt: skip


def _divided(b: Builder, target: Target, g: Groups, ends: Stream) -> tuple[Stream, Stream, Stream, Stream]:
    """Phases that say which expert each tile is of, which row of x each row of a tile is, where in the tiles each row
    of x is, and whether it is anybody's. All in float32, which holds these numbers exactly."""
    e, h = g.experts, g.height
    begin, length, tiles, first, shift = (_column(b, name, e, SINGLE) for name in
                                          ("begin", "length", "tiles", "first", "shift"))  # fmt: skip
    expert, place = _column(b, "expert", g.tiles, torch.int32), _column(b, "place", g.rows, torch.int32)
    owned = _column(b, "owned", g.rows, SINGLE)
    source = Stream(b.param("source", "workspace", g.tiles * h * 4), "out",
                    Window((g.tiles, h), (h, 1), 0, torch.int32))  # fmt: skip
    step = _Step(target, g)
    own = evolve(ends, window=Window((e, 1), (ends.window.stride[0], 1), 0, ends.window.dtype))
    _phase(b, target, [_line(ends, e, e), own, begin, length, tiles], step.lengths)
    _phase(b, target, [_line(tiles, e, e), _read(begin), first, shift], step.firsts)
    lines = [_line(s, g.tiles, e) for s in (first, tiles, shift)]
    _phase(b, target, [*lines, expert, source], step.tiles)
    lines = [_line(s, g.rows, e) for s in (begin, length, shift)]
    _phase(b, target, [*lines, place, owned], step.places)
    flat = Window((g.tiles * h,), (1,), 0, torch.int32)
    index = Window((g.rows,), (1,), 0, torch.int32)
    return _read(expert), Stream(source.param, "in", flat), Stream(place.param, "in", index), _read(owned)


def _column(b: Builder, name: str, n: int, dtype: torch.dtype) -> Stream:
    return Stream(b.param(name, "workspace", n * dtype.itemsize), "out", Window((n, 1), (1, 1), 0, dtype))


def _read(column: Stream) -> Stream:
    return evolve(column, role="in")


def _line(stream: Stream, rows: int, n: int) -> Stream:
    """The *n* numbers of a column (or of a vector) as a row that stands for each of *rows*."""
    w = stream.window
    return Stream(stream.param, "in", Window((rows, n), (0, w.stride[0]), 0, w.dtype), stream.offset)


def _phase(b: Builder, target: Target, streams: Sequence[Stream], compute: object) -> None:
    assert callable(compute)
    vector_phase(b, target, streams, compute, whole_rows=True, rows_apart=True)


@frozen
class _Step:
    """What each phase of the division computes for its rows."""

    target: Target
    groups: Groups

    def lengths(self, lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        """Expert e begins where the largest end before it is, and its tiles are its rows over a tile's height."""
        c, h = Compiler(self.target, lane, tiles), self.groups.height
        line, own = (self._bounded(c, t) for t in tiles)
        begin = row_reduce(lane, "max", self._where(c, self._before(lane, line.columns), line))
        length = c.apply("max", "float32", c.apply("sub", "float32", own, begin), lane.constant(0.0, "float32"))
        more = c.apply("add", "float32", length, lane.constant(float(h - 1), "float32"))
        return (
            begin,
            length,
            c.apply("floor", "float32", c.apply("mul", "float32", more, lane.constant(1 / h, "float32"))),
        )

    def firsts(self, lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        """An expert's first tile, and how far its rows are moved."""
        c, (line, begin) = Compiler(self.target, lane, tiles), tiles
        first = row_reduce(lane, "sum", self._where(c, self._before(lane, line.columns), line))
        moved = c.apply("mul", "float32", first, lane.constant(float(self.groups.height), "float32"))
        return first, c.apply("sub", "float32", moved, begin)

    def tiles(self, lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        """Whose each tile is (the last expert's, if nobody's), and which row of x each of its rows."""
        c, g, (first, count, shift) = Compiler(self.target, lane, tiles), self.groups, tiles
        number = self._number(lane, lane.height)
        is_past = c.apply("le", "bool", c.apply("add", "float32", first, count), number)
        passed = row_reduce(lane, "sum", lane.cast(is_past, "float32"))
        expert = c.apply("min", "float32", passed, lane.constant(float(g.experts - 1), "float32"))
        moved = row_reduce(lane, "sum", self._where(c, self._inside(c, first, count, number), shift))
        start = c.apply("mul", "float32", number, lane.constant(float(g.height), "float32"))
        inner = lane.cast(lane.new("iota", 1, g.height, "int32", start=0, step=1), "float32")
        row = c.apply("add", "float32", c.apply("sub", "float32", start, moved), inner)
        return lane.cast(expert, "int32"), lane.cast(self._clipped(c, row, g.rows), "int32")

    def places(self, lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        """Where in the tiles each row of x is, and 1 where it is anybody's."""
        c, g, (begin, length, shift) = Compiler(self.target, lane, tiles), self.groups, tiles
        number = self._number(lane, lane.height)
        inside = self._inside(c, begin, length, number)
        moved = row_reduce(lane, "sum", self._where(c, inside, shift))
        owned = row_reduce(lane, "max", lane.cast(inside, "float32"))
        place = self._clipped(c, c.apply("add", "float32", number, moved), g.tiles * g.height)
        return lane.cast(place, "int32"), owned

    def _bounded(self, c: Compiler, ends: Tile) -> Tile:
        """Ends as float32, none beyond the rows or before them."""
        wide = c.lane.cast(ends, "float32")
        below = c.apply("min", "float32", wide, c.lane.constant(float(self.groups.rows), "float32"))
        return c.apply("max", "float32", below, c.lane.constant(0.0, "float32"))

    def _clipped(self, c: Compiler, row: Tile, rows: int) -> Tile:
        below = c.apply("min", "float32", row, c.lane.constant(float(rows - 1), "float32"))
        return c.apply("max", "float32", below, c.lane.constant(0.0, "float32"))

    def _number(self, lane: Lane, rows: int) -> Tile:
        """The number of each row of the tile."""
        return lane.cast(lane.new("iota", rows, 1, "int32", start=lane.row, step=1), "float32")

    def _before(self, lane: Lane, columns: int) -> Tile:
        """Whether a column is before its row's number."""
        column = lane.cast(lane.new("iota", 1, columns, "int32", start=0, step=1), "float32")
        return lane.new("lt", lane.height, columns, "bool", column, self._number(lane, lane.height))

    def _inside(self, c: Compiler, begin: Tile, length: Tile, number: Tile) -> Tile:
        """Whether a row's number is one of the *length* from *begin* on."""
        after = c.apply("sub", "float32", number, begin)
        negative = c.apply("lt", "bool", after, c.lane.constant(0.0, "float32"))
        within = c.apply("lt", "bool", after, length)
        return c.apply("gt", "bool", within, negative)

    def _where(self, c: Compiler, mask: Tile, line: Tile) -> Tile:
        return c.apply("where", "float32", mask, line, c.lane.constant(0.0, "float32"))


def _formats(chip: Chip, intent: Intent) -> bool:
    x, w, _ = intent.inputs
    return x.dtype in FLOATS and x.dtype == w.dtype == intent.outputs[0].dtype


def _whole_ends(chip: Chip, intent: Intent) -> bool:
    return intent.inputs[2].dtype in (torch.int32, torch.int64)


def _filled(chip: Chip, intent: Intent) -> bool:
    return all(r.numel for r in (*intent.inputs, *intent.outputs))


def _dense(chip: Chip, intent: Intent) -> bool:
    x, w, _ = intent.inputs
    one = any(s == 1 or n == 1 for n, s in zip(w.shape[1:], w.stride[1:], strict=True))
    return one and all(r.stride[1] == 1 or r.shape[1] == 1 for r in (x, intent.outputs[0]))


def _few_rows(chip: Chip, intent: Intent) -> bool:
    g = Groups.of(intent)
    return g.tiles * g.height < 1 << 24


def _together(chip: Chip, intent: Intent) -> bool:
    g, w = Groups.of(intent), intent.inputs[1].window
    w_k, w_n = (w.stride[2], w.stride[1]) if intent.attr("transposed") else w.stride[1:]
    dtype = dtype_name(w.dtype)
    side = Side(0, g.depth, 1, dtype)
    return rows_copied_together(chip, Product(g.height, g.width, g.depth, side, Side(1, w_k, w_n, dtype), side))


LIMITS = (
    Limit("x, w and y are fp16, bf16 or fp32, all of one format", _formats, "aclnnGroupedMatmul, supported dtypes"),
    Limit("ends are int32 or int64", _whole_ends),
    Limit("no dimension is empty", _filled),
    Limit("rows of x and y and each expert's matrix lie densely", _dense),
    Limit("rows lie no further apart than a copy can skip", _together, "DataCopy: a gap of 65535 blocks of 32 bytes"),
    Limit("all tiles have fewer than 2^24 rows, which float32 counts", _few_rows),
)
