"""The tile of a product inside a kernel: the tree's where it decides, else the quickest of a few, or of all."""

from __future__ import annotations

import pytest

from dsf.kernels.contraction import Batch, Product, Side
from dsf.kernels.target import Target
from dsf.kernels.tiling import best_tile
from dsf.kernels.tree import Trees, parse

TILES = ((32, 64), (256, 64), (64, 256), (64, 64))


def product(m=128, batch=()):
    sides = [Side(n, 64, 1, "float16") for n in range(3)]
    return Product(m, 512, 64, *sides, batch)


def trees(chip, doubt=0.0, **kinds):
    """A tree of one leaf by kind, that prefers these tiles."""
    found = {
        kind: {
            "kernels": {"mine": [list(tile) for tile in TILES]}, "range": {"m": [1, 4096]},
            "root": {"leaf": 1, "order": [["mine", list(tile)] for tile in order], "samples": 1, "doubt": doubt},
        }
        for kind, order in kinds.items()
    }  # fmt: skip
    return parse({"schema": 1, "hdl_hash": chip.hash, "trees": found}, chip)


class Judge:
    """A timing plane that remembers what it was asked, and likes the last best."""

    asked = ()

    def quickest(self, programs):
        self.asked = tuple(programs)
        return len(programs) - 1


@pytest.fixture
def choose(bench):
    def choose(known=None, of=None):
        judge = Judge()
        target = Target(bench.chip, bench.isa, judge, trees=known or Trees())
        tile = best_tile(target, of or product(), lambda product: TILES, lambda product, tile: tile)
        return tile, judge.asked

    return choose


def test_without_a_tree_all_are_timed(choose):
    assert choose() == ((64, 64), TILES)


def test_a_tree_that_decides_is_believed_untimed(choose, bench):
    assert choose(trees(bench.chip, linear=[(64, 256), (32, 64)])) == ((64, 256), ())


def test_of_a_tree_in_doubt_the_first_few_are_timed(choose, bench):
    known = trees(bench.chip, doubt=0.5, linear=[(64, 256), (32, 64), (64, 64), (256, 64)])
    assert choose(known) == ((64, 64), ((64, 256), (32, 64), (64, 64)))


def test_outside_of_a_tree_its_first_few_are_timed(choose, bench):
    known = trees(bench.chip, linear=[(64, 256), (32, 64)])
    assert choose(known, product(m=5000)) == ((32, 64), ((64, 256), (32, 64)))


def test_a_batch_is_a_matmul_and_none_is_a_linear(choose, bench):
    known = trees(bench.chip, linear=[(64, 256)], matmul=[(32, 64)])
    assert choose(known)[0] == (64, 256)
    assert choose(known, product(batch=(Batch(4, 1, 1, 1),)))[0] == (32, 64)


def test_a_tile_that_is_cut_like_an_offered_one_is_that_one(choose, bench):
    """Of 20 rows, a tile of 64 and one of 32 are the same."""
    known = trees(bench.chip, linear=[(128, 64)])
    assert choose(known, product(m=20)) == ((32, 64), ())
