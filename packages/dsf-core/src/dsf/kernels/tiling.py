"""Which tile a product is cut into, where a kernel that has products inside is not told: the chip's tree says so, or
else all tiles that fit are timed, once for all products alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dsf.isa import Program
from dsf.kernels.contraction import Product
from dsf.kernels.features import product_sizes
from dsf.kernels.kernel import Variant
from dsf.kernels.target import Target

__all__ = ["HEIGHTS", "WIDTHS", "best_tile"]

HEIGHTS, WIDTHS = (128, 64, 256), (128, 256, 64, 32, 16)
"""Rows and columns of the tiles worth timing, the usual ones first."""


def best_tile(
    target: Target,
    product: Product,
    tiles: Callable[[Product], Sequence[Variant]],
    alone: Callable[[Product, Variant], Program],
) -> Variant:
    """The tile for products like *product*: what the chip's tree prefers of *tiles*, else the one whose program (the
    product *alone*, only to be timed) is finished first."""
    asked = product.typical()
    known = target.memory.get(asked)
    if known is None:
        offered = tiles(asked)
        preferred = target.trees.tiles(product_sizes(asked, target.chip))
        known = next((tile for tile in preferred if tile in offered), None)
        if known is None:
            known = offered[target.timing.quickest([alone(asked, tile) for tile in offered])]
        target.memory[asked] = known
    return known
