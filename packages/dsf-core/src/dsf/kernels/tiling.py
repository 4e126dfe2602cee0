"""Which tile a product is cut into, where a kernel that has products inside is not told: the chip's tree says so, or
else all tiles that fit are timed, once for all products alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from dsf.isa import Program
from dsf.kernels.contraction import Product
from dsf.kernels.cutting import cut
from dsf.kernels.features import product_sizes
from dsf.kernels.kernel import Variant
from dsf.kernels.target import Target

__all__ = ["HEIGHTS", "WIDTHS", "best_tile"]

HEIGHTS, WIDTHS = (128, 64, 256), (128, 256, 64, 32, 16)
"""Rows and columns of the tiles worth timing, the usual ones first."""

SHORT = 3  # tiles that are timed where a tree does not decide


def best_tile(
    target: Target,
    product: Product,
    tiles: Callable[[Product], Sequence[Variant]],
    alone: Callable[[Product, Variant], Program],
) -> Variant:
    """The tile for products like *product*, of *tiles*: the one that the chip's tree prefers; where it does not decide,
    of its first few (of all, where there is no tree) the one whose program, the product *alone*, is finished first."""
    asked = product.typical()
    known = target.memory.get(asked)
    if known is None:
        offered = tiles(asked)
        short, decided = _preferred(target, asked, offered)
        quickest = 0 if decided else target.timing.quickest([alone(asked, tile) for tile in short])
        known = target.memory[asked] = short[quickest]
    return known


def _preferred(target: Target, product: Product, offered: Sequence[Variant]) -> tuple[Sequence[Variant], bool]:
    """Those of *offered* that the tree prefers, the best first, and whether it decides. A product without a batch is
    what a linear layer is."""
    sizes = product_sizes(product, target.chip)
    advice = target.trees.advice("matmul" if product.batch else "linear", sizes)
    if advice is None:
        return offered, False
    alike = {cut(sizes, tile): tile for tile in reversed(offered)}
    preferred = (alike.get(cut(sizes, tile)) for _, tile in advice.order() if len(tile) > 1)
    short = list(islice((tile for tile in preferred if tile is not None), SHORT))
    return (short, advice.decides) if short else (offered, False)
