"""The time of steps that nobody runs is the time of the same steps run."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

from dsf.forecast import Forecast, span_fs
from dsf.hdl import load
from dsf.intent.growing import Growing
from dsf.intent.ir import Intent, attributes
from dsf.intent.tape import Region, Window

HOST = evolve(load("acme-x1").host, issue_interval_fs=10, launch_latency_fs=100)


@pytest.mark.parametrize(
    ("durations", "wanted"),
    [
        ([], 0),
        ([5], 10 + 100 + 5),
        ([5, 5], 20 + 100 + 5),  # the device is idle when the second arrives
        ([50, 50], 10 + 100 + 50 + 50),  # the second waits for the first
        ([0] * 50, 50 * 10 + 100),
    ],
)
def test_launches_are_lined_up_as_the_host_issues_them(durations: list[int], wanted: int) -> None:
    assert span_fs(durations, HOST) == wanted


def cached(length: int) -> tuple[Intent, ...]:
    window = Window((length, 8), (8, 1), 0, torch.float16)
    attend = Intent("attention", (Region(0, window),), (Region(1, window),))
    return attend, Intent("nothing", (), ()), attend


def by_length(intent: Intent) -> int:
    """A kernel in tiles of 16: a whole tile takes 1000, one more row 3."""
    rows = intent.inputs[0].shape[0]
    return rows // 16 * 1000 + rows % 16 * 3


def forecast() -> tuple[Forecast, list[Intent]]:
    asked: list[Intent] = []

    def price(intent: Intent) -> int:
        asked.append(intent)
        return by_length(intent)

    return Forecast(price, HOST), asked


def test_every_token_has_its_own_time() -> None:
    growing = Growing(cached(5), cached(6), 5, 6)
    wanted = [span_fs([by_length(cached(n)[0])] * 2, HOST) for n in range(20, 70)]
    assert forecast()[0].tokens_fs(growing, 20, 50, stride=1) == wanted


def test_lengths_between_two_that_are_timed_lie_on_a_line() -> None:
    growing = Growing(cached(5), cached(6), 5, 6)
    found, asked = forecast()
    times = found.tokens_fs(growing, 32, 33, stride=16)
    assert [i.inputs[0].shape[0] for i in asked] == [32, 48, 64]
    assert times[0] == span_fs([2000, 2000], HOST)
    assert times[4] == span_fs([2250, 2250], HOST)
    assert times[32] == span_fs([4000, 4000], HOST)


def test_equal_intents_are_priced_once() -> None:
    found, asked = forecast()
    found.step_fs(cached(7))
    found.step_fs(cached(7))
    assert len(asked) == 1


@pytest.mark.parametrize("attrs", [{}, {"has_mask": True}])
def test_intents_that_differ_are_priced_apart(attrs: dict[str, bool]) -> None:
    found, asked = forecast()
    found.step_fs([cached(7)[0], evolve(cached(7)[0], attrs=attributes(causal=True, **attrs))])
    assert len(asked) == 2
