"""The two policies of generic, and none: where they step down, and where up again. Cap 80 °C, clocks 1, 3/4 and 1/2."""

from __future__ import annotations

from fractions import Fraction

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from dsf import hdl
from dsf.generic.thermal import POLICIES, policy
from dsf.hdl import Chip


@pytest.fixture(scope="module")
def acme() -> Chip:
    return hdl.load("acme-x1")


@pytest.mark.parametrize(
    ("name", "celsius", "step", "then"),
    [
        ("ladder", 79.9, 0, 0), ("ladder", 80.0, 0, 1), ("ladder", 80.0, 1, 2), ("ladder", 99.0, 2, 2),
        ("ladder", 78.1, 2, 2), ("ladder", 78.0, 2, 1), ("ladder", 78.0, 1, 0), ("ladder", 20.0, 0, 0),
        ("threshold", 79.9, 0, 0), ("threshold", 80.0, 0, 2), ("threshold", 99.0, 2, 2),
        ("threshold", 77.1, 2, 2), ("threshold", 77.0, 2, 0), ("threshold", 20.0, 0, 0),
        ("none", 79.9, 0, 0), ("none", 99.0, 0, 0),
    ],
)  # fmt: skip
def test_a_policy_steps_down_at_the_cap_and_up_below_its_gap(
    acme: Chip, name: str, celsius: float, step: int, then: int
) -> None:
    chosen = policy(acme, name)
    assert chosen is not None
    assert (chosen.name, chosen.next_step(celsius, step, acme)) == (name, then)


@given(st.floats(-40, 150), st.floats(0, 50), st.integers(0, 2), st.sampled_from([*POLICIES]))
def test_no_policy_runs_faster_where_it_is_warmer(
    acme: Chip, celsius: float, more: float, step: int, name: str
) -> None:
    next_step = POLICIES[name].next_step
    assert next_step(celsius + more, step, acme) >= next_step(celsius, step, acme)


@pytest.mark.parametrize(("tenths", "wanted"), [((10, 6, 4, 2), 2), ((10, 9), 1), ((10,), 0)])
def test_half_clock_is_the_fastest_step_of_half_or_less_and_else_the_slowest(
    acme: Chip, tenths: tuple[int, ...], wanted: int
) -> None:
    assert acme.power is not None
    chip = evolve(acme, power=evolve(acme.power, frequencies=tuple(Fraction(t, 10) for t in tenths)))
    assert POLICIES["threshold"].next_step(90.0, 0, chip) == wanted


def test_a_name_that_nobody_gave_is_no_policy(acme: Chip) -> None:
    assert policy(acme, "laddr") is None


def test_without_a_cap_nothing_is_too_warm(acme: Chip) -> None:
    chip = evolve(acme, thermal=None)
    assert [p.next_step(500.0, 0, chip) for p in POLICIES.values()] == [0, 0, 0]
