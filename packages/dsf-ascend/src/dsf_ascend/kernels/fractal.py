"""Strict layouts: tiles on chip in the fractal orders of the cube, byte for byte. [asc-devkit: ND2NZ, LoadData, Mmad]

    L1   NZ      (k / C0, rows, C0) of an operand whose k lies densely in main memory, else (rows / C0, k, C0)
    L0A  ZZ      (m / 16, k / C0, 16, C0)
    L0B  nZ      (k / C0, n / 16, 16, C0)
    L0C  NZ      (n / 16, m, 16)

C0 numbers are 32 bytes. Rows are padded to whole fractals; what Mmad reads of a padding is zero.
"""

from __future__ import annotations

from attrs import evolve, field, frozen

from dsf import errors
from dsf.hdl import Chip
from dsf.isa import Affine, Builder, Operand
from dsf.isa.program import affine, torch_dtype
from dsf.isa.rules import limit
from dsf.kernels.contraction import Product, Side, Tile
from dsf_ascend.kernels.order import FRACTAL

__all__ = ["Order", "refuse_wide_rows"]


def refuse_wide_rows(chip: Chip, product: Product) -> None:
    """ND2NZ steps from row to row by a field of 16 bits; a KernelError where an operand's rows lie further apart."""
    most = limit(chip, "nd2nz_row_stride")
    for side in (product.a, product.b):
        if (found := max(side.row, side.column)) > most:
            raise errors.KernelError(
                "DSF-K021", f"strict layouts: rows lie {found} elements apart, ND2NZ steps over {most} at most"
            )


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


@frozen
class Panel:
    """One operand of a tile: its *rows* (m of a, n of b), whether k lies densely in main memory (*along*), where it
    begins in a half of L1, and its half of L0 with whether fractals of the same k come first there (*by_k*)."""

    b: Builder
    side: Side
    rows: int
    along: bool
    start: int
    space: str
    by_k: bool

    @property
    def item(self) -> int:
        return torch_dtype(self.side.dtype).itemsize

    @property
    def c0(self) -> int:
        return limit(self.b.chip, "vector_block_bytes") // self.item

    @property
    def high(self) -> int:
        """Rows, padded to whole fractals."""
        return _up(self.rows, FRACTAL)

    def load(self, window: Operand, depth: int, half: Affine) -> None:
        """*window* of main memory, (rows, depth), into L1 in NZ; paddings that ND2NZ leaves out are zeros."""
        b, c0 = self.b, self.c0
        deep = _up(depth, FRACTAL)
        at = half * (b.chip.memories["L1"].nbytes // 2) + self.start
        whole = depth % c0 == 0 and _up(self.rows, c0) == self.high
        if not (self.rows == self.high if self.along else whole):
            b("InitConstValue.L1", b.on("L1", at, (self.high * deep,), self.side.dtype), value=0.0)
        if self.along:
            blocks, columns, pitch = _up(depth, c0) // c0, self.rows, self.high
        else:
            window = evolve(window, shape=window.shape[::-1], stride=window.stride[::-1])
            blocks, columns, pitch = _up(self.rows, c0) // c0, depth, deep
        b("DataCopy.ND2NZ", b.on("L1", at, (blocks, columns, c0), self.side.dtype, (pitch * c0, c0, 1)), window)

    def to_l0(self, half: Affine, k: Affine, depth: int, width: int, side: Affine) -> Operand:
        """*width* of k from *k* on, as fractals in L0; the answer is the operand of Mmad."""
        b, c0, high = self.b, self.c0, self.high
        kb, r1, parts = _up(width, c0) // c0, high // FRACTAL, FRACTAL // c0
        shape = (r1, parts, c0, kb, c0)
        deep = _up(depth, FRACTAL)
        if self.along:
            begin, stride = high * self.item, (FRACTAL * c0, c0 * c0, c0, high * c0, 1)
        else:
            begin, stride = c0 * self.item, (parts * deep * c0, deep * c0, 1, c0 * c0, c0)
        offset = half * (b.chip.memories["L1"].nbytes // 2) + self.start + affine(k) * begin
        source = b.on("L1", offset, shape, self.side.dtype, stride)
        step, block = (FRACTAL * c0, r1 * FRACTAL * c0) if self.by_k else (kb * FRACTAL * c0, FRACTAL * c0)
        at = side * (b.chip.memories[self.space].nbytes // 2)
        b(
            f"LoadData.L12{self.space}",
            b.on(self.space, at, shape, self.side.dtype, (step, c0 * c0, c0, block, 1)),
            source,
        )
        outer = (kb, r1) if self.by_k else (r1, kb)
        return b.on(self.space, at, (*outer, FRACTAL, c0), self.side.dtype)


@frozen
class Order:
    """A result tile whose operands are fractals."""

    b: Builder
    product: Product
    tile: Tile
    second: int
    _a: Panel = field(init=False)
    _w: Panel = field(init=False)

    def __attrs_post_init__(self) -> None:
        p, t = self.product, self.tile
        object.__setattr__(self, "_a", Panel(self.b, p.a, t.m, p.a.column == 1, 0, "L0A", False))
        object.__setattr__(self, "_w", Panel(self.b, p.b, t.n, p.b.row == 1, self.second, "L0B", True))

    def load(self, k: Affine, depth: int, half: Affine) -> None:
        w = self.tile.w(k, depth)
        self._a.load(self.tile.a(k, depth), depth, half)
        self._w.load(evolve(w, shape=w.shape[::-1], stride=w.stride[::-1]), depth, half)

    def to_l0(self, half: Affine, k: Affine, depth: int, width: int, side: Affine) -> tuple[Operand, Operand]:
        return self._a.to_l0(half, k, depth, width, side), self._w.to_l0(half, k, depth, width, side)

    def multiply(self, a: Operand, w: Operand, width: int, accumulate: Affine) -> None:
        m, n = self.tile.m, self.tile.n
        if self.product.bias is not None:
            bias = self.b.on("BT", 0, (n,), "float32")
            self.b("Mmad.fractal.bias", self._acc(), a, w, bias, accumulate=accumulate, m=m, k=width, n=n)
        else:
            self.b("Mmad.fractal", self._acc(), a, w, accumulate=accumulate, m=m, k=width, n=n)

    def store(self) -> None:
        """Whole blocks of 16 columns at once, then the columns that are left."""
        b, out = self.b, self.tile.out()
        (m, n), (row, column) = out.shape, out.stride
        blocks, rest, high = n // FRACTAL, n % FRACTAL, self._a.high
        if blocks:
            shape = (blocks, m, FRACTAL)
            b("Fixpipe", evolve(out, shape=shape, stride=(FRACTAL * column, row, column)),
              b.on("L0C", 0, shape, "float32", (high * FRACTAL, FRACTAL, 1)))  # fmt: skip
        if rest:
            last = evolve(out, shape=(m, rest), offset=out.offset + blocks * FRACTAL * column * out.itemsize)
            b("Fixpipe", last, b.on("L0C", blocks * high * FRACTAL * 4, (m, rest), "float32", (FRACTAL, 1)))

    def _acc(self) -> Operand:
        return self.b.on("L0C", 0, (_up(self.tile.n, FRACTAL) // FRACTAL, self._a.high, FRACTAL), "float32")
