"""Products on the matrix engine of any chip: operand tiles in scratch, twice buffered, results in the accumulator.

main -inbound-> scratch -matrix-> accumulator -outbound-> main (rounded on the way)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product as product_of

from attrs import frozen

from dsf import errors
from dsf.intent.ir import Intent
from dsf.isa import Affine, Builder, Operand, Program
from dsf.isa.program import affine, torch_dtype
from dsf.kernels import contraction
from dsf.kernels.contraction import (
    LIMITS,
    LINEAR_LIMITS,
    ROUNDING,
    Product,
    Side,
    Tile,
    batch_product,
    batch_reference,
    emit_batch,
    emit_linear,
    linear_product,
    linear_reference,
)  # fmt: skip
from dsf.kernels.kernel import AS_IT_IS, Kernel, Variant
from dsf.kernels.target import Target
from dsf.kernels.tiling import HEIGHTS, WIDTHS, best_tile

__all__ = ["KERNELS", "emit_product"]

FLAT = (32, 16)  # rows of the tiles for an accumulator that has no room for more
BLOCK = 16  # elements: whole bursts of every 16-bit or wider format


@frozen
class Tiling:
    """Rows and columns of a result tile, and the depth of an operand slab."""

    m: int
    n: int
    k: int


@frozen
class Names:
    """The instructions, engines and memories that a product uses on this chip, and the dtype of its sums."""

    load: str
    load_acc: str
    store: str
    matmul: str
    inbound: str
    outbound: str
    matrix: str
    scratch: str
    acc: str
    core: str
    sums: str

    @classmethod
    def of(cls, target: Target, dtype: str) -> Names:
        matmul, load, store = target.row("matmul", dtype), target.row("load"), target.row("store.matrix")
        acc, scratch = matmul.operands[0][1].spaces[0], matmul.operands[1][1].spaces[0]
        if load.operands[0][1].spaces[0] != scratch or store.operands[1][1].spaces[0] != acc:
            raise errors.KernelError(
                "DSF-K008",
                f"{target.isa.name}: generic loads into {load.operands[0][1].spaces[0]}, but the matrix engine reads "
                f"{scratch}; such a chip needs its vendor's kernels",
            )
        return cls(
            load.name, f"copy.{target.chip.main_memory.name}.{acc}", store.name, matmul.name,
            load.engine, store.engine, matmul.engine, scratch, acc, target.core_of(matmul),
            matmul.operands[0][1].dtypes[0],
        )  # fmt: skip


def emit_product(b: Builder, target: Target, product: Product, tile: Variant = AS_IT_IS) -> None:
    """Emit one phase that computes *product* in *tile*, or the best one. A bias starts in the accumulator, which some
    instruction must reach from main memory."""
    if product.bias is not None:
        target.row("load.acc")
    names = Names.of(target, product.a.dtype)
    emit_tiled(b, names, product, best_tiling(target, names, product, tile))


def best_tiling(target: Target, names: Names, product: Product, tile: Variant = AS_IT_IS) -> Tiling:
    """The tiling with *tile*; if none is named, with the best for products like *product*."""
    if not tile:
        tile = best_tile(target, product, partial(tiles, target, names), partial(_alone, target, names))
    tiling = tiling_of(target, names, product, tile)
    if tiling is None:
        raise errors.KernelError(
            "DSF-K003", f"{target.isa.name}: no tile of a product of {product} fits {names.scratch} and {names.acc}"
        )
    return tiling


def _up(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def tiling_of(target: Target, names: Names, product: Product, tile: Variant) -> Tiling | None:
    """*tile* cut to *product*, with the deepest slabs of which two fit the scratch memory; None if it is too large."""
    memories, item = target.chip.memories, torch_dtype(product.a.dtype).itemsize
    m, n = min(int(tile[0]), product.m), min(int(tile[1]), product.n)
    deepest = memories[names.scratch].nbytes // 2 // ((_up(m) + _up(n)) * item) // BLOCK * BLOCK
    depth = min(deepest, 512, _up(product.k))
    return Tiling(m, n, depth) if _up(m) * _up(n) * 4 <= memories[names.acc].nbytes and depth >= BLOCK else None


def tiles(target: Target, names: Names, product: Product) -> tuple[Variant, ...]:
    """The tiles worth timing, rows and columns: those that fit; flat ones where none of the usual height does."""
    for heights in (HEIGHTS, FLAT):
        found: dict[Tiling, Variant] = {}
        for tile in product_of(heights, WIDTHS):
            tiling = tiling_of(target, names, product, tile)
            if tiling is not None:
                found.setdefault(tiling, tile)
        if found:
            return tuple(found.values())
    raise errors.KernelError(
        "DSF-K003", f"{target.isa.name}: no tile of a product of {product} fits {names.scratch} and {names.acc}"
    )


def variants(product: Callable[[Intent], Product], target: Target, intent: Intent) -> tuple[Variant, ...]:
    """The tiles of a kernel that is nothing but the *product* of its intent."""
    wanted = product(intent)
    return tiles(target, Names.of(target, wanted.a.dtype), wanted)


def _alone(target: Target, names: Names, product: Product, tile: Variant) -> Program:
    """The program of the product alone; it is only timed."""
    b = target.builder("tiling")
    extents = product.extents()
    for param in range(1 + max(extents)):
        b.param(f"p{param}", "inout", extents.get(param, 0))
    emit_tiled(b, names, product, best_tiling(target, names, product, tile))
    return b.sketch()


def emit_tiled(b: Builder, names: Names, product: Product, tiling: Tiling) -> None:
    """One phase: a nest for the inner tiles and one for each ragged edge."""
    for tile in contraction.tiles(b, names.core, product, tiling.m, tiling.n):
        _Block(b, names, product, tiling, tile).emit()


@frozen
class _Block:
    b: Builder
    names: Names
    product: Product
    tiling: Tiling
    tile: Tile

    def emit(self) -> None:
        b, names, p, depth = self.b, self.names, self.product, self.tiling.k
        for half in (0, 1):
            b.set_flag(names.matrix, names.inbound, half)
        first = self._start()
        slabs = p.k // depth
        with b.loop(slabs) as s:
            self._slab(s * depth, depth, s % 2, s + first)
        if p.k % depth:
            self._slab(affine(slabs * depth), p.k % depth, affine(slabs % 2), affine(slabs + first))
        for half in (0, 1):
            b.wait_flag(names.matrix, names.inbound, half)
        b.order(names.matrix, names.outbound, 0)
        b(names.store, self.tile.out(), self._acc())
        b.order(names.outbound, names.matrix, 0)

    def _start(self) -> int:
        """Put a bias into the accumulator: 1 where there is something to add to, 0 where the first product starts."""
        b, bias, names = self.b, self.product.bias, self.names
        if bias is None:
            return 0
        offset = self.tile.column * (bias.column * torch_dtype(bias.dtype).itemsize)
        source = b.gm(bias.param, offset, (self.tile.m, self.tile.n), bias.dtype, (0, bias.column))
        b.order(names.matrix, names.inbound, 2)  # which has waited for the last block's result to leave
        b(names.load_acc, self._acc(), source)
        return 1

    def _slab(self, k: Affine, depth: int, half: Affine, accumulate: Affine) -> None:
        b, names, p = self.b, self.names, self.product
        a, w = (
            self._scratch(p.a, half, 0, (self.tile.m, depth)),
            self._scratch(p.b, half, self._b_start(), (depth, self.tile.n)),
        )
        b.wait_flag(names.matrix, names.inbound, half)
        b(names.load, a, self.tile.a(k, depth))
        self.tile.load_w(names.load, w, k, depth)
        b.order(names.inbound, names.matrix, half)
        b(names.matmul, self._acc(), a, w, accumulate=accumulate)
        b.set_flag(names.matrix, names.inbound, half)

    def _b_start(self) -> int:
        item = torch_dtype(self.product.a.dtype).itemsize
        align = self.b.chip.memories[self.names.scratch].alignment
        return -(-_up(self.tiling.m) * self.tiling.k * item // align) * align

    def _scratch(self, side: Side, half: Affine, start: int, shape: tuple[int, int]) -> Operand:
        """A slab in scratch, in main memory's own order."""
        stride = (shape[1], 1) if side.column == 1 else (1, shape[0])
        size = self.b.chip.memories[self.names.scratch].nbytes // 2
        return self.b.on(self.names.scratch, half * size + start, shape, side.dtype, stride)

    def _acc(self) -> Operand:
        return self.b.on(self.names.acc, 0, (self.tile.m, self.tile.n), self.names.sums)


KERNELS = (
    Kernel("generic.matmul", "linear", "generic", partial(emit_linear, emit_product, "generic.matmul"),
           linear_reference, LINEAR_LIMITS, ROUNDING, "derived from the HDL", partial(variants, linear_product)),
    Kernel("generic.batch_matmul", "matmul", "generic", partial(emit_batch, emit_product, "generic.batch_matmul"),
           batch_reference, LIMITS, ROUNDING, "derived from the HDL", partial(variants, batch_product)),
)  # fmt: skip
