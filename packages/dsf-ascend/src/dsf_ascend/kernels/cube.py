"""MatMul's pieces for the cube core: tiles through L1, L0A and L0B, twice buffered, products in L0C, out through FIX.

    GM -MTE2-> L1 -MTE1-> L0A, L0B -M-> L0C -FIX-> GM

L1 and the two L0 inputs are halved, so that loading the next slab overlaps with computing this one; L0C holds one tile.
In which order a tile's numbers lie on chip is an `Order`: tagged (as in main memory) or, under strict layouts, fractal.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product as product_of

from attrs import frozen

from dsf import errors
from dsf.intent.ir import Intent
from dsf.isa import Affine, Builder, Program
from dsf.isa.program import affine, torch_dtype
from dsf.kernels import contraction
from dsf.kernels.contraction import Product, Tile
from dsf.kernels.kernel import AS_IT_IS, Variant
from dsf.kernels.target import Target
from dsf.kernels.tiling import HEIGHTS, WIDTHS, best_tile
from dsf_ascend.kernels import fractal
from dsf_ascend.kernels.order import FRACTAL, Order, Tagged

__all__ = ["Tiling", "best_tiling", "emit_product", "tiles", "variants"]

FREE, READY = 0, 0  # event ids; each buffer half has its own: + 0 or + 1


@frozen
class Tiling:
    """Rows and columns of a result tile, k of an L0 slab, k of an L1 slab."""

    m: int
    n: int
    k0: int
    k1: int


def tiling_of(target: Target, product: Product, tile: Variant) -> Tiling | None:
    """*tile* cut to *product*, with the longest slabs that leave room for two; None where L0 has no room for it."""
    memories = target.chip.memories
    item = torch_dtype(product.a.dtype).itemsize
    m, n = min(int(tile[0]), product.m), min(int(tile[1]), product.n)
    high, wide = _up(m, FRACTAL), _up(n, FRACTAL)
    k0 = min(memories["L0A"].nbytes // 2 // (high * item), memories["L0B"].nbytes // 2 // (wide * item))
    k0 = min(k0 // FRACTAL * FRACTAL, _up(product.k, FRACTAL))
    if k0 < FRACTAL or high * wide * 4 > memories["L0C"].nbytes:
        return None
    room = memories["L1"].nbytes // 2 - memories["BT"].nbytes
    k1 = room // ((high + wide) * item) // k0 * k0
    return Tiling(m, n, k0, min(max(k1, k0), _up(product.k, k0)))


def tiles(target: Target, product: Product) -> tuple[Variant, ...]:
    """The tiles worth timing, rows and columns: every one that L0C takes, once however the product cuts it."""
    found: dict[Tiling, Variant] = {}
    for tile in product_of(HEIGHTS, WIDTHS):
        tiling = tiling_of(target, product, tile)
        if tiling is not None:
            found.setdefault(tiling, tile)
    if not found:
        raise errors.KernelError("DSF-K003", f"{target.isa.name}: no tiling of {product} fits this chip's memories")
    return tuple(found.values())


def best_tiling(target: Target, product: Product, tile: Variant = AS_IT_IS) -> Tiling:
    """The tiling with *tile*; if none is named, with the best for products like *product*."""
    if not tile:
        tile = best_tile(target, product, partial(tiles, target), partial(_alone, target))
    tiling = tiling_of(target, product, tile)
    if tiling is None:
        raise errors.KernelError("DSF-K003", f"{target.isa.name}: no tiling of {product} fits this chip's memories")
    return tiling


def variants(product: Callable[[Intent], Product], target: Target, intent: Intent) -> tuple[Variant, ...]:
    """The tiles of a kernel that is nothing but the *product* of its intent."""
    return tiles(target, product(intent))


def _alone(target: Target, product: Product, tile: Variant) -> Program:
    """The program of the product alone; it is only timed."""
    b = target.builder("tiling")
    extents = product.extents()
    for param in range(1 + max(extents)):
        b.param(f"p{param}", "inout", extents.get(param, 0))
    emit_tiled(b, product, best_tiling(target, product, tile))
    return b.sketch()


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


def emit_product(b: Builder, target: Target, product: Product, tile: Variant = AS_IT_IS) -> None:
    """Emit one phase that computes *product* in *tile*, or the best one; on chip it lies as the target wants it."""
    tiling = best_tiling(target, product, tile)
    if target.strict_layouts:
        fractal.refuse_wide_rows(target.chip, product)
    emit_tiled(b, product, tiling, fractal.Order if target.strict_layouts else Tagged)


def emit_tiled(b: Builder, product: Product, tiling: Tiling, order: type[Order] = Tagged) -> None:
    """Emit one phase that computes *product*: a nest for the inner tiles and one for each ragged edge."""
    for tile in contraction.tiles(b, "AIC", product, tiling.m, tiling.n):
        _Block(b, product, tiling, tile, order(b, product, tile, _l1_b_start(product, tiling))).emit()


def _l1_b_start(product: Product, tiling: Tiling) -> int:
    return _up(tiling.m, FRACTAL) * _up(tiling.k1, FRACTAL) * torch_dtype(product.a.dtype).itemsize


@frozen
class _Block:
    b: Builder
    product: Product
    tiling: Tiling
    tile: Tile
    order: Order

    def emit(self) -> None:
        b, p, t = self.b, self.product, self.tiling
        for src, dst in (("MTE1", "MTE2"), ("M", "MTE1")):
            b.set_flag(src, dst, FREE)
            b.set_flag(src, dst, FREE + 1)
        if p.bias is not None:
            self._load_bias()
        slabs = p.k // t.k1
        with b.loop(slabs) as s:
            self._slab(s * t.k1, t.k1, s % 2, s)
        if p.k % t.k1:
            self._slab(affine(slabs * t.k1), p.k % t.k1, affine(slabs % 2), affine(slabs))
        for src, dst in (("MTE1", "MTE2"), ("M", "MTE1")):
            b.wait_flag(src, dst, FREE)
            b.wait_flag(src, dst, FREE + 1)
        b.order("M", "FIX")
        self.order.store()
        b.order("FIX", "M")

    def _slab(self, k: Affine, depth: int, half: Affine, first: Affine) -> None:
        """Load k..k+depth of both operands into one half of L1 and work it off in L0 slabs."""
        b, t = self.b, self.tiling
        b.wait_flag("MTE1", "MTE2", half)
        self.order.load(k, depth, half)
        b.order("MTE2", "MTE1", half)
        steps = depth // t.k0
        with b.loop(steps) as step:
            self._step(half, step * t.k0, depth, t.k0, step % 2, first, step)
        if depth % t.k0:
            self._step(half, affine(steps * t.k0), depth, depth % t.k0, affine(steps % 2), first, affine(steps))
        b.set_flag("MTE1", "MTE2", half)

    def _step(self, half: Affine, k: Affine, depth: int, width: int, side: Affine, slab: Affine, step: Affine) -> None:
        """One slab through L0 and one Mmad. The accumulator is taken over except in the very first step."""
        b = self.b
        b.wait_flag("M", "MTE1", side)
        a, w = self.order.to_l0(half, k, depth, width, side)
        b.order("MTE1", "M", side)
        self.order.multiply(a, w, width, slab + step)
        b.set_flag("M", "MTE1", side)

    def _load_bias(self) -> None:
        """The bias goes through L1 into the bias table, which Mmad reads when it starts an accumulator."""
        b, bias = self.b, self.product.bias
        assert bias is not None
        item = torch_dtype(bias.dtype).itemsize
        place = b.on("L1", b.chip.memories["L1"].nbytes - b.chip.memories["BT"].nbytes, (self.tile.n,), bias.dtype)
        b.order("M", "MTE2", 2)
        b(
            "DataCopy.GM2L1",
            place,
            b.gm(bias.param, self.tile.column * (bias.column * item), (self.tile.n,), bias.dtype, (bias.column,)),
        )
        b.order("MTE2", "MTE1", 2)
        b("DataCopy.L12BT", b.on("BT", 0, (self.tile.n,), "float32"), place)
