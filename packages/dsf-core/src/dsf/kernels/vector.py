"""Vector programs: tile an iteration space over cores, move tiles on chip and back twice buffered, compute on them.

Every vector kernel of every chip is written against this module: it says which windows it takes and what happens to a
tile (in primitives); tiling, edges, double buffering and the flags between engines are here, once. A tile is a matrix
of rows and columns. Columns are the last dimension (whole, or in chunks where the kernel allows), rows the dimension
before; further dimensions are blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf, prod

from attrs import define, evolve, frozen

from dsf import errors
from dsf.hdl import Chip
from dsf.intent.tape import Window
from dsf.isa import Affine, Builder, Operand, Program, Scratch
from dsf.isa.program import affine, dtype_name, torch_dtype
from dsf.kernels.target import Target

__all__ = [
    "Compute", "Lane", "Params", "Stream", "Tile", "declare", "first_that_fits", "params_of", "reach", "row_gap",
    "scratch_of", "vector_nests", "vector_phase", "vector_program",
]  # fmt: skip

PAD = 32  # elements: rows of a tile start on whole bursts of every number format
LOADED, SWITCH, LAP = 0, 2, 3  # event ids; a loaded or stored slot has its own: 0 or 1


@frozen
class Stream:
    """One operand of a vector kernel in main memory: its parameter's number, its role (in, out), its shape and strides,
    and where it starts, in elements from the parameter's address. (The window's own offset is in that address.)

    With *table* = (rows, step) it is a table whose rows, *step* elements from each other, are taken by index: its
    window says where the first row is, with stride 0 along the dimensions of the index. One that is read is given to
    the kernel as `Lane.tables`; into one that is written goes what the kernel returns, as (rows, their indices).
    """

    param: int
    role: str
    window: Window
    offset: int = 0
    table: tuple[int, int] | None = None

    @property
    def reach(self) -> int:
        """Bytes from the parameter's address to the end of the window's last element."""
        rows, step = self.table or (1, 0)
        beyond = max(rows - 1, 0) * step
        return (self.offset + beyond) * self.window.dtype.itemsize + reach(self.window)

    @property
    def loaded(self) -> bool:
        """Whether tiles of it are brought on chip before the kernel computes."""
        return self.role == "in" and self.table is None


@frozen
class Tile:
    """A matrix on chip: address (may alternate), rows and columns, allocated columns, dtype. One row or one column
    stands for all (stride 0)."""

    offset: Affine
    rows: int
    columns: int
    pitch: int
    dtype: str

    def operand(self, builder: Builder, space: str, rows: int, columns: int) -> Operand:
        """The tile as an operand of shape (rows, columns), broadcast where it has one row or column."""
        row_stride = 0 if self.rows == 1 and rows > 1 else self.pitch
        return builder.on(
            space, self.offset, (rows, columns), self.dtype, (row_stride, 0 if self.columns == 1 < columns else 1)
        )

    def part(self, start: int, columns: int) -> Tile:
        """Columns *start* to *start* + *columns*; a tile of one column stands for any."""
        if self.columns == 1:
            return self
        return evolve(self, offset=self.offset + start * torch_dtype(self.dtype).itemsize, columns=columns)


@define(eq=False)
class Lane:
    """One block's compute: allocates tiles and emits primitives, ordering engines whenever the work changes engine.

    *row* and *column* are where the present tile starts, *height* and *width* its size.
    """

    target: Target
    builder: Builder
    scratch: Scratch
    inbound: str
    outbound: str
    entry: Affine | int = LOADED
    slots: int = 1
    slot: Affine | None = None
    row: Affine = Affine()
    column: Affine = Affine()
    height: int = 1
    width: int = 1
    first: str | None = None
    current: str | None = None
    tables: tuple[Operand, ...] = ()

    @property
    def space(self) -> str:
        return self.scratch.memory.name

    def tile(self, rows: int, columns: int, dtype: str) -> Tile:
        """Room for a (rows, columns) matrix, once for every slot, so that storing one pass overlaps with the next."""
        pitch = columns if rows == 1 or columns == 1 else -(-columns // PAD) * PAD
        if columns == 1 and rows > 1:
            pitch = 1
        align = self.scratch.memory.alignment
        nbytes = -(-rows * pitch * torch_dtype(dtype).itemsize // align) * align
        base = self.scratch.take(nbytes * self.slots, f"({rows}, {columns}) {dtype}")
        offset = affine(base) + self.slot * nbytes if self.slot is not None else affine(base)
        return Tile(offset, rows, columns, pitch, dtype)

    def op(self, primitive: str, dst: Tile, *sources: Tile, **scalars: float | int | Affine) -> Tile:
        """dst = primitive(sources), broadcast to dst's shape (a reduction: to its source's rows)."""
        working = sources[-1].dtype if sources else dst.dtype
        row = self.target.row(primitive, None if primitive == "cast" else working)
        self._enter(row.engine)
        if primitive.startswith(("reduce.", "scan.")):
            self._emit(row.name, sources[-1].columns, dst, sources, scalars)
            return dst
        for start, columns in self.pieces(dst.columns):
            parts = [t.part(start, columns) for t in sources]
            self._emit(row.name, columns, dst.part(start, columns), parts, _from_column(start, scalars))
        return dst

    def pieces(self, columns: int) -> Iterator[tuple[int, int]]:
        """(start, columns) of what one vector instruction takes of a row, one after the other."""
        limit = _row_limit(self.target, max(columns, 1))
        return ((start, min(limit, columns - start)) for start in range(0, columns, limit))

    def _emit(
        self, name: str, columns: int, dst: Tile, sources: Sequence[Tile], scalars: dict[str, float | int | Affine]
    ) -> None:
        """One instruction on *columns* of its sources, and on as many of *dst* unless it has one only."""
        own = dst.operand(self.builder, self.space, dst.rows, dst.columns)
        self.builder(name, own, *(t.operand(self.builder, self.space, dst.rows, columns) for t in sources), **scalars)

    def new(
        self, primitive: str, rows: int, columns: int, dtype: str, *sources: Tile, **scalars: float | int | Affine
    ) -> Tile:
        """A fresh tile = primitive(sources)."""
        return self.op(primitive, self.tile(rows, columns, dtype), *sources, **scalars)

    def cast(self, tile: Tile, dtype: str) -> Tile:
        """The tile in *dtype*; itself if it has that dtype."""
        return tile if tile.dtype == dtype else self.new("cast", tile.rows, tile.columns, dtype, tile)

    def constant(self, value: float, dtype: str) -> Tile:
        """A tile of one element."""
        return self.new("fill", 1, 1, dtype, value=value)

    def _enter(self, engine: str) -> None:
        if self.current is None:
            self.first = engine
            self.builder.order(self.inbound, engine, self.entry)
        elif engine != self.current:
            self.builder.order(self.current, engine, SWITCH)
        self.current = engine

    def switch(self, engine: str) -> None:
        """Go on with *engine*: where a loop closes, its next round must find the engine that it began with."""
        self._enter(engine)

    def leave(self, event: Affine | int) -> None:
        """Let the outbound engine follow the compute."""
        last = self.current or self.inbound
        if last != self.outbound:
            self.builder.order(last, self.outbound, event)
        closed = self.current in (self.first, self.inbound)  # for whom the next lap's first engine waits anyway
        if self.first is not None and self.current is not None and not closed:
            self.builder.order(self.current, self.first, LAP)


def _from_column(start: int, scalars: dict[str, float | int | Affine]) -> dict[str, float | int | Affine]:
    """The scalars of a ramp for a piece of its row from column *start* on; any others are the same for every piece."""
    if not start or "step" not in scalars:
        return scalars
    first, step = scalars["start"], scalars["step"]
    assert isinstance(step, int), "whole numbers are stepped on chip"
    assert not isinstance(first, float), "and from a whole number on"
    return {**scalars, "start": affine(first) + step * start}


Result = Tile | tuple[Tile, Tile]
Compute = Callable[[Lane, tuple[Tile, ...]], tuple[Result, ...]]


@frozen
class Space:
    """The joint iteration space of some streams: leading dimensions (size, stride of each stream) and columns."""

    lead: tuple[tuple[int, tuple[int, ...]], ...]
    columns: tuple[tuple[int, int], ...]

    @property
    def rows(self) -> tuple[int, tuple[int, ...]]:
        return self.lead[-1] if self.lead else (1, (0,) * len(self.columns))

    @property
    def outer(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        return self.lead[:-1]


def iteration_space(windows: Sequence[Window], whole_rows: bool, rows_apart: bool = False) -> Space:
    """Merge dimensions that every window walks alike. All windows agree on all but the last dimension; with
    *whole_rows* that one stands for itself, else they agree on it as well. *rows_apart*: the last leading dimension
    is not merged, since the kernel wants to know its index."""
    shape = windows[0].shape[: -1 if whole_rows else None]
    dims: list[tuple[int, tuple[int, ...]]] = []
    for axis, n in enumerate(shape):
        strides = tuple(w.stride[axis] for w in windows)
        apart = rows_apart and axis == len(shape) - 1
        if n == 1 and not apart:
            continue
        if dims and not apart and all(s == t * n for s, t in zip(dims[-1][1], strides, strict=True)):
            dims[-1] = dims[-1][0] * n, strides
        else:
            dims.append((n, strides))
    if whole_rows:
        columns = tuple((w.shape[-1], w.stride[-1]) if w.shape else (1, 0) for w in windows)
        return Space(tuple(dims), columns)
    n, strides = dims.pop() if dims else (1, (1,) * len(windows))
    return Space(tuple(dims), tuple((n, s) for s in strides))


def vector_program(
    target: Target, name: str, streams: Sequence[Stream], compute: Compute, whole_rows: bool = False
) -> Program:
    """The program of one vector phase, its parameters being the streams' windows."""
    b = target.builder(name)
    declare(b, streams)
    vector_phase(b, target, streams, compute, whole_rows)
    return b.build()


Params = Sequence[tuple[str, str, int]]
"""(name, role, bytes) of a program's parameters."""


def first_that_fits(target: Target, name: str, params: Params, ways: Sequence[Callable[[Builder], None]]) -> Program:
    """The program of the first way whose tiles fit on chip."""
    for way in ways:
        b = target.builder(name)
        for param in params:
            b.param(*param)
        try:
            way(b)
        except errors.KernelError as error:
            if way is ways[-1] or error.code != "DSF-K002":
                raise
        else:
            return b.build()
    raise AssertionError("there is a way")


def params_of(streams: Sequence[Stream]) -> Params:
    """The parameters that *streams* name, each as long as its furthest stream reaches."""
    found = []
    for param in range(1 + max((s.param for s in streams), default=-1)):
        own = [s for s in streams if s.param == param]
        found.append((f"{own[0].role}{param}", own[0].role, max(s.reach for s in own)))
    return found


def declare(b: Builder, streams: Sequence[Stream]) -> None:
    """Declare the parameters that *streams* name."""
    for param in params_of(streams):
        b.param(*param)


def vector_phase(
    b: Builder, target: Target, streams: Sequence[Stream], compute: Compute, whole_rows: bool = False,
    rows_apart: bool = False, in_order: int | None = None,
) -> None:  # fmt: skip
    """One phase on the vector cores: `vector_nests` alone."""
    with b.phase(target.core_of(target.row("load"))):
        vector_nests(b, target, streams, compute, whole_rows, rows_apart, in_order)


def vector_nests(
    b: Builder, target: Target, streams: Sequence[Stream], compute: Compute, whole_rows: bool = False,
    rows_apart: bool = False, in_order: int | None = None,
) -> None:  # fmt: skip
    """Apply *compute* to tiles of the input streams and store its results to the output streams.

    *whole_rows*: a tile has whole last dimensions (for reductions along them); else columns are cut as it suits.
    The largest tile that fits twice is taken; the last resort is one row, once. *in_order*: rows are worked off one
    tile after the other on one core, at most so many to a tile, each stored before the next one is loaded.
    """
    space = iteration_space([s.window for s in streams], whole_rows, rows_apart)
    if any(n == 0 for n, _ in (*space.lead, *space.columns)):
        return
    budget, double = _first_budget(target, streams), in_order is None
    while True:
        rows, columns = _tile_shape(target, space, budget, whole_rows, streams)
        if in_order is not None:  # one nest: a ragged end would be a second one, which any core may take first
            rows = next(n for n in range(min(rows, in_order), 0, -1) if space.rows[0] % n == 0)
        try:
            with b.undone_on_error():
                _Tiler(
                    target, b, tuple(streams), compute, space, rows, columns, double, whole_rows, in_order is not None
                ).emit()
            return
        except errors.KernelError as error:
            least = rows == 1 if whole_rows else rows * columns <= PAD
            if error.code != "DSF-K002" or (least and not double):
                raise
            budget, double = (budget, False) if least else (budget // 2, True)


def _first_budget(target: Target, streams: Sequence[Stream]) -> int:
    """Elements of a tile to try first: what would fit if there were no temporaries."""
    memory = scratch_of(target)
    nbytes = sum(2 * s.window.dtype.itemsize for s in streams)
    return max(PAD, target.chip.memories[memory].nbytes // max(nbytes, 1))


def scratch_of(target: Target) -> str:
    """The on-chip memory that the vector engine works on."""
    return target.row("load").operands[0][1].spaces[0]


def _tile_shape(
    target: Target, space: Space, budget: int, whole_rows: bool, streams: Sequence[Stream]
) -> tuple[int, int]:
    """Rows and columns of a tile: within the budget, no larger than what gives every core some work, and one where a
    copy cannot skip from row to row (or from column to column)."""
    cores = target.chip.cores[target.core_of(target.row("load"))].count
    n_rows, n_columns = space.rows[0], max(n for n, _ in space.columns)
    total = n_rows * n_columns * prod(n for n, _ in space.outer)
    fair = max(PAD * PAD, -(-total // cores))
    if not _skips(target, space.rows[1], streams):
        n_rows = 1
    apart = not _skips(target, tuple(step for _, step in space.columns), streams)
    if whole_rows and apart and n_columns > 1:
        raise errors.KernelError(
            "DSF-K006", f"the elements of a row lie further apart than {target.chip.name} copies them"
        )
    if whole_rows:
        return max(1, min(n_rows, min(budget, fair) // n_columns)), n_columns
    budget = min(budget, fair)
    columns = 1 if apart else min(n_columns, budget, _row_limit(target, n_columns))
    if columns < n_columns and columns > PAD:
        columns = columns // PAD * PAD
    return max(1, min(n_rows, budget // columns)), columns


def _skips(target: Target, steps: Sequence[int], streams: Sequence[Stream]) -> bool:
    """Whether a copy of each stream may go from one element to the next with these steps."""
    largest = row_gap(target.chip)
    return all(step * s.window.dtype.itemsize <= largest for step, s in zip(steps, streams, strict=True))


def row_gap(chip: Chip) -> float:
    """Bytes from one row to the next that a copy may go at most."""
    blocks, size = (chip.limits.get(name) for name in ("copy_gap_blocks", "vector_block_bytes"))
    return blocks * size if isinstance(blocks, int) and isinstance(size, int) else inf


def _row_limit(target: Target, otherwise: int) -> int:
    """Elements that one row of a vector instruction may have, where the HDL limits them."""
    limit = target.chip.limits.get("vector_row_elements", otherwise)
    assert isinstance(limit, int), "the schema makes it a number"
    return limit


@define(eq=False)
class _Tiler:
    target: Target
    builder: Builder
    streams: tuple[Stream, ...]
    compute: Compute
    space: Space
    rows: int
    columns: int
    double: bool
    whole_rows: bool
    in_order: bool = False

    @property
    def width(self) -> int:
        """Columns of the widest stream."""
        return max(n for n, _ in self.space.columns)

    def emit(self) -> None:
        for rows in _classes(self.space.rows[0], self.rows, self._blocks()):
            for columns in _chunks(self.width, self.columns):
                self._nest(rows, columns)

    def _blocks(self) -> int:
        """Blocks to cut a column of tiles into: one for each core that the outer dimensions leave idle."""
        if self.in_order:
            return 1
        cores = self.target.chip.cores[self.target.core_of(self.target.row("load"))].count
        outer = prod(n for n, _ in self.space.outer)
        chunks = -(-self.width // self.columns)
        return max(1, -(-cores // (outer * chunks)))

    def _nest(self, rows: _Class, columns: _Class) -> None:
        counts = {f"l{d}": n for d, (n, _) in enumerate(self.space.outer)}
        with self.builder.nest(**counts, i=rows.blocks, j=columns.blocks) as variables:
            *outer, i, j = variables
            start = [outer[d] * 1 for d in range(len(outer))]
            self._block(rows, columns, start, i, j)

    def _block(self, rows: _Class, columns: _Class, outer: list[Affine], i: Affine, j: Affine) -> None:
        b, t = self.builder, self.target
        load, store = t.row("load"), t.row("store")
        lane = Lane(t, b, Scratch(t.chip, scratch_of(t)), load.engine, store.engine)
        at = _Place(outer, i * (rows.laps * rows.size) + rows.start, j * columns.size + columns.start)
        if rows.laps == 1:
            lane.row, lane.column, lane.height, lane.width = at.row, at.column, rows.size, min(columns.size, self.width)
            self._pass(lane, at, rows, columns, 0, {})
            b.order(store.engine, load.engine, 0)
            return
        slots = 2 if self.double else 1
        fixed = {k: self._load(lane, k, at, rows, columns) for k in self._hoisted()}
        for slot in range(slots):
            b.set_flag(store.engine, load.engine, slot)
        with b.loop(rows.laps) as lap:
            lane.slots, lane.slot, lane.row = slots, lap % 2 if slots > 1 else None, at.row + lap * rows.size
            event: Affine | int = lane.slot if lane.slot is not None else 0
            b.wait_flag(store.engine, load.engine, event)
            lane.column, lane.height, lane.width = at.column, rows.size, min(columns.size, self.width)
            self._pass(lane, evolve(at, row=lane.row), rows, columns, event, fixed)
            b.set_flag(store.engine, load.engine, event)
        for slot in range(slots):
            b.wait_flag(store.engine, load.engine, slot)

    def _hoisted(self) -> list[int]:
        """Inputs that do not change from lap to lap are loaded once per block."""
        strides = self.space.rows[1]
        return [k for k, s in enumerate(self.streams) if s.loaded and strides[k] == 0]

    def _pass(
        self, lane: Lane, at: _Place, rows: _Class, columns: _Class, event: Affine | int, fixed: dict[int, Tile]
    ) -> None:
        inputs = tuple(
            fixed[k] if k in fixed else self._load(lane, k, at, rows, columns)
            for k, s in enumerate(self.streams) if s.loaded
        )  # fmt: skip
        lane.entry = event
        lane.tables = tuple(
            self._window(k, at, rows, columns) for k, s in enumerate(self.streams) if s.role == "in" and s.table
        )
        if self.whole_rows:
            places = [k for k, s in enumerate(self.streams) if s.loaded]
            inputs = tuple(self._spread(lane, k, tile) for k, tile in zip(places, inputs, strict=True))
        results = self.compute(lane, inputs)
        outs = [self._window(k, at, rows, columns) for k, s in enumerate(self.streams) if s.role == "out"]
        stored = [
            _settled(lane, tile, window) if isinstance(tile, Tile) else tile
            for tile, window in zip(results, outs, strict=True)
        ]
        lane.leave(event)
        for tile, window in zip(stored, outs, strict=True):
            if isinstance(tile, Tile):
                own = tile.operand(lane.builder, lane.space, *window.shape)
                lane.builder(self.target.row("store").name, window, own)
            else:
                picked = (t.operand(lane.builder, lane.space, t.rows, t.columns) for t in tile)
                lane.builder(self.target.row("scatter").name, window, *picked)

    def _load(self, lane: Lane, k: int, at: _Place, rows: _Class, columns: _Class) -> Tile:
        window = self._window(k, at, rows, columns)
        height, width = window.shape
        tile = lane.tile(height, width, window.dtype)
        lane.builder(self.target.row("load").name, tile.operand(lane.builder, lane.space, height, width), window)
        return tile

    def _spread(self, lane: Lane, k: int, tile: Tile) -> Tile:
        """Stream *k*'s tile with all its columns, where main memory has one for all of them: a row is to be reduced."""
        own = self.space.columns[k][0]
        return tile if tile.columns == own else lane.new("cast", tile.rows, own, tile.dtype, tile)

    def _window(self, k: int, at: _Place, rows: _Class, columns: _Class) -> Operand:
        """Stream *k*'s part of the tile, in main memory; a broadcast dimension has size 1."""
        stream = self.streams[k]
        row_stride = self.space.rows[1][k]
        own, column_stride = self.space.columns[k]
        cut = own == self.width
        width = min(columns.size, own) if cut else own
        item = stream.window.dtype.itemsize
        offset = at.row * (row_stride * item) + stream.offset * item
        if cut:
            offset = offset + at.column * (column_stride * item)
        for variable, (_, strides) in zip(at.outer, self.space.outer, strict=True):
            offset = offset + variable * (strides[k] * item)
        high = 1 if row_stride == 0 else rows.size
        if stream.table is not None:
            high, row_stride = stream.table
        shape = (high, 1 if column_stride == 0 else width)
        return self.builder.gm(
            stream.param, _tidy(offset), shape, dtype_name(stream.window.dtype), (row_stride, column_stride or 1)
        )


def _settled(lane: Lane, tile: Tile, window: Operand) -> Tile:
    """A result as it is stored: in the window's shape and dtype."""
    if (tile.rows, tile.columns, tile.dtype) == (*window.shape, window.dtype):
        return tile
    return lane.new("cast", window.shape[0], window.shape[1], window.dtype, tile)


@frozen
class _Place:
    outer: list[Affine]
    row: Affine
    column: Affine


@frozen
class _Class:
    """Tiles of one size along one axis: blocks of *laps* tiles of *size*, from *start* on."""

    start: int
    size: int
    blocks: int
    laps: int


def _classes(n: int, size: int, blocks: int) -> Iterator[_Class]:
    """Cut *n* rows: blocks of equally many whole tiles, a block of those left over, and the ragged end."""
    tiles = n // size
    laps = max(1, tiles // blocks)
    full = tiles // laps
    if full:
        yield _Class(0, size, full, laps)
    if tiles > full * laps:
        yield _Class(full * laps * size, size, 1, tiles - full * laps)
    if n > tiles * size:
        yield _Class(tiles * size, n - tiles * size, 1, 1)


def _chunks(n: int, size: int) -> Iterator[_Class]:
    if n // size:
        yield _Class(0, size, n // size, 1)
    if n % size:
        yield _Class(n // size * size, n % size, 1, 1)


def _tidy(offset: Affine) -> Affine:
    return Affine(offset.const, tuple(t for t in offset.terms if t.step))


def reach(window: Window) -> int:
    """Bytes from a window's first element to the end of its last."""
    if 0 in window.shape:
        return 0
    last = sum((n - 1) * s for n, s in zip(window.shape, window.stride, strict=True))
    return (last + 1) * window.dtype.itemsize
