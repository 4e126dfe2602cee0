"""Which of several tiles wastes least of the cores' time on a product, by counting alone.

A tile costs what it covers, *rows* for each row and *columns* for each column of it (what has to be brought to a tile
goes with its edges), and *each* for being there. Tiles are dealt to cores in waves; the ragged ones fill up the last.
No number of a chip is in here but how many cores share: how much an edge counts beside an area is what a tree decides,
and it learned that from predicted times.
"""

from __future__ import annotations

from collections.abc import Iterable

from dsf.kernels.features import FRACTAL, Sizes
from dsf.kernels.kernel import Variant

__all__ = ["LEAST", "cut", "least"]

LEAST = "least"
"""The mark of a rule in the place of a tile: ("least", rows, columns, each)."""


def least(sizes: Sizes, tiles: Iterable[Variant], rule: Variant) -> Variant:
    """The tile of (m, n) among *tiles* that costs least by *rule*; of equals the largest, then the highest."""
    _, rows, columns, each = rule
    return min(tiles, key=lambda tile: _cost(sizes, tile, int(rows), int(columns), int(each)))


def _cost(sizes: Sizes, tile: Variant, rows: int, columns: int, each: int) -> tuple[float, int, int]:
    m, n, cores = sizes["m"], sizes["n"], sizes["cores"]
    high, wide = min(m, int(tile[0])), min(n, int(tile[1]))
    down, low = divmod(m, high)
    across, narrow = divmod(n, wide)
    inner = down * across * sizes["batch"]

    high, wide, low, narrow = ((size + FRACTAL - 1) // FRACTAL * FRACTAL for size in (high, wide, low, narrow))
    full = high * wide + rows * high + columns * wide + each
    total, slowest = inner * full, -(-inner // cores) * full
    if low or narrow:
        right = high * narrow + rows * high + columns * narrow + each if narrow else 0
        bottom = low * wide + rows * low + columns * wide + each if low else 0
        corner = low * narrow + rows * low + columns * narrow + each if low and narrow else 0
        total += (down * right + across * bottom + corner) * sizes["batch"]
        if inner % cores == 0:
            slowest += max(right, bottom)
    return max(slowest, total / cores), -high * wide, -high


def cut(sizes: Sizes, tile: Variant) -> tuple[int, int]:
    """*tile* as the product cuts it: tiles that are cut alike are one."""
    return min(sizes["m"], int(tile[0])), min(sizes["n"], int(tile[1]))
