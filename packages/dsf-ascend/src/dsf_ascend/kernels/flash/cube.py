"""The cube core's half: q @ k^T into the slot of scores, weights @ v into the slot of products.

    GM -MTE2-> L1 -MTE1-> L0A, L0B -M-> L0C -FIX-> GM

The block's queries stay in L1; keys, values and weights have one place each there. L0A, L0B and L0C are halved.
"""

from __future__ import annotations

from attrs import define, evolve, field

from dsf import errors
from dsf.intent.tape import Window
from dsf.isa import Affine, Operand
from dsf.isa.program import affine, torch_dtype
from dsf_ascend.kernels.flash.sizes import (
    AIC,
    AIV,
    P_READY,
    ROWS,
    S_READY,
    U_READY,
    Block,
    Item,
    Sizes,
    rounds,
    turn,
    up,
)
from dsf_ascend.kernels.order import FRACTAL

__all__ = ["Cube"]

MTE1, MTE2, M, FIX = (f"{AIC}.{engine}" for engine in ("MTE1", "MTE2", "M", "FIX"))
Q, K, V, P = range(4)  # places in L1, and the events of their loading and leaving


def _up(value: int) -> int:
    return up(value, FRACTAL)


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
        s, tile, rows = self.sizes, _up(self.sizes.tile), _up(self.block.rows)
        sizes = rows * _up(s.heads.width), tile * _up(s.heads.width), tile * _up(s.heads.value_width), rows * tile
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
        shape = self.block.rows, s.heads.width
        source = b.gm(0, self.block.of_queries(s.q, 0, s.item), shape, s.dtype, (s.q.stride[2], 1))
        b("DataCopy.GM2L1", self._l1(Q, shape), source)
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
        b, s = self.sizes.b, self.sizes
        self._load(K, s.k, 1, item)

        def columns(u: Affine, start: Affine, width: int) -> None:
            self._columns(item, start, width, turn(self.l0, u), turn(self.l0c, u))

        done = rounds(b, item.width, ROWS, columns)
        self.l0, self.l0c = self.l0 + done, self.l0c + done
        b.set_flag(MTE1, MTE2, K)
        b.set_flag(FIX, f"{AIV}.MTE2", S_READY)

    def _columns(self, item: Item, column: Affine, width: int, l0: Affine, l0c: Affine) -> None:
        """*width* columns of S: all of a head's width through L0, then out."""
        s, rows = self.sizes, self.block.rows
        acc, deep = self._acc((rows, width), l0c), s.heads.width
        for n, depth in enumerate(range(0, deep, ROWS)):
            a = self._l1(Q, (rows, min(ROWS, deep - depth)), (0, depth), deep)
            w = self._l1(K, (width, min(ROWS, deep - depth)), (column, depth), deep)
            half = l0 if deep <= ROWS else affine(n % 2)
            self._multiply(acc, a, _turned(w), affine(n), half)
        self._store(acc, s.slot(s.slots.scores, item.slot, 0, column, (rows, width), s.tile, "float32"), l0c)

    def products(self, item: Item) -> None:
        """U of one item, once its weights have come."""
        b, s, rows, wide = self.sizes.b, self.sizes, self.block.rows, self.sizes.heads.value_width
        self._load(V, s.v, 2, item)
        b.wait_flag(MTE1, MTE2, P)
        b.wait_flag(f"{AIV}.MTE3", MTE2, P_READY)
        shape = rows, item.width
        b("DataCopy.GM2L1", self._l1(P, shape), s.slot(s.slots.weights, item.slot, 0, 0, shape, s.tile, s.dtype))
        b.order(MTE2, MTE1, P)
        l0c = affine(self.l0c % 2)
        acc = self._acc((rows, wide), l0c)

        def depth(n: Affine, start: Affine, deep: int) -> None:
            self._depth(item, acc, start, deep, n, turn(self.l0, n))

        self.l0, self.l0c = self.l0 + rounds(b, item.width, ROWS, depth), self.l0c + 1
        b.set_flag(MTE1, MTE2, P)
        b.set_flag(MTE1, MTE2, V)
        self._store(acc, s.slot(s.slots.products, item.slot, 0, 0, (rows, wide), wide, "float32"), l0c)
        b.set_flag(FIX, f"{AIV}.MTE2", U_READY)

    def _depth(self, item: Item, acc: Operand, k: Affine, deep: int, number: Affine, half: Affine) -> None:
        a = self._l1(P, (self.block.rows, deep), (0, k), item.width)
        w = self._l1(V, (deep, self.sizes.heads.value_width), (k, 0), self.sizes.heads.value_width)
        self._multiply(acc, a, w, number, half)

    def _load(self, place: int, window: Window, param: int, item: Item) -> None:
        """A tile of keys or values, for all the block's rows."""
        b, s, shape = self.sizes.b, self.sizes, (item.width, window.shape[3])
        b.wait_flag(MTE1, MTE2, place)
        at = self.block.of_keys(window, item.start, s.item)
        b("DataCopy.GM2L1", self._l1(place, shape), b.gm(param, at, shape, s.dtype, (window.stride[2], 1)))
        b.order(MTE2, MTE1, place)

    def _multiply(self, acc: Operand, a: Operand, w: Operand, number: Affine, half: Affine) -> None:
        """acc = a @ w through one half of L0, or added to it where *number* is not 0."""
        b = self.sizes.b
        b.wait_flag(M, MTE1, half)
        a0, w0 = self._l0("L0A", a, half), self._l0("L0B", w, half)
        b("LoadData.L12L0A", a0, a)
        b("LoadData.L12L0B", w0, w)
        b.order(MTE1, M, half)
        b("Mmad", acc, a0, w0, accumulate=number)
        b.set_flag(M, MTE1, half)

    def _acc(self, shape: tuple[int, int], half: Affine) -> Operand:
        """One half of L0C, once it has been stored."""
        b = self.sizes.b
        room = b.chip.memories["L0C"].nbytes // 2
        if shape[0] * shape[1] * 4 > room:
            raise errors.KernelError("DSF-K003", f"L0C: a tile of {shape[0]} x {shape[1]} does not fit twice")
        b.wait_flag(FIX, M, half)
        return b.on("L0C", half * room, shape, "float32")

    def _store(self, acc: Operand, out: Operand, half: Affine) -> None:
        b = self.sizes.b
        b.order(M, FIX, half)
        b("Fixpipe", out, acc)
        b.set_flag(FIX, M, half)

    def _l1(
        self, place: int, shape: tuple[int, int], at: tuple[Affine | int, Affine | int] = (0, 0),
        columns: int | None = None,
    ) -> Operand:  # fmt: skip
        """A window of a matrix in L1 whose rows have *columns* numbers, padded to whole fractals."""
        pitch, item = _up(shape[1] if columns is None else columns), self.sizes.item
        offset = affine(at[0]) * (pitch * item) + affine(at[1]) * item + self._places[place]
        return self.sizes.b.on("L1", offset, shape, self.sizes.dtype, (pitch, 1))

    def _l0(self, space: str, source: Operand, half: Affine) -> Operand:
        """One half of L0A or L0B, in the order of the source."""
        b, (rows, columns) = self.sizes.b, source.shape
        room = b.chip.memories[space].nbytes // 2
        if source.numel * torch_dtype(source.dtype).itemsize > room:
            raise errors.KernelError("DSF-K003", f"{space}: a tile of {rows} x {columns} does not fit twice")
        stride = (columns, 1) if source.stride[1] == 1 else (1, rows)
        return b.on(space, half * room, source.shape, source.dtype, stride)


def _turned(window: Operand) -> Operand:
    """(n, k) as (k, n)."""
    return evolve(window, shape=window.shape[::-1], stride=window.stride[::-1])
