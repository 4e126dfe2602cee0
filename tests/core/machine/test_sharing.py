"""Blocks dealt to cores and bandwidth shared by them, against the simplest program that does the same."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsf.machine.sharing import deal, fair_share_fs

SECOND = 10**15


def one_by_one(blocks: list[int], cycles: list[int], cores: int) -> Counter[tuple[int, ...]]:
    free, loads = [0] * cores, [[0] * len(blocks) for _ in range(cores)]
    for kind, count in enumerate(blocks):
        for _ in range(count):
            core = free.index(min(free))
            free[core] += cycles[kind]
            loads[core][kind] += 1
    return Counter(tuple(load) for load in loads if any(load))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40)), min_size=1, max_size=4), st.integers(1, 9))
def test_every_block_goes_to_the_core_that_is_free_first(kinds: list[tuple[int, int]], cores: int) -> None:
    blocks, cycles = [n for n, _ in kinds], [c for _, c in kinds]
    assert deal(blocks, cycles, cores) == one_by_one(blocks, cycles, cores)


def test_a_short_last_row_goes_where_the_long_rows_left_room() -> None:
    """Five blocks of 10 on four cores leave three free at 10; four of 3 fill those before the one that is at 20."""
    assert deal([5, 4], [10, 3], 4) == {(2, 0): 1, (1, 1): 2, (1, 2): 1}


def test_a_million_blocks_are_dealt_in_rounds() -> None:
    assert deal([1_000_003], [7], 24) == {(41667,): 19, (41666,): 5}


@pytest.mark.parametrize(
    ("parts", "bandwidth", "most", "seconds"),
    [
        ({100: 4}, 100, None, 4),  # four equal parts fill the memory
        ({100: 4}, 1000, None, Fraction(4, 10)),
        ({100: 4}, 1000, 50, 2),  # each core takes 50 a second, whatever the memory could give
        ({100: 1, 400: 1}, 100, None, 5),  # the second has the memory alone after 2 s
        ({100: 1, 400: 1}, 100, 50, 8),  # alone, it still takes no more than 50
        ({0: 3, 60: 2}, 60, None, 2),
        ({}, 60, None, 0),
        ({100: 4}, None, 10, 0),  # a memory without a bandwidth holds nobody up
    ],
)
def test_cores_share_a_memory_fairly(
    parts: dict[int, int], bandwidth: int | None, most: int | None, seconds: Fraction
) -> None:
    assert fair_share_fs(parts, bandwidth, most) == seconds * SECOND


@given(st.dictionaries(st.integers(1, 10**6), st.integers(1, 30), min_size=1, max_size=5), st.integers(1, 10**6))
def test_sharing_wastes_nothing_and_no_core_beats_its_own_port(parts: dict[int, int], most: int) -> None:
    total, slack = sum(n * cores for n, cores in parts.items()), len(parts)
    spent = fair_share_fs(parts, 10**6, None)
    assert abs(spent - total * SECOND // 10**6) <= slack
    assert fair_share_fs(parts, 10**6, most) >= max(spent, max(parts) * SECOND // most - slack)
