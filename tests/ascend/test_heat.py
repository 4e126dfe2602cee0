"""A 910B2 under endless float16 products of 8192 x 8192 matrices: as warm as FlagPerf measured one, not throttled in a
normal room, throttled in a hot one. Programs are timed, not run, and half an hour passes in one go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import dsf

Minutes = Callable[..., tuple[Any, Any]]
HALF_AN_HOUR = 1800 * 10**15  # femtoseconds


@pytest.fixture
def half_an_hour() -> Iterator[Minutes]:
    """Reports of the first product and of half an hour of them, under a policy in a room."""

    def half_an_hour(thermal: str = "ladder", ambient: float | None = None) -> tuple[Any, Any]:
        session = dsf.enable("ascend-910b2", fidelity="timing", thermal=thermal, ambient=ambient)
        a = torch.empty(8192, 8192, dtype=torch.float16, device="npu")
        product = a @ a  # its life keeps it wanted
        first = dsf.report(reset=True)
        while session.now_fs() < HALF_AN_HOUR:
            session.ledger.again(1000)
        del product
        return first, dsf.report()

    dsf.disable()
    yield half_an_hour
    dsf.disable()


def milliseconds_each(report: Any) -> float:
    (kernel,) = report.kernels
    each: float = kernel.milliseconds / kernel.launches
    return each


def test_endless_products_draw_and_warm_up_as_measured(half_an_hour: Minutes) -> None:
    """FlagPerf: 364.5 W at 313.2 TFLOPS and 65.5 °C. Power follows the emulated rate of the products."""
    _, report = half_an_hour()
    assert report.heat.mean_watts == pytest.approx(364.5, rel=0.03)
    assert report.heat.celsius == pytest.approx(65.5, abs=1.5)


def test_a_streamed_addition_draws_the_watts_of_the_memory_state(half_an_hour: Minutes) -> None:
    half_an_hour()
    x, y = (torch.empty(8192, 8192, dtype=torch.float16, device="npu") for _ in range(2))
    dsf.report(reset=True)
    z = x + y
    report = dsf.report()
    del z
    assert report.heat.peak_watts == pytest.approx(164, rel=0.05)


@pytest.mark.parametrize("thermal", ["ladder", "threshold", "none"])
def test_in_a_normal_room_nothing_is_throttled(half_an_hour: Minutes, thermal: str) -> None:
    first, report = half_an_hour(thermal)
    assert (report.heat.throttled_share, report.heat.lowest_frequency_share) == (0, 1)
    assert milliseconds_each(report) == pytest.approx(milliseconds_each(first), rel=1e-12)


def test_in_a_room_of_55_degrees_the_policies_throttle_and_the_ladder_does_more_work(half_an_hour: Minutes) -> None:
    """The cap is held; products take as much longer as the mean clock is lower."""
    launches = {}
    for thermal in ("ladder", "threshold"):
        first, report = half_an_hour(thermal, 55)
        assert report.heat.throttled_share > 0.2
        assert 85 <= report.heat.peak_celsius < 86
        assert milliseconds_each(report) > 1.05 * milliseconds_each(first)
        launches[thermal] = report.launches
    assert launches["ladder"] > 1.03 * launches["threshold"]


def test_without_a_policy_the_cap_is_passed_and_the_times_stay(half_an_hour: Minutes) -> None:
    first, report = half_an_hour("none", 55)
    assert report.heat.celsius > 88
    assert milliseconds_each(report) == pytest.approx(milliseconds_each(first), rel=1e-12)


def test_at_a_room_of_75_degrees_only_the_firmware_keeps_it_from_shutting_down(half_an_hour: Minutes) -> None:
    """75 + 35 °C are above the shutdown at 105; the firmware's rung at 95 °C halves the clocks."""
    _, report = half_an_hour("none", 75)
    assert 95 <= report.heat.peak_celsius < 97
    assert report.heat.lowest_frequency_share == 0.5
    assert 0.1 < report.heat.throttled_share < 1
