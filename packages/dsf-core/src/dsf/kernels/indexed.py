"""Movement by index: whole rows of main memory by indexed copies, single numbers of a row on chip.

Every kind here is one picture. A *table* has rows that an index names; what is picked (or put) lies beside it with the
index's own dimensions. Dimensions that the table and the other side share are blocks, or, where they lie densely, the
row's content. Where a row of the table is one number only, a line of the table is brought on chip and the scalar engine
takes numbers of it, or puts them there. What is put goes in order, one block for each line: the last of equals wins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import gcd, prod

import torch
from attrs import evolve, frozen

from dsf.hdl import Chip
from dsf.intent.ir import Intent
from dsf.intent.tape import Region, Window
from dsf.isa import Builder, Program
from dsf.isa.program import contiguous, dtype_name
from dsf.kernels.compile import Compiler, as_bits
from dsf.kernels.contraction import merged
from dsf.kernels.kernel import Limit
from dsf.kernels.target import Target
from dsf.kernels.vector import Lane, Params, Stream, Tile, first_that_fits, reach, scratch_of, vector_phase

__all__ = ["LIMITS", "gather", "index", "index_put", "kv_append", "pick", "rows_by_index", "scatter"]

EXACT = 1 << 24  # float32 holds all whole numbers up to here
WORTH = 64  # numbers of a line that are brought on chip for each one that is taken


@frozen
class Dim:
    """A dimension that is walked: its size and the strides of the table, of the other side and of each index."""

    n: int
    table: int
    other: int
    index: tuple[int, ...]


@frozen
class Side:
    """A parameter in main memory, as whole numbers of its width where chips only store its format."""

    param: int
    window: Window

    @classmethod
    def of(cls, param: int, window: Window) -> Side:
        return cls(param, as_bits(Stream(param, "in", window)).window)


@frozen
class Picks:
    """What is picked or put: the two sides, the indices, the dimensions of the table that they take as (size, stride),
    those that stay and those of the index. *wraps*: an index may count from the end."""

    table: Side
    other: Side
    index: tuple[Side, ...]
    taken: tuple[tuple[int, int], ...]
    rest: tuple[Dim, ...]
    at: tuple[Dim, ...]
    wraps: bool

    @property
    def step(self) -> int:
        """Elements from row to row of the table."""
        return gcd(*(stride for n, stride in self.taken if n > 1)) or 1

    @property
    def rows(self) -> int:
        """Rows of the table that an index may name; several indices name one by the sum of their steps."""
        if len(self.taken) == 1:
            return self.taken[0][0]
        return 1 + sum((n - 1) * stride for n, stride in self.taken) // self.step if self.numel else 0

    @property
    def numel(self) -> int:
        return prod(n for n, _ in self.taken)

    def content(self) -> tuple[list[Dim], Dim]:
        """The dimensions that stay, without the last dense run that no index depends on, and that run."""
        none = (0,) * len(self.index)
        free = [d for d in self.rest if d.index == none]
        runs = merged(tuple(d.n for d in free), tuple(d.table for d in free), tuple(d.other for d in free))
        bound = [d for d in self.rest if d.index != none]
        dims = [Dim(n, table, other, none) for n, table, other in runs]
        if dims and dims[-1].table == 1 and (len(self.taken) == 1 or self.step >= dims[-1].n):
            return bound + dims[:-1], dims[-1]
        return bound + dims, Dim(1, 1, 1, none)

    def index_runs(self) -> list[Dim]:
        """The index's dimensions, joined where all walk two of them as one; at least one."""
        strides = [tuple(d.index[k] for d in self.at) for k in range(len(self.index))]
        runs = merged(tuple(d.n for d in self.at), *strides, tuple(d.other for d in self.at))
        dims = [Dim(n, 0, other, tuple(steps)) for n, *steps, other in runs]
        return dims or [Dim(1, 0, 0, (0,) * len(self.index))]


def index(target: Target, intent: Intent, name: str = "index") -> Program:
    """y = x[..., index, ...]."""
    picks = _indexed(intent, intent.inputs[0], intent.outputs[0], len(intent.inputs))
    return pick(target, picks, name, _params(intent))


def gather(target: Target, intent: Intent, name: str = "gather") -> Program:
    """torch.gather(x, dim, index)."""
    x, ids = intent.inputs
    picks = _along(intent.attr("dim"), Side.of(0, x.window), Side.of(2, intent.outputs[0].window), Side(1, ids.window))
    return pick(target, picks, name, _params(intent))


def scatter(target: Target, intent: Intent, name: str = "scatter") -> Program:
    """y = x, then numbers of src (or one value) set or added where the index says."""
    ids, has_src = intent.inputs[1].window, intent.attr("has_src")
    source = intent.inputs[2].window if has_src else evolve(ids, dtype=intent.outputs[0].dtype)
    y = Side.of(len(intent.inputs), intent.outputs[0].window)
    picks = _along(intent.attr("dim"), y, Side.of(2, source), Side(1, ids))
    return _put(target, intent, picks, name, intent.attr("reduce") == "add", None if has_src else intent.attr("value"))


def index_put(target: Target, intent: Intent, name: str = "index_put") -> Program:
    """y = x, then y[..., index, ...] = src, or += src."""
    picks = _indexed(intent, intent.outputs[0], intent.inputs[1], 1, first=2)
    picks = evolve(picks, table=Side.of(len(intent.inputs), intent.outputs[0].window))
    return _put(target, intent, picks, name, intent.attr("accumulate"))


def kv_append(target: Target, intent: Intent, name: str = "kv_append") -> Program:
    """The cache with new rows written at their places along one dimension."""
    dim, ids = intent.attr("dim"), intent.inputs[2].window
    y, new = Side.of(3, intent.outputs[0].window), Side.of(1, intent.inputs[1].window)
    spread = tuple(ids.stride[0] if d == dim and ids.shape else 0 for d in range(len(new.window.shape)))
    index = Side(2, Window(new.window.shape, spread, 0, ids.dtype))
    return _put(target, intent, _along(dim, y, new, index), name, add=False)


def _params(intent: Intent) -> Params:
    """(name, role, bytes) of a program's parameters."""
    named = [(f"in{n}", "in", reach(r.window)) for n, r in enumerate(intent.inputs)]
    return [*named, *((f"out{n}", "out", reach(r.window)) for n, r in enumerate(intent.outputs))]


def _indexed(intent: Intent, table: Region, other: Region, param: int, first: int = 1) -> Picks:
    """What an advanced index takes of *table*: the index's dimensions stand in *other* where the first one that is
    taken stood, or in front where those are not neighbours."""
    dims = intent.attr("dims")
    t, o = table.window, other.window
    ids = [r.window for r in intent.inputs[first : first + len(dims)]]
    rank = len(ids[0].shape)
    start = dims[0] if dims == tuple(range(dims[0], dims[-1] + 1)) else 0
    none = (0,) * len(ids)
    stays = [d for d in range(len(t.shape)) if d not in dims]
    beside = [d for d in range(len(o.shape)) if not start <= d < start + rank]
    rest = tuple(Dim(t.shape[d], t.stride[d], o.stride[e], none) for d, e in zip(stays, beside, strict=True))
    at = tuple(
        Dim(ids[0].shape[k], 0, o.stride[start + k], tuple(w.stride[k] for w in ids)) for k in range(rank)
    )  # fmt: skip
    sides = tuple(Side(first + k, w) for k, w in enumerate(ids))
    taken = tuple((t.shape[d], t.stride[d]) for d in dims)
    return Picks(Side.of(0, t), Side.of(param, o), sides, taken, rest, at, wraps=True)


def _along(dim: int, table: Side, other: Side, index: Side) -> Picks:
    """What an index of *table*'s rank takes along *dim*; the others are walked as far as the index goes."""
    t, o, w = table.window, other.window, index.window
    walked = [Dim(n, t.stride[d], o.stride[d], (w.stride[d],)) for d, n in enumerate(w.shape)]
    at = evolve(walked[dim], table=0)
    rest = (*walked[:dim], *walked[dim + 1 :])
    rest = tuple(evolve(d, index=(0,)) if d.n == 1 else d for d in rest)
    return Picks(table, other, (index,), ((t.shape[dim], t.stride[dim]),), rest, (at,), wraps=False)


def pick(target: Target, picks: Picks, name: str, params: Params) -> Program:
    """The program that brings what the indices name, in the way that suits."""
    _, content = picks.content()
    ways: list[Callable[[Builder, Target, Picks], None]] = [_pick_rows]
    if content.n == 1 and picks.rows <= WORTH * prod(d.n for d in picks.at):
        ways.insert(0, _pick_on_chip)
    return first_that_fits(target, name, params, [partial(_with, way, target, picks) for way in ways])


def _with(way: Callable[[Builder, Target, Picks], None], target: Target, picks: Picks, b: Builder) -> None:
    way(b, target, picks)


def _streams(dims: Sequence[Dim], sides: Sequence[tuple[Side, str, Callable[[Dim], int]]]) -> list[Stream]:
    """One stream over *dims* for each (side, role, stride of a dimension)."""
    shape = tuple(d.n for d in dims)
    return [
        Stream(side.param, role, Window(shape, tuple(step(d) for d in dims), 0, side.window.dtype))
        for side, role, step in sides
    ]


def _index_sides(picks: Picks) -> list[tuple[Side, str, Callable[[Dim], int]]]:
    return [(side, "in", partial(_index_step, k)) for k, side in enumerate(picks.index)]


def _index_step(k: int, dim: Dim) -> int:
    return dim.index[k]


def _pick_rows(b: Builder, target: Target, picks: Picks) -> None:
    """Rows of the table by indexed copies."""
    lead, content = picks.content()
    dims = [*lead, *picks.index_runs()]
    dtype = dtype_name(picks.table.window.dtype)
    for start, width in _parts(target, content.n, picks.table.window.dtype):
        part = evolve(content, n=width)
        streams = _streams([*dims, part], [*_index_sides(picks), (picks.other, "out", lambda d: d.other)])
        *ids, out = streams
        ids = [_one_column(s) for s in ids]
        out = evolve(out, offset=start * content.other)
        table = _table_stream(picks, [*dims, part], start * content.table, "in")

        def compute(lane: Lane, tiles: tuple[Tile, ...], width: int = width) -> tuple[Tile, ...]:
            return (fetched(target, lane, places(target, lane, tiles, picks), width, dtype),)

        vector_phase(b, target, [*ids, table, out], compute, whole_rows=True, rows_apart=True)


def _table_stream(picks: Picks, dims: Sequence[Dim], offset: int, role: str) -> Stream:
    step = picks.taken[0][1] if len(picks.taken) == 1 else picks.step
    (stream,) = _streams(dims, [(picks.table, role, lambda d: d.table)])
    return evolve(stream, table=(picks.rows, step), offset=offset)


def _one_column(stream: Stream) -> Stream:
    """An index has one number for a row, however wide the row is."""
    w = stream.window
    return evolve(stream, window=evolve(w, shape=(*w.shape[:-1], 1), stride=(*w.stride[:-1], 1)))


def _parts(target: Target, columns: int, dtype: torch.dtype) -> list[tuple[int, int]]:
    """(start, columns) of what fits on chip of a row, with room for a row before and one behind."""
    most = target.chip.memories[scratch_of(target)].nbytes // (4 * dtype.itemsize)
    return [(start, min(most, columns - start)) for start in range(0, columns, most)]


def fetched(target: Target, lane: Lane, place: Tile, columns: int, dtype: str) -> Tile:
    """Rows of the lane's first table by the indices in *place*."""
    found = lane.tile(lane.height, columns, dtype)
    if lane.current is not None:
        lane.switch(lane.inbound)
    own, index = (t.operand(lane.builder, lane.space, lane.height, t.columns) for t in (found, place))
    lane.builder(target.row("gather").name, own, lane.tables[0], index)
    return found


Finish = Callable[[Lane, Tile, tuple[Tile, ...]], Tile]


def rows_by_index(
    b: Builder, target: Target, table: Stream, index: Stream, result: Stream, others: Sequence[Stream] = (),
    finish: Finish | None = None,
) -> None:  # fmt: skip
    """One phase: result (m, C) = table (n, C) at index (m), rows of *table* being dense. *finish* makes of what is
    found, and of the tiles of *others* (m, 1), what is stored."""
    (n, columns), step = table.window.shape, table.window.stride[0]
    m = index.window.shape[0]
    for start, width in _parts(target, columns, table.window.dtype):
        ids = evolve(index, window=evolve(index.window, shape=(m, 1), stride=(index.window.stride[0], 1)))
        source = Window((m, width), (0, 1), 0, table.window.dtype)
        rows = evolve(table, window=source, offset=table.offset + start, table=(n, step))
        out = evolve(
            result, window=evolve(result.window, shape=(m, width)),
            offset=result.offset + start * result.window.stride[1],
        )  # fmt: skip

        def compute(lane: Lane, tiles: tuple[Tile, ...], width: int = width) -> tuple[Tile, ...]:
            found = fetched(target, lane, tiles[0], width, dtype_name(table.window.dtype))
            return (finish(lane, found, tiles[1:]) if finish is not None else found,)

        vector_phase(b, target, [ids, *others, rows, out], compute, whole_rows=True, rows_apart=True)


def _pick_on_chip(b: Builder, target: Target, picks: Picks) -> None:
    """Lines of the table on chip, and numbers of them."""
    lead, _ = picks.content()
    *outer, last = picks.index_runs() if len(picks.taken) == 1 else list(picks.at) or picks.index_runs()
    dims = [*lead, *outer, last]
    dtype = dtype_name(picks.table.window.dtype)
    *ids, out = _streams(dims, [*_index_sides(picks), (picks.other, "out", lambda d: d.other)])

    def compute(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        place = places(target, lane, tiles[1:], picks)
        found = lane.tile(lane.height, last.n, dtype)
        scalar(target, lane, "take", (found, last.n), (tiles[0], tiles[0].columns), (place, last.n))
        return (found,)

    vector_phase(b, target, [_line(picks, [*lead, *outer], "in"), *ids, out], compute, whole_rows=True)


def _line(picks: Picks, dims: Sequence[Dim], role: str) -> Stream:
    """The numbers of the table that an index may name, as a row."""
    step = picks.taken[0][1] if len(picks.taken) == 1 else picks.step
    (stream,) = _streams([*dims, Dim(picks.rows, step, 0, ())], [(picks.table, role, lambda d: d.table)])
    return stream


def scalar(target: Target, lane: Lane, primitive: str, *operands: tuple[Tile, int]) -> None:
    """One instruction on whole rows of (tile, columns), which are longer than a vector instruction's may be."""
    row = target.row(primitive, operands[-1][0].dtype if primitive in ("take", "put", "put.add") else None)
    lane.switch(row.engine)
    height = operands[0][0].rows
    lane.builder(row.name, *(t.operand(lane.builder, lane.space, height, columns) for t, columns in operands))


def places(target: Target, lane: Lane, ids: tuple[Tile, ...], picks: Picks) -> Tile:
    """Which row of the table each set of indices names. Those that name none name one that does not exist."""
    if not picks.wraps:
        return ids[0]
    rows, whole = picks.rows, picks.rows < EXACT and all(n < EXACT for n, _ in picks.taken)
    working = "float32" if whole else "int64"  # which every vector engine computes, or else the scalar one
    c = Compiler(target, lane, ids)

    def number(value: int) -> Tile:
        return lane.constant(value, working)

    total: Tile | None = None
    for (n, stride), tile in zip(picks.taken, ids, strict=True):
        place = lane.cast(tile, working)
        behind = c.apply("lt", "bool", place, number(0))
        place = c.apply("where", working, behind, c.apply("add", working, place, number(n)), place)
        inside = c.apply("lt", "bool", place, number(n))
        reached = place
        if len(picks.taken) > 1:
            reached = c.apply("mul", working, place, number(stride // picks.step if n > 1 else 0))
        place_or_none = c.apply("where", working, inside, reached, number(rows))
        inside = c.apply("ge", "bool", place, number(0))
        own = c.apply("where", working, inside, place_or_none, number(rows))
        total = own if total is None else c.apply("add", working, total, own)
    assert total is not None, "there is an index"
    return lane.cast(c.apply("min", working, total, number(rows)), "int32" if whole else "int64")


def _put(target: Target, intent: Intent, picks: Picks, name: str, add: bool, value: float | None = None) -> Program:
    """y = x where they are not one, then what is put, in order."""
    params = list(_params(intent))
    x, y = intent.inputs[0], intent.outputs[0]
    same = (x.buffer, x.offset, x.shape, x.stride) == (y.buffer, y.offset, y.shape, y.stride)
    if same:
        params[-1] = ("out0", "inout", params[-1][2])
    lead, content = picks.content()
    apart = len(picks.taken) > 1 and bool(lead)
    on_chip = not apart and content.n == 1 and picks.rows <= WORTH * max(1, prod(d.n for d in picks.at))

    def way(emit: Callable[..., None], b: Builder) -> None:
        result = Stream(len(intent.inputs), "out", y.window)
        if not same:
            _copy(b, target, Stream(0, "in", x.window), result)
        own = _in_order(b, target, picks)
        turned = _taken_first(b, own) if apart else own
        if all(d.n for d in (*own.rest, *own.at)):
            if apart:
                _copy(b, target, *_turned(own, turned))
            emit(b, target, turned, add, value)
            if apart:
                _copy(b, target, *_turned(turned, own))

    ways = [_put_on_chip, _put_rows] if on_chip else [_put_rows]
    return first_that_fits(target, name, params, [partial(way, emit) for emit in ways])


def _taken_first(b: Builder, picks: Picks) -> Picks:
    """The same on a workspace in which the dimensions that are taken come first, so that no two lines of the table
    interleave and what stays is the content of a row."""
    shape = (*(n for n, _ in picks.taken), *(d.n for d in picks.rest))
    window = Window(shape, contiguous(shape), 0, picks.table.window.dtype)
    place = b.param("turned", "workspace", reach(window))
    k = len(picks.taken)
    taken = tuple((n, stride) for (n, _), stride in zip(picks.taken, window.stride, strict=False))
    rest = tuple(evolve(d, table=stride) for d, stride in zip(picks.rest, window.stride[k:], strict=True))
    return evolve(picks, table=Side(place, window), taken=taken, rest=rest)


def _turned(source: Picks, result: Picks) -> tuple[Stream, Stream]:
    """The copy from one order of the table's dimensions to the other."""
    sides = []
    for picks, role in ((source, "in"), (result, "out")):
        shape = (*(n for n, _ in picks.taken), *(d.n for d in picks.rest))
        stride = (*(step for _, step in picks.taken), *(d.table for d in picks.rest))
        sides.append(Stream(picks.table.param, role, Window(shape, stride, 0, picks.table.window.dtype)))
    return sides[0], sides[1]


def _copy(b: Builder, target: Target, source: Stream, result: Stream) -> None:
    vector_phase(b, target, [as_bits(source), as_bits(result)], lambda lane, tiles: tiles)


def _in_order(b: Builder, target: Target, picks: Picks) -> Picks:
    """The same with an index of one dimension: what does not lie so is copied into workspaces first."""
    if len(picks.index_runs()) == 1:
        return picks
    shape = tuple(d.n for d in picks.at)
    sides = []
    for k, side in enumerate(picks.index):
        window = Window(shape, contiguous(shape), 0, side.window.dtype)
        place = b.param(f"index{k}", "workspace", reach(window))
        own = Window(shape, tuple(d.index[k] for d in picks.at), 0, side.window.dtype)
        _copy(b, target, Stream(side.param, "in", own), Stream(place, "out", window))
        sides.append(Side(place, window))
    rest = tuple(d.n for d in picks.rest)
    window = Window((*shape, *rest), contiguous((*shape, *rest)), 0, picks.other.window.dtype)
    own = Window(window.shape, tuple(d.other for d in (*picks.at, *picks.rest)), 0, window.dtype)
    place = b.param("source", "workspace", reach(window))
    _copy(b, target, Stream(picks.other.param, "in", own), Stream(place, "out", window))
    at = tuple(
        Dim(n, 0, stride, (step,) * len(sides))
        for n, stride, step in zip(shape, window.stride, contiguous(shape), strict=False)
    )
    kept = tuple(evolve(d, other=s) for d, s in zip(picks.rest, window.stride[len(shape) :], strict=True))
    return evolve(picks, other=Side(place, window), index=tuple(sides), at=at, rest=kept)


def _put_on_chip(b: Builder, target: Target, picks: Picks, add: bool, value: float | None) -> None:
    """Lines of the table on chip, numbers put into them, and back."""
    lead, _ = picks.content()
    (last,) = picks.index_runs()
    dtype = dtype_name(picks.table.window.dtype)
    line = _line(picks, lead, "in")
    sources = [] if value is not None else [(picks.other, "in", lambda d: d.other)]
    rest = _streams([*lead, last], [*_index_sides(picks), *sources])

    def compute(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        line, *others = tiles
        source = others.pop() if value is None else lane.constant(value, dtype)
        place = places(target, lane, tuple(others), picks)
        way = "put.add" if add else "put"
        scalar(target, lane, way, (line, picks.rows), (source, last.n), (place, last.n))
        return (line,)

    vector_phase(b, target, [line, *rest, evolve(line, role="out")], compute, whole_rows=True)


def _put_rows(b: Builder, target: Target, picks: Picks, add: bool, value: float | None) -> None:
    """Rows of the table by indexed stores. Where they are added each waits for the one before."""
    lead, content = picks.content()
    (last,) = picks.index_runs()
    dims = [*lead, last, content]
    dtype = dtype_name(picks.table.window.dtype)
    ids = [_one_column(s) for s in _streams(dims, _index_sides(picks))]
    sources = [] if value is not None else _streams(dims, [(picks.other, "in", lambda d: d.other)])
    tables = [_table_stream(picks, dims, 0, role) for role in (("in", "out") if add else ("out",))]

    def compute(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[tuple[Tile, Tile], ...]:
        given = tiles[-1] if value is None else lane.constant(value, dtype)
        place = places(target, lane, tiles[: len(ids)], picks)
        if add:
            before = fetched(target, lane, place, content.n, dtype)
            given = Compiler(target, lane, tiles).apply("add", dtype, before, given)
        elif (given.rows, given.columns) != (lane.height, content.n):
            given = lane.new("cast", lane.height, content.n, dtype, given)
        if (place.rows, place.columns) != (lane.height, 1):
            place = lane.new("cast", lane.height, 1, place.dtype, place)
        return ((given, place),)

    vector_phase(
        b,
        target,
        [*ids, *sources, *tables],
        compute,
        whole_rows=True,
        rows_apart=True,
        in_order=1 if add else MOST_ROWS,
    )


MOST_ROWS = 1 << 30


def _whole(chip: Chip, intent: Intent) -> bool:
    positions = {"kv_append": slice(2, 3), "index_put": slice(2, None), "index": slice(1, None)}
    chosen = intent.inputs[positions.get(intent.kind, slice(1, 2))]
    return all(r.dtype in (torch.int32, torch.int64) for r in chosen)


def _apart(chip: Chip, intent: Intent) -> bool:
    (y,) = intent.outputs
    return all(r.buffer != y.buffer for r in intent.inputs[1:])


WHOLE = Limit("indices are int32 or int64", _whole)
APART = Limit("what is put and where lies in other memory than the result", _apart)
LIMITS: dict[str, tuple[Limit, ...]] = {
    "index": (WHOLE,), "gather": (WHOLE,), "scatter": (WHOLE, APART), "index_put": (WHOLE, APART),
    "kv_append": (WHOLE, APART),
}  # fmt: skip
"""What the generators here ask of an intent, whatever the chip."""
