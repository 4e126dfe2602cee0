"""Simulated time: in order, ties by arrival, never backwards."""

from __future__ import annotations

import pytest

from dsf.machine.timeline import Timeline


def test_actions_happen_in_order_of_time_and_ties_in_order_of_arrival() -> None:
    line, seen = Timeline(), []
    for time, name in ((30, "c"), (10, "a"), (20, "b1"), (20, "b2"), (20, "b3")):
        line.at(time, lambda name=name: seen.append((line.now_fs, name)))
    line.run()
    assert seen == [(10, "a"), (20, "b1"), (20, "b2"), (20, "b3"), (30, "c")]
    assert line.now_fs == 30


def test_advancing_does_what_is_due_and_no_more() -> None:
    line, seen = Timeline(), []
    for time in (5, 10, 15):
        line.at(time, lambda time=time: seen.append(time))
    line.advance(10)
    assert (seen, line.now_fs) == ([5, 10], 10)
    line.advance(12)
    assert (seen, line.now_fs) == ([5, 10], 12)
    line.run()
    assert (seen, line.now_fs) == ([5, 10, 15], 15)


def test_an_action_may_call_for_more() -> None:
    line, seen = Timeline(), []

    def tick() -> None:
        seen.append(line.now_fs)
        if len(seen) < 4:
            line.at(line.now_fs + 7, tick)

    line.at(1, tick)
    line.run()
    assert seen == [1, 8, 15, 22]


def test_what_an_action_calls_for_now_comes_behind_what_is_due_now() -> None:
    line, seen = Timeline(), []
    line.at(3, lambda: (seen.append("first"), line.at(3, lambda: seen.append("third"))))
    line.at(3, lambda: seen.append("second"))
    line.run()
    assert seen == ["first", "second", "third"]


def test_time_does_not_run_backwards() -> None:
    line = Timeline()
    line.advance(100)
    line.advance(50)
    assert line.now_fs == 100
    with pytest.raises(AssertionError, match=r"^99 fs is over: it is 100 fs$"):
        line.at(99, lambda: None)
