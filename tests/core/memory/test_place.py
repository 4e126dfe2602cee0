"""The plan of a step's temporaries: lives that meet lie apart, the room of the dead is used again."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dsf.memory.place import Life, place


def test_temporaries_that_live_together_lie_side_by_side() -> None:
    plan = place([Life(100, 0, 2), Life(600, 1, 2), Life(512, 2, 2)], 512)
    assert (plan.offsets, plan.nbytes) == ((0, 512, 1536), 2048)


def test_a_chain_needs_two_places_only() -> None:
    """Each temporary is read while the next one is written; then its room is free."""
    plan = place([Life(512, n, n + 1) for n in range(10)], 512)
    assert plan.offsets == (0, 512) * 5
    assert plan.nbytes == 1024


def test_room_is_free_after_the_last_touch_and_not_at_it() -> None:
    assert place([Life(512, 0, 3), Life(512, 3, 4)], 512).offsets == (0, 512)
    assert place([Life(512, 0, 2), Life(512, 3, 4)], 512).offsets == (0, 0)


def test_the_room_of_two_neighbours_serves_a_larger_one() -> None:
    plan = place([Life(512, 0, 1), Life(512, 0, 1), Life(1024, 2, 3)], 512)
    assert (plan.offsets, plan.nbytes) == ((0, 512, 0), 1024)


def test_offsets_come_in_the_order_of_the_lives_given() -> None:
    plan = place([Life(512, 5, 6), Life(1024, 0, 9)], 512)
    assert plan.offsets == (1024, 0)


def test_a_temporary_that_is_never_read_lives_for_one_position() -> None:
    assert place([Life(512, 0, 0), Life(512, 1, 1)], 512).offsets == (0, 0)


def test_nothing_needs_no_room() -> None:
    assert (place([], 512).offsets, place([], 512).nbytes) == ((), 0)


lives = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 30), st.integers(0, 12)).map(
        lambda t: Life(t[0], t[1], t[1] + t[2])
    ),
    max_size=40,
)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(lives)
def test_no_two_lives_that_meet_overlap(lives: list[Life]) -> None:
    plan = place(lives, 256)
    spans = [(o, o + max(1, life.nbytes), life) for o, life in zip(plan.offsets, lives, strict=True)]
    for n, (start, end, life) in enumerate(spans):
        assert start % 256 == 0
        assert end <= plan.nbytes
        for other_start, other_end, other in spans[n + 1 :]:
            if life.first <= other.last and other.first <= life.last:
                assert end <= other_start or other_end <= start


@settings(deadline=None, derandomize=True, max_examples=100)
@given(lives)
def test_the_workspace_is_no_larger_than_all_together_and_no_smaller_than_the_fullest_moment(lives: list[Life]) -> None:
    units = [256 * max(1, -(-life.nbytes // 256)) for life in lives]
    moments = [sum(u for u, life in zip(units, lives, strict=True) if life.first <= t <= life.last) for t in range(45)]
    assert max(moments, default=0) <= place(lives, 256).nbytes <= sum(units)
