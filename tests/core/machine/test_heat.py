"""Heat in the loop, on the invented chip: one node of 200 J/K and 0.6 K/W (so 120 s), a room of 25 °C, 15 W idle, a
cap of 80 °C with clock steps 1, 3/4 and 1/2, the firmware's rung at 85 °C, and off at 100 °C. A cycle of `mxu` costs
6 nJ, of `din` 0.1 nJ, a byte of main memory 40 pJ; the voltage is 1/2 + 1/2 of the clocks' share."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import exp
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st

from dsf import errors, hdl
from dsf.generic.thermal import POLICIES
from dsf.hdl import Chip
from dsf.isa.program import Program
from dsf.kernels.kernel import Kernel
from dsf.ledger import Ledger
from dsf.machine.heat import Heat, Policy, check_ambient, coldness, slowed
from dsf.machine.timeline import Timeline
from dsf.machine.timing import KernelTime, PhaseTime

SECOND, MS, US = 10**15, 10**12, 10**9  # femtoseconds
GOAL = 1e-9  # K
IDLE = 25 + 15 * 0.6  # °C
EMPTY = Program("empty", ())
KERNEL = Kernel("k", "linear", "generic", lambda target, intent: EMPTY, lambda intent: ())
NONE = POLICIES["none"]


def busy(fs: int, watts: float = 60.0, memory_fs: int = 0) -> KernelTime:
    """A kernel of *fs* on cores of 1 GHz that draws *watts* beyond idle at full clock, all of them in `mxu`."""
    cycles = fs // 10**6
    work = round(watts * cycles / 10**9 / 6e-9)
    return KernelTime((PhaseTime("core", 10**9, cycles, memory_fs, (("mxu", work),)),), 0, 0, 0)


@define(eq=False)
class Desk:
    """A ledger with heat, and the least that a launch must say."""

    chip: Chip
    policy: Policy = NONE
    ambient: float | None = None
    ledger: Ledger = field(init=False)
    heat: Heat = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.ledger = Ledger(self.chip)
        self.heat = self.ledger.heat = Heat(self.chip, self.policy, self.ledger.timeline, self.ambient)

    def launch(self, time: KernelTime) -> int:
        """The femtoseconds that the kernel ran."""
        before = self.heat.busy_fs
        self.ledger.launch(KERNEL, "linear", time, 10, "first offer", EMPTY)
        return self.heat.busy_fs - before

    def rest(self, fs: int) -> None:
        """The host is busy with something else: a copy of that length."""
        host = self.chip.host
        self.ledger.copy((fs - host.copy_latency_fs) * host.copy_bandwidth // SECOND)

    @property
    def summary(self) -> Any:
        return self.ledger.report("generic", "timing", "fast", 0).heat


@pytest.fixture(scope="session")
def acme() -> Chip:
    return hdl.load("acme-x1")


@pytest.fixture
def desk(acme: Chip) -> Desk:
    return Desk(acme)


# What is drawn, and how warm that makes


def test_a_session_begins_with_a_chip_that_was_idle_for_long(desk: Desk) -> None:
    assert desk.summary.celsius == pytest.approx(IDLE, abs=GOAL)
    assert (desk.summary.mean_watts, desk.summary.peak_watts, desk.summary.joules) == (15, 15, 0)


def test_a_kernel_draws_its_cycles_and_its_bytes(desk: Desk) -> None:
    """8,000 cycles of mxu cost 48 uJ, 3,000 of din 0.3 uJ, 10,000 bytes 0.4 uJ; what has no energy costs none."""
    phase = PhaseTime("core", 10**9, 1000, 0, (("din", 3000), ("mxu", 8000), ("seq", 99)))
    assert desk.heat.energy(KernelTime((phase,), 0, 0, 10_000)) == pytest.approx(48.7e-6, rel=1e-12)


def test_slower_clocks_draw_less_by_the_square_of_the_voltage(desk: Desk) -> None:
    """At 1/2 of the clocks the voltage is 3/4: cycles cost 9/16, the memory's bytes as much as ever."""
    desk.heat.share = Fraction(1, 2)
    phase = PhaseTime("core", 10**9, 1000, 0, (("mxu", 8000),))
    assert desk.heat.energy(KernelTime((phase,), 0, 0, 10_000)) == pytest.approx(48e-6 * 9 / 16 + 0.4e-6, rel=1e-12)


def test_kernels_and_pauses_follow_the_exponential(desk: Desk) -> None:
    """30 s of 75 W (towards 70 °C), a copy of 45 s at 15 W, 13 us until the next kernel, 20 s of 55 W (towards 58)."""
    desk.launch(busy(30 * SECOND, 60))
    warm = 70 - (70 - IDLE) * exp(-30 / 120)
    assert desk.summary.celsius == pytest.approx(warm, abs=GOAL)
    desk.rest(45 * SECOND)
    cool = IDLE + (warm - IDLE) * exp(-45 / 120)
    assert desk.summary.celsius == pytest.approx(cool, abs=GOAL)
    desk.launch(busy(20 * SECOND, 40))
    start = IDLE + (cool - IDLE) * exp(-13e-6 / 120)
    assert desk.summary.celsius == pytest.approx(58 - (58 - start) * exp(-20 / 120), abs=GOAL)


def test_energy_and_power_are_those_that_were_drawn(desk: Desk) -> None:
    """13 us of 15 W, 2 s of 75 W, a copy of 3 s at 15 W."""
    desk.launch(busy(2 * SECOND, 60))
    desk.rest(3 * SECOND)
    found = desk.summary
    assert found.joules == pytest.approx(13e-6 * 15 + 150 + 45, rel=1e-12)
    assert found.mean_watts == pytest.approx(found.joules / (5 + 13e-6), rel=1e-9)
    assert found.peak_watts == 75
    desk.ledger.reset()
    assert (desk.summary.joules, desk.summary.peak_watts) == (0, 15)
    assert desk.summary.celsius == found.celsius == desk.summary.peak_celsius


def test_the_peak_is_what_the_sensor_read_at_most(desk: Desk) -> None:
    desk.launch(busy(60 * SECOND, 60))
    hot = desk.summary.celsius
    desk.rest(100 * SECOND)
    assert desk.summary.peak_celsius == pytest.approx(hot, abs=0.4)  # the last whole second before the end
    assert desk.summary.celsius < hot - 5


def test_looking_changes_nothing(acme: Chip) -> None:
    seen, unseen = Desk(acme, POLICIES["ladder"], 60.0), Desk(acme, POLICIES["ladder"], 60.0)
    for _ in range(40):
        seen.launch(busy(3 * SECOND, 60))
        unseen.launch(busy(3 * SECOND, 60))
        _ = seen.summary
    assert seen.summary == unseen.summary
    assert seen.ledger.now_fs == unseen.ledger.now_fs


# Many launches in one go


def listening(policy: Policy, heard: list[float]) -> Policy:
    """*policy*, which notes every temperature that it is asked about."""

    def next_step(celsius: float, step: int, chip: Chip) -> int:
        heard.append(celsius)
        return policy.next_step(celsius, step, chip)

    return Policy(policy.name, next_step)


@given(
    st.integers(0, 400 * MS), st.floats(0, 120), st.integers(1, 60), st.integers(0, 5), st.sampled_from([25.0, 75.0]),
    st.sampled_from([*POLICIES]),
)  # fmt: skip
@settings(deadline=None)
def test_again_and_again_is_as_launch_by_launch(
    acme: Chip, fs: int, watts: float, times: int, before: int, room: float, policy: str
) -> None:
    """Short and long kernels, behind which the device may be; also where it gets too warm on the way."""
    heard, told = list[float](), list[float]()
    one_by_one = Desk(acme, listening(POLICIES[policy], heard), room)
    at_once = Desk(acme, listening(POLICIES[policy], told), room)
    time, long = busy(fs // 10**6 * 10**6, watts), busy(20 * US, 0)
    for desk in (one_by_one, at_once):
        for _ in range(before):
            desk.launch(long)
        desk.launch(time)
    for _ in range(times):
        one_by_one.launch(time)
    at_once.ledger.again(times)
    one, once = (d.ledger.report("generic", "timing", "fast", 0) for d in (one_by_one, at_once))
    assert at_once.ledger.now_fs == one_by_one.ledger.now_fs
    assert once.kernels == one.kernels
    assert once.flops == one.flops
    assert once.engines == one.engines
    assert told == pytest.approx(heard, abs=GOAL)
    assert once.heat.celsius == pytest.approx(one.heat.celsius, abs=GOAL)
    assert once.heat.joules == pytest.approx(one.heat.joules, rel=1e-12)
    assert (once.heat.throttled_share, once.heat.peak_watts) == (one.heat.throttled_share, one.heat.peak_watts)


@pytest.mark.parametrize("long", [1, 4, 5, 6, 7, 8, 9, 100])
def test_launches_that_catch_up_with_the_host_do_so_launch_by_launch(acme: Chip, long: int) -> None:
    """Behind by a kernel of up to 100 us, kernels of 1 us follow without a pause, then after a pause of less than 2 us,
    and then one every 3 us."""
    one_by_one, at_once = Ledger(acme), Ledger(acme)
    short = busy(US)
    for ledger in (one_by_one, at_once):
        ledger.launch(KERNEL, "linear", busy(long * US), 0, "", EMPTY)
        ledger.launch(KERNEL, "linear", short, 0, "", EMPTY)
    for _ in range(100):
        one_by_one.launch(KERNEL, "linear", short, 0, "", EMPTY)
    at_once.again(100)
    assert at_once.now_fs == one_by_one.now_fs


# What the temperature does


def test_slower_clocks_slow_the_cores_down_and_not_the_memory_s_port() -> None:
    """4 us of cores and 7 us of memory, then 4 us of cores alone, one barrier of 1 us: at half clock 8, 8 and 2 us."""
    phases = tuple(PhaseTime("core", 10**9, 4000, memory, ()) for memory in (7 * US, 0))
    time = KernelTime(phases, US, 0, 0)
    assert time.duration_fs == (7 + 4 + 1) * US
    assert slowed(time, Fraction(1, 2)).duration_fs == (8 + 8 + 2) * US
    assert slowed(time, Fraction(4, 7)).duration_fs == pytest.approx((7 + 7 + 7 / 4) * US, rel=1e-8)  # in whole Hz
    assert slowed(time, Fraction(1)) == time


class Script:
    """A policy that answers from a list and remembers what it was asked."""

    def __init__(self, *steps: int) -> None:
        self.steps, self.asked = list(steps), list[tuple[float, int]]()
        self.policy = Policy("script", self)

    def __call__(self, celsius: float, step: int, chip: Chip) -> int:
        self.asked.append((celsius, step))
        return self.steps[min(len(self.asked), len(self.steps)) - 1]


def test_the_policy_is_asked_once_every_period_of_emulated_time(acme: Chip) -> None:
    script = Script(0)
    desk = Desk(acme, script.policy)
    desk.launch(busy(SECOND * 7 // 2, 60))
    assert len(script.asked) == 3
    for n, (celsius, _) in enumerate(script.asked, 1):
        assert celsius == pytest.approx(70 - (70 - IDLE) * exp(-(n - 13e-6) / 120), abs=1e-8)
    desk.rest(2 * SECOND)
    assert len(script.asked) == 5


def test_a_step_acts_on_the_next_kernel_and_not_on_the_running_one(acme: Chip) -> None:
    script = Script(2, 2, 2, 1, 0)
    desk = Desk(acme, script.policy)
    assert desk.launch(busy(2 * SECOND)) == 2 * SECOND
    assert desk.launch(busy(SECOND)) == 2 * SECOND  # at 1/2
    assert desk.launch(busy(SECOND * 3 // 4)) == SECOND  # at 3/4
    assert desk.launch(busy(SECOND)) == SECOND
    assert [step for _, step in script.asked[:6]] == [0, 2, 2, 2, 1, 0]
    assert desk.summary.throttled_share == pytest.approx(3 / 6)
    assert desk.summary.lowest_frequency_share == 0.5


@pytest.mark.parametrize("answer", [3, -1, "1", None, 1.0])
def test_an_answer_that_is_no_step_is_told_with_the_policys_name(acme: Chip, answer: object) -> None:
    desk = Desk(acme, Policy("wild", lambda celsius, step, chip: answer))  # type: ignore[arg-type, return-value]
    with pytest.raises(
        errors.PluginError,
        match=rf"^DSF-P008: the thermal policy 'wild', asked at 34.3\d* °C and step 0, answered step {answer!r}; "
        r"expected 0 to 2, a frequency of acme-x1; mend it, or choose another \(thermal\)$",
    ):
        desk.launch(busy(SECOND * 3 // 2))


def test_a_policy_that_fails_is_told_with_its_cause(acme: Chip) -> None:
    desk = Desk(acme, Policy("wild", lambda celsius, step, chip: 1 // 0))
    with pytest.raises(
        errors.PluginError, match=r"'wild', asked at .* failed with ZeroDivisionError: integer division"
    ):
        desk.launch(busy(SECOND * 3 // 2))


def test_the_firmware_slows_down_whatever_the_policy_says_and_lets_go_below_its_hysteresis(acme: Chip) -> None:
    """Above 85 °C half clock, until below 80 °C. A room of 60 °C: 75 W lead to 105 °C."""
    desk = Desk(acme, NONE, 60.0)
    shares = []
    for _ in range(4000):
        desk.launch(busy(100 * MS, 60))
        shares.append((desk.heat.share, desk.heat.network.celsius))
    turns = [i for i in range(1, len(shares)) if shares[i][0] != shares[i - 1][0]]
    assert {share for share, _ in shares} == {1, Fraction(1, 2)}
    assert shares[turns[0]][1] == pytest.approx(85.2, abs=0.3)
    assert shares[turns[1]][1] == pytest.approx(79.9, abs=0.3)
    assert desk.summary.peak_celsius < 85.4
    assert len(turns) > 3


def test_a_chip_that_gets_too_hot_is_off_and_says_so(described: Callable[..., Path]) -> None:
    rung = [{"above": _q("98 °C"), "frequency": _q("1/2")}]
    chip = hdl.load(described({"/thermal/throttle/ladder": rung}))
    desk = Desk(chip, NONE, 75.0)
    sentence = (
        r"^DSF-D021: acme-x1 has switched itself off: 100.\d °C after \d+ s, and its firmware allows 100 °C; the room "
        r"has 75 °C, the thermal policy is 'none'; enable it anew in a cooler room \(ambient\) or with another policy$"
    )
    desk.launch(busy(SECOND, 140))
    with pytest.raises(errors.DeviceError, match=sentence) as first:
        desk.ledger.again(1000)
    launches = desk.ledger.report("generic", "timing", "fast", 0).launches
    with pytest.raises(errors.DeviceError) as second:
        desk.launch(busy(SECOND, 140))
    assert str(second.value) == str(first.value)
    assert first.value.exit_status == 2
    desk.rest(1000 * SECOND)
    assert desk.summary.celsius == pytest.approx(75, abs=0.1)  # it draws nothing
    assert desk.ledger.report("generic", "timing", "fast", 0).launches == launches


@given(st.floats(20, 79), st.floats(0, 5), st.sampled_from([*POLICIES]))
@settings(deadline=None, max_examples=25)
def test_a_warmer_room_never_makes_it_faster(acme: Chip, room: float, more: float, policy: str) -> None:
    """Under endless load, with the slack of one swing of the policy."""
    ends = []
    for ambient in (room, min(room + more, 80.0)):
        desk = Desk(acme, POLICIES[policy], ambient)
        desk.launch(busy(200 * MS, 60))
        desk.ledger.again(1500)
        ends.append(desk.ledger.now_fs)
    assert ends[1] >= ends[0] * 0.98


# Rooms


@pytest.mark.parametrize("ambient", [-40, 0, 25.5, 71])
def test_a_possible_room_is_taken(acme: Chip, ambient: float) -> None:
    assert check_ambient(acme, ambient, "ambient") == ambient


@pytest.mark.parametrize(
    ("ambient", "found"),
    [
        (-40.1, "-40.1 °C"), (71.1, "71.1 °C"), (10**400, f"'1{'0' * 39}', which is no temperature"),
        (1e9, r"1e\+09 °C"), (float("nan"), "'nan', which is no temperature"),
        (float("inf"), "'inf', which is no temperature"), ("warm", "'warm', which is no temperature"),
        (True, "'True', which is no temperature"), (None, "'None', which is no temperature"),
    ],
)  # fmt: skip
def test_an_impossible_room_is_refused_with_what_would_do(acme: Chip, ambient: object, found: str) -> None:
    with pytest.raises(
        errors.DeviceError,
        match=rf"^DSF-D020: DSF_AMBIENT: found {found}; "
        "expected the room's air in °C, from -40 to 71, in which acme-x1 at rest reaches its cap$",
    ):
        check_ambient(acme, ambient, "DSF_AMBIENT")


def test_a_chip_without_heat_takes_no_room(described: Callable[..., Path]) -> None:
    chip = hdl.load(described({"/thermal": None}))
    with pytest.raises(
        errors.DeviceError, match=r"^DSF-D020: ambient: .* has no /thermal, .*it has no temperature; leave it out$"
    ):
        check_ambient(chip, 20, "ambient")


def test_where_a_load_would_settle_is_the_networks_steady_state(acme: Chip) -> None:
    heat = Heat(acme, POLICIES["none"], Timeline())
    resistance = heat.settled(1.0) - heat.network.ambient
    assert heat.settled(0.0) == heat.network.ambient
    assert heat.settled(120.0) == pytest.approx(heat.network.ambient + 120 * resistance)
    assert heat.network.celsius == pytest.approx(heat.settled(heat.idle_watts))  # it has rested for long
    assert heat.cap == 80.0


# Chips without heat


@pytest.mark.parametrize(
    ("dropped", "said"),
    [
        ("/power", "no /power/states/idle, no /power/engines"),
        ("/power/engines", "no /power/engines"),
        ("/power/states/idle", "no /power/states/idle"),
        ("/thermal", "no /thermal, no /thermal/control"),
        ("/thermal/control", "no /thermal/control"),
    ],
)
def test_a_chip_whose_description_says_too_little_has_no_heat_and_its_report_says_why(
    described: Callable[..., Path], session_on: Callable[..., Any], dropped: str, said: str
) -> None:
    session = session_on(described({dropped: None}))
    report = session.report()
    assert report.heat is None
    assert report.no_heat == coldness(session.chip) == f"the hardware description of acme-x1 has {said}"
    assert f"heat (derived): none: the hardware description of acme-x1 has {said}" in str(report)


def _q(value: str) -> dict[str, str]:
    return {"value": value, "origin": "estimate", "source": "acme"}
