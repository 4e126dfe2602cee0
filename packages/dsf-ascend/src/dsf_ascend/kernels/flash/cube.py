"""The cube core's half: q @ k^T into the slot of scores, weights @ v into the slot of products.

    GM -MTE2-> L1 -MTE1-> L0A, L0B -M-> L0C -FIX-> GM

The block's queries stay in L1; keys, values and weights have one place each there. L0A, L0B and L0C are halved.
"""

from __future__ import annotations

from attrs import define, field

from dsf import errors
from dsf.intent.tape import Window
from dsf.isa import Affine, Operand
from dsf.isa.program import affine, torch_dtype
from dsf_ascend.kernels.flash.sizes import AIC, AIV, P_READY, ROWS, S_READY, U_READY, Block, Item, Sizes

__all__ = ["Cube"]

MTE1, MTE2, M, FIX = (f"{AIC}.{engine}" for engine in ("MTE1", "MTE2", "M", "FIX"))
Q, K, V, P = range(4)  # places in L1, and the events of their loading and leaving
FRACTAL = 16


def _up(value: int) -> int:
    return -(-value // FRACTAL) * FRACTAL


@define(eq=False)
class Cube:
    """Emits the cube's instructions for one *block*. *l0* and *l0c* are the halves whose turn it is."""

    sizes: Sizes
    block: Block
    l0: int = 0
    l0c: int = 0
    _places: tuple[int, ...] = field(init=False)

    @_places.default
    def _lay_out(self) -> tuple[int, ...]:
        """Where queries, keys, values and weights begin in L1."""
        s, tile = self.sizes, _up(self.sizes.way.tile)
        sizes = (_up(sum(self.block.rows)) * _up(s.heads.width), tile * _up(s.heads.width),
                 tile * _up(s.heads.value_width), _up(max(self.block.rows)) * tile)  # fmt: skip
        ends = [sum(sizes[: n + 1]) * s.item for n in range(4)]
        if ends[-1] > s.b.chip.memories["L1"].nbytes:
            raise errors.KernelError("DSF-K003", f"L1: queries, keys, values and weights take {ends[-1]} bytes")
        return (0, *ends[:3])

    def begin(self) -> None:
        """All places are free; the block's queries come into L1."""
        b, s = self.sizes.b, self.sizes
        for event in (Q, K, V, P):
            b.set_flag(MTE1, MTE2, event)
        for half in (0, 1):
            b.set_flag(M, MTE1, half)
            b.set_flag(FIX, M, half)
        b.wait_flag(MTE1, MTE2, Q)
        rows = sum(self.block.rows)
        source = b.gm(0, self.block.of_queries(s.q, 0, s.item), (rows, s.heads.width), s.dtype, (s.q.stride[2], 1))
        b("DataCopy.GM2L1", self._l1(Q, (rows, s.heads.width)), source)
        b.order(MTE2, MTE1, Q)

    def end(self) -> None:
        """Nothing is left pending for the next block."""
        b = self.sizes.b
        b.set_flag(MTE1, MTE2, Q)
        for event in (Q, K, V, P):
            b.wait_flag(MTE1, MTE2, event)
        for half in (0, 1):
            b.wait_flag(M, MTE1, half)
            b.wait_flag(FIX, M, half)

    def scores(self, item: Item) -> None:
        """S of one item, in columns that L0B holds."""
        b, s, rows = self.sizes.b, self.sizes, self.block.rows[item.piece]
        if item.piece == 0:
            self._load(K, s.k, 1, item)
        for column in range(0, item.width, ROWS):
            width = min(ROWS, item.width - column)
            acc = self._acc((rows, width))
            for depth in range(0, s.heads.width, ROWS):
                deep = min(ROWS, s.heads.width - depth)
                row = self.block.starts[item.piece]
                a = self._l1(Q, (rows, deep), (row, depth), s.heads.width)
                w = self._l1(K, (width, deep), (column, depth), s.heads.width)
                self._multiply(acc, a, self._turned(w), depth)
            self._store(acc, s.slot(s.slots.scores, item.slot, 0, column, (rows, width), s.way.tile, "float32"))
        if item.piece == len(self.block.rows) - 1:
            b.set_flag(MTE1, MTE2, K)
        b.set_flag(FIX, f"{AIV}.MTE2", S_READY + item.slot)

    def products(self, item: Item) -> None:
        """U of one item, once its weights have come."""
        b, s, rows = self.sizes.b, self.sizes, self.block.rows[item.piece]
        if item.piece == 0:
            self._load(V, s.v, 2, item)
        b.wait_flag(MTE1, MTE2, P)
        b.wait_flag(f"{AIV}.MTE3", MTE2, P_READY + item.slot)
        b("DataCopy.GM2L1", self._l1(P, (rows, item.width)),
          s.slot(s.slots.weights, item.slot, 0, 0, (rows, item.width), s.way.tile, s.dtype))  # fmt: skip
        b.order(MTE2, MTE1, P)
        acc = self._acc((rows, s.heads.value_width))
        for k in range(0, item.width, ROWS):
            deep = min(ROWS, item.width - k)
            a = self._l1(P, (rows, deep), (0, k), item.width)
            w = self._l1(V, (deep, s.heads.value_width), (k, 0), s.heads.value_width)
            self._multiply(acc, a, w, k)
        b.set_flag(MTE1, MTE2, P)
        if item.piece == len(self.block.rows) - 1:
            b.set_flag(MTE1, MTE2, V)
        out = s.slot(s.slots.products, item.slot, 0, 0, (rows, s.heads.value_width), s.heads.value_width, "float32")
        self._store(acc, out)
        b.set_flag(FIX, f"{AIV}.MTE2", U_READY + item.slot)

    def _load(self, place: int, window: Window, param: int, item: Item) -> None:
        """A tile of keys or values, for all the block's rows."""
        b, s, shape = self.sizes.b, self.sizes, (item.width, window.shape[3])
        b.wait_flag(MTE1, MTE2, place)
        at = self.block.of_keys(window, item.start, s.item)
        b("DataCopy.GM2L1", self._l1(place, shape), b.gm(param, at, shape, s.dtype, (window.stride[2], 1)))
        b.order(MTE2, MTE1, place)

    def _multiply(self, acc: Operand, a: Operand, w: Operand, depth: int) -> None:
        """acc = a @ w, or added to it where *depth* says that something is there."""
        b, half = self.sizes.b, self.l0
        self.l0 = 1 - half
        b.wait_flag(M, MTE1, half)
        a0, w0 = self._l0("L0A", a, half), self._l0("L0B", w, half)
        b("LoadData.L12L0A", a0, a)
        b("LoadData.L12L0B", w0, w)
        b.order(MTE1, M, half)
        b("Mmad", acc, a0, w0, accumulate=affine(int(depth > 0)))
        b.set_flag(M, MTE1, half)

    def _acc(self, shape: tuple[int, int]) -> Operand:
        """The half of L0C whose turn it is, once it has been stored."""
        b, half = self.sizes.b, self.l0c
        room = b.chip.memories["L0C"].nbytes // 2
        if shape[0] * shape[1] * 4 > room:
            raise errors.KernelError("DSF-K003", f"L0C: a tile of {shape[0]} x {shape[1]} does not fit twice")
        b.wait_flag(FIX, M, half)
        return b.on("L0C", half * room, shape, "float32")

    def _store(self, acc: Operand, out: Operand) -> None:
        b, half = self.sizes.b, self.l0c
        self.l0c = 1 - half
        b.order(M, FIX, half)
        b("Fixpipe", out, acc)
        b.set_flag(FIX, M, half)

    def _l1(
        self, place: int, shape: tuple[int, int], at: tuple[int, int] = (0, 0), columns: int | None = None
    ) -> Operand:
        """A window of a matrix in L1 whose rows have *columns* numbers, padded to whole fractals."""
        pitch = _up(shape[1] if columns is None else columns)
        offset = self._places[place] + (at[0] * pitch + at[1]) * self.sizes.item
        return self.sizes.b.on("L1", offset, shape, self.sizes.dtype, (pitch, 1))

    def _turned(self, window: Operand) -> Operand:
        """(n, k) as (k, n)."""
        return self.sizes.b.on("L1", window.offset, window.shape[::-1], window.dtype, window.stride[::-1])

    def _l0(self, space: str, source: Operand, half: int) -> Operand:
        """One half of L0A or L0B, in the order of the source."""
        b, (rows, columns) = self.sizes.b, source.shape
        room = b.chip.memories[space].nbytes // 2
        if source.numel * torch_dtype(source.dtype).itemsize > room:
            raise errors.KernelError("DSF-K003", f"{space}: a tile of {rows} x {columns} does not fit twice")
        stride = (columns, 1) if source.stride[1] == 1 else (1, rows)
        return b.on(space, Affine(half * room), source.shape, source.dtype, stride)
