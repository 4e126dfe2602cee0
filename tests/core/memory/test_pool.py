"""The allocator: first fit, merged holes, exact accounts; and against a model that knows every byte."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsf.memory.pool import Pool


def test_requests_are_served_side_by_side_in_whole_units() -> None:
    pool = Pool(4096, 512)
    assert [pool.take(n) for n in (1, 512, 513)] == [0, 512, 1024]
    assert (pool.used, pool.blocks) == (2048, {0: 512, 512: 512, 1024: 1024})


def test_a_request_of_nothing_takes_one_unit() -> None:
    """Two tensors without elements have addresses that differ."""
    pool = Pool(1024, 512)
    assert (pool.take(0), pool.take(0), pool.take(0)) == (0, 512, None)


def test_the_first_hole_that_is_large_enough_is_taken() -> None:
    pool = Pool(8 * 512, 512)
    places = [pool.take(512) for _ in range(8)]
    for index in (1, 3, 4, 6):
        pool.give(places[index] or 0)
    assert pool.take(1024) == 3 * 512  # the hole at 1 is too small
    assert pool.take(512) == 1 * 512
    assert pool.take(512) == 6 * 512
    assert pool.take(1) is None


def test_neighbouring_holes_become_one() -> None:
    pool = Pool(4 * 512, 512)
    for place in [pool.take(512) for _ in range(4)]:
        assert place is not None
    for place in (0, 1024, 512):  # the last one closes the gap on both sides
        pool.give(place)
    assert pool.largest_hole == 1536
    assert pool.take(1536) == 0


def test_what_is_given_back_says_how_large_it_was() -> None:
    pool = Pool(4096, 512)
    pool.take(700)
    assert pool.give(0) == 1024
    assert (pool.used, pool.largest_hole) == (0, 4096)


def test_a_block_is_given_back_once() -> None:
    pool = Pool(4096, 512)
    pool.take(512)
    pool.give(0)
    with pytest.raises(KeyError):
        pool.give(0)
    with pytest.raises(KeyError):
        pool.give(512)


def test_the_peak_stays_when_blocks_go() -> None:
    pool = Pool(4096, 512)
    pool.take(1024)
    pool.take(512)
    pool.give(0)
    pool.take(512)
    assert (pool.used, pool.peak) == (1024, 1536)


def test_a_full_pool_changes_nothing() -> None:
    pool = Pool(1024, 512)
    pool.take(600)
    assert pool.take(1) is None
    assert (pool.used, pool.peak, pool.largest_hole) == (1024, 1024, 0)


def test_addresses_begin_at_the_base() -> None:
    pool = Pool(2048, 512, base=1 << 20)
    assert [pool.take(512), pool.take(512)] == [1 << 20, (1 << 20) + 512]


def test_a_pool_of_nothing_serves_nobody() -> None:
    assert Pool(0, 512).take(1) is None


UNIT, UNITS = 64, 40


class Model:
    """Which unit belongs to whom, unit by unit."""

    def __init__(self) -> None:
        self.owner: list[int | None] = [None] * UNITS

    def take(self, units: int, name: int) -> int | None:
        for start in range(UNITS - units + 1):
            if all(o is None for o in self.owner[start : start + units]):
                self.owner[start : start + units] = [name] * units
                return start
        return None

    def give(self, name: int) -> None:
        self.owner = [None if o == name else o for o in self.owner]

    @property
    def largest(self) -> int:
        holes = "".join(" " if o is None else "x" for o in self.owner).split("x")
        return max(map(len, holes))


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12 * UNIT)), max_size=60))
def test_any_history_gives_what_a_model_of_every_byte_gives(history: list[tuple[bool, int]]) -> None:
    pool, model, alive, peak = Pool(UNIT * UNITS, UNIT), Model(), [], 0
    for name, (takes, number) in enumerate(history):
        if takes or not alive:
            start = model.take(max(1, -(-number // UNIT)), name)
            assert pool.take(number) == (None if start is None else start * UNIT)
            alive += [] if start is None else [(name, start * UNIT)]
        else:
            gone, address = alive.pop(number % len(alive))
            pool.give(address)
            model.give(gone)
        used = UNIT * sum(o is not None for o in model.owner)
        peak = max(peak, used)
        assert (pool.used, pool.peak, pool.largest_hole) == (used, peak, UNIT * model.largest)
        assert sorted(pool.blocks) == sorted(address for _, address in alive)
