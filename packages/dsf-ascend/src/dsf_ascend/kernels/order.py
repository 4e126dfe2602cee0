"""Where a tile's numbers lie in L1, L0A, L0B and L0C, and the instructions that bring them there."""

from __future__ import annotations

from typing import Protocol

from attrs import frozen

from dsf.isa import Affine, Builder, Operand
from dsf.isa.program import affine, torch_dtype
from dsf.kernels.contraction import Product, Side, Tile

__all__ = ["FRACTAL", "Order", "Tagged"]

FRACTAL = 16


class Order(Protocol):
    """How the operands of one result tile lie on chip. L1 and L0 have two halves; *second* is where b begins in a half
    of L1."""

    def __init__(self, b: Builder, product: Product, tile: Tile, second: int) -> None: ...

    def load(self, k: Affine, depth: int, half: Affine) -> None:
        """Both operands' slab from *k* on, *depth* deep, into one half of L1 (MTE2)."""

    def to_l0(self, half: Affine, k: Affine, depth: int, width: int, side: Affine) -> tuple[Operand, Operand]:
        """*width* of a slab of *depth*, from *k* on, into one half of L0A and L0B (MTE1)."""

    def multiply(self, a: Operand, w: Operand, width: int, accumulate: Affine) -> None:
        """What is in L0 into L0C (M)."""

    def store(self) -> None:
        """The result from L0C to main memory (FIX)."""


@frozen
class Tagged:
    """A tile lies in main memory's own order; the fractal order is a permutation that costs what the copy costs."""

    b: Builder
    product: Product
    tile: Tile
    second: int

    def load(self, k: Affine, depth: int, half: Affine) -> None:
        self.b("DataCopy.GM2L1", self._l1_a(half, 0, depth, depth), self.tile.a(k, depth))
        self.tile.load_w("DataCopy.GM2L1", self._l1_b(half, 0, depth, depth), k, depth)

    def to_l0(self, half: Affine, k: Affine, depth: int, width: int, side: Affine) -> tuple[Operand, Operand]:
        a = self._l0("L0A", self.product.a, side, self.tile.m, width)
        w = self._l0("L0B", self.product.b, side, width, self.tile.n)
        self.b("LoadData.L12L0A", a, self._l1_a(half, k, depth, width))
        self.b("LoadData.L12L0B", w, self._l1_b(half, k, depth, width))
        return a, w

    def multiply(self, a: Operand, w: Operand, width: int, accumulate: Affine) -> None:
        if self.product.bias is not None:
            bias = self.b.on("BT", 0, (self.tile.n,), "float32")
            self.b("Mmad.bias", self._acc(), a, w, bias, accumulate=accumulate)
        else:
            self.b("Mmad.s8" if a.dtype == "int8" else "Mmad", self._acc(), a, w, accumulate=accumulate)

    def store(self) -> None:
        self.b("Fixpipe", self.tile.out(), self._acc())

    def _l1_a(self, half: Affine, k: Affine | int, depth: int, width: int) -> Operand:
        """*width* columns from *k* on of a's slab in L1."""
        return self._l1(self.product.a, half, 0, (self.tile.m, depth), 1, k, width)

    def _l1_b(self, half: Affine, k: Affine | int, depth: int, width: int) -> Operand:
        return self._l1(self.product.b, half, self.second, (depth, self.tile.n), 0, k, width)

    def _l1(
        self, side: Side, half: Affine, start: int, shape: tuple[int, int], k_axis: int, k: Affine | int, width: int
    ) -> Operand:
        """A window of a slab: rows (or columns, as *side* lies in main memory) are padded to whole fractals."""
        item = torch_dtype(side.dtype).itemsize
        dense = 1 if side.column == 1 else 0
        pitch = -(-shape[dense] // FRACTAL) * FRACTAL
        stride = (pitch, 1) if dense else (1, pitch)
        cut = (shape[0], width) if k_axis == 1 else (width, shape[1])
        offset = half * (self.b.chip.memories["L1"].nbytes // 2) + start + affine(k) * (stride[k_axis] * item)
        return self.b.on("L1", offset, cut, side.dtype, stride)

    def _l0(self, space: str, side: Side, half: Affine, rows: int, columns: int) -> Operand:
        """One half of L0A or L0B, in the order of the slab in L1."""
        offset = half * (self.b.chip.memories[space].nbytes // 2)
        stride = (columns, 1) if side.column == 1 else (1, rows)
        return self.b.on(space, offset, (rows, columns), side.dtype, stride)

    def _acc(self) -> Operand:
        sums = "int32" if self.product.a.dtype == "int8" else "float32"
        return self.b.on("L0C", 0, (self.tile.m, self.tile.n), sums)
