"""The integrator against closed forms, to 1e-9 K, and the laws that any thermal network obeys."""

from __future__ import annotations

from math import exp, log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsf import errors
from dsf.hdl import FrozenDict, Thermal, ThrottleStep
from dsf.machine.thermal import Network

AIR = 30.0
GOAL = 1e-9  # K
SECONDS = st.floats(1e-6, 3600)
WATTS = st.floats(0, 1000)


def network(nodes: dict[str, float], edges: dict[tuple[str, str], float], heated: str = "die") -> Network:
    rungs = (ThrottleStep(95.0, 1),)  # type: ignore[arg-type]
    return Network(Thermal(AIR, heated, FrozenDict(nodes), FrozenDict(edges), rungs, 3.0, 105.0), AIR)


def one(capacity: float = 200.0, resistance: float = 0.6) -> Network:
    return network({"die": capacity}, {("die", "ambient"): resistance})


def two() -> Network:
    return network({"die": 50.0, "sink": 2022.0}, {("die", "sink"): 0.025, ("sink", "ambient"): 0.0724})


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """A tree of up to five nodes that hangs on the air, its edges either way round."""
    count = draw(st.integers(1, 5))
    names = [f"n{i}" for i in range(count)]
    edges = {}
    for i, name in enumerate(names):
        other = names[draw(st.integers(0, i - 1))] if i else "ambient"
        ends = (name, other) if draw(st.booleans()) else (other, name)
        edges[ends] = draw(st.floats(0.01, 2))
    capacities = {name: draw(st.floats(1, 3000)) for name in names}
    return network(capacities, edges, draw(st.sampled_from(names)))


# Closed forms


@pytest.mark.parametrize("dt", [0.1, 1.0, 7.3, 60.0])
def test_one_node_follows_its_exponential(dt: float) -> None:
    """T(t) = T_air + P R (1 - exp(-t / RC)), for steps of a tenth of a second to a minute."""
    chip = one()
    for n in range(1, 100):
        chip.step(75.0, dt)
        assert chip.celsius == pytest.approx(AIR + 45 * (1 - exp(-n * dt / 120)), abs=GOAL)


@pytest.mark.parametrize("dt", [0.1, 1.0, 7.3, 60.0])
def test_two_nodes_follow_their_two_exponentials(dt: float) -> None:
    """With a = 1 / R_d C_d, b = 1 / R_d C_s, c = 1 / R_s C_s the rates solve r^2 - (a + b + c) r + a c = 0; the die's
    excess is a sum of both modes whose start and slope are those of the final state's negative."""
    c_d, c_s, r_d, r_s, watts = 50.0, 2022.0, 0.025, 0.0724, 300.0
    a, b, c = 1 / (r_d * c_d), 1 / (r_d * c_s), 1 / (r_s * c_s)
    root = sqrt((a + b + c) ** 2 - 4 * a * c)
    fast, slow = (a + b + c + root) / 2, 2 * a * c / (a + b + c + root)
    final = watts * (r_d + r_s)
    weight = (watts / c_d - slow * final) / (fast - slow)  # of the fast mode: the first watt goes into the die alone
    chip = two()
    for n in range(1, 100):
        chip.step(watts, dt)
        t = n * dt
        expected = AIR + final - weight * exp(-fast * t) - (final - weight) * exp(-slow * t)
        assert chip.celsius == pytest.approx(expected, abs=GOAL)


def test_the_time_to_a_cap_is_the_logarithm() -> None:
    """t = tau ln((T_ss - T_0) / (T_ss - T_cap))."""
    chip = one()
    chip.step(100.0, 120 * log((90 - 30) / (90 - 85)))
    assert chip.celsius == pytest.approx(85, abs=GOAL)


def test_the_period_of_a_hysteresis_is_two_logarithms() -> None:
    """Between 82 and 85 °C: 100 W lead to 90 °C, 50 W to 60 °C."""
    chip = one()
    chip.set({"die": 82.0})
    up, down = 120 * log((90 - 82) / (90 - 85)), 120 * log((85 - 60) / (82 - 60))
    for _ in range(50):
        chip.step(100.0, up)
        assert chip.celsius == pytest.approx(85, abs=GOAL)
        chip.step(50.0, down)
        assert chip.celsius == pytest.approx(82, abs=GOAL)


def test_a_chain_settles_at_the_sum_of_its_resistances() -> None:
    chip = two()
    chip.step(364.5, 1e6)
    assert chip.celsius == pytest.approx(AIR + 364.5 * 0.0974, abs=GOAL)
    assert chip.at("sink") == pytest.approx(AIR + 364.5 * 0.0724, abs=GOAL)
    at_once = two()
    at_once.settle(364.5)
    assert at_once.celsius == pytest.approx(chip.celsius, abs=GOAL)


def test_parallel_ways_share_the_heat() -> None:
    chip = network({"die": 10.0, "fin": 5.0}, {("die", "ambient"): 2.0, ("die", "fin"): 1.0, ("fin", "ambient"): 1.0})
    chip.settle(30.0)
    assert chip.celsius == pytest.approx(AIR + 30.0, abs=GOAL)
    assert chip.at("fin") == pytest.approx(AIR + 15.0, abs=GOAL)


# Laws


@given(networks(), WATTS, SECONDS, st.floats(0.001, 0.999))
def test_splitting_a_step_changes_nothing(chip: Network, watts: float, seconds: float, part: float) -> None:
    whole, split = chip, Network(chip.thermal, AIR)
    whole.step(watts, seconds)
    split.step(watts, seconds * part)
    split.step(watts, seconds * (1 - part))
    for node in chip.thermal.nodes:
        assert split.at(node) == pytest.approx(whole.at(node), abs=GOAL)


@given(networks(), WATTS, WATTS, SECONDS, SECONDS, st.integers(1, 200))
def test_many_rounds_in_one_go_are_those_rounds(
    chip: Network, work: float, idle: float, busy: float, pause: float, times: int
) -> None:
    at_once, one_by_one = chip, Network(chip.thermal, AIR)
    at_once.rounds([(idle, pause), (work, busy)], times)
    for _ in range(times):
        one_by_one.step(idle, pause)
        one_by_one.step(work, busy)
    for node in chip.thermal.nodes:
        assert at_once.at(node) == pytest.approx(one_by_one.at(node), abs=GOAL)


def test_a_million_short_steps_are_one_long_one() -> None:
    """Steps of 10 us against a time constant of 150 s: what each adds is 1e-7 of the way, and no rounding piles up."""
    short, long = two(), two()
    for _ in range(1_000_000):
        short.step(300.0, 1e-5)
    long.step(300.0, 10.0)
    assert short.celsius == pytest.approx(long.celsius, abs=GOAL)


@given(networks(), WATTS, st.floats(0.1, 500), SECONDS)
def test_more_power_is_never_colder(chip: Network, watts: float, more: float, seconds: float) -> None:
    hotter = Network(chip.thermal, AIR)
    chip.step(watts, seconds)
    hotter.step(watts + more, seconds)
    assert all(hotter.at(node) >= chip.at(node) - GOAL for node in chip.thermal.nodes)


@given(networks(), WATTS, st.lists(SECONDS, min_size=1, max_size=8))
def test_from_the_rooms_temperature_it_only_warms_up_and_not_beyond_the_end(
    chip: Network, watts: float, steps: list[float]
) -> None:
    end = Network(chip.thermal, AIR)
    end.settle(watts)
    before = AIR
    for seconds in steps:
        chip.step(watts, seconds)
        assert before - GOAL <= chip.celsius <= end.celsius + GOAL
        before = chip.celsius


@given(networks(), WATTS, st.floats(0.01, 600), st.data())
def test_no_energy_is_lost(chip: Network, watts: float, seconds: float, data: st.DataObject) -> None:
    """What came in is in the nodes or left to the air; the loss is integrated by Gauss on steps of at most a rate."""
    thermal = chip.thermal
    start = {node: data.draw(st.floats(-20, 120)) for node in thermal.nodes}
    fastest = max(rate for *_, rate in chip.modes.numbered)
    pieces = min(400, int(seconds * fastest) + 1)
    if seconds * fastest / pieces > 3:
        seconds = 3 * pieces / fastest
    points, weights = np.polynomial.legendre.leggauss(12)
    chip.set(start)
    lost = 0.0
    for _ in range(pieces):
        length, at = seconds / pieces, 0.0
        for point, weight in zip((points + 1) / 2 * length, weights / 2 * length, strict=True):
            chip.step(watts, point - at)
            at = point
            for (a, b), resistance in thermal.edges.items():
                if "ambient" in (a, b):
                    lost += weight * (chip.at(b if a == "ambient" else a) - AIR) / resistance
        chip.step(watts, length - at)
    kept = sum(capacity * (chip.at(n) - start[n]) for n, capacity in thermal.nodes.items())
    assert kept + lost == pytest.approx(watts * seconds, rel=1e-7, abs=1e-4)


@given(networks(), st.data())
def test_set_temperatures_are_those_that_are_read(chip: Network, data: st.DataObject) -> None:
    wanted = {node: data.draw(st.floats(-40, 150)) for node in chip.thermal.nodes}
    chip.set(wanted)
    assert {node: chip.at(node) for node in wanted} == pytest.approx(wanted, abs=GOAL)


# What is no network


def test_a_node_without_a_way_to_the_air_is_named() -> None:
    with pytest.raises(
        errors.HdlError, match=r"^DSF-H021: /thermal/edges: no way leads from lid to ambient; add an edge"
    ):
        network({"die": 1.0, "lid": 1.0}, {("die", "ambient"): 1.0})


def test_times_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(errors.HdlError, match="DSF-H021: /thermal: the times of its nodes differ by over 12 orders"):
        network({"die": 1e-9, "sink": 1e9}, {("die", "sink"): 1.0, ("sink", "ambient"): 1.0})
