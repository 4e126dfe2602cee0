"""The accounts of a session, on a chip of round numbers, so that every expected time is counted on fingers: issue 3 us,
launch 10 us, a copy 10 us and 12 GB/s, an operation on the host 10 us and 10 GB/s, 8 cores of 1 GHz."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import define, evolve, field
from hypothesis import given
from hypothesis import strategies as st

from dsf import hdl
from dsf.hdl import Chip, FrozenDict
from dsf.isa.program import Affine, Instruction, Loop, Nest, Operand, Phase, Program, Term
from dsf.kernels.kernel import Kernel
from dsf.ledger import Ledger
from dsf.machine.heat import Heat, Policy
from dsf.machine.timing import KernelTime, PhaseTime

US = 10**9  # femtoseconds
EMPTY = Program("empty", ())


def kernel(name: str = "k", library: str = "generic") -> Kernel:
    return Kernel(name, "linear", library, lambda target, intent: EMPTY, lambda intent: ())


def lasting(
    us: int, *, macs: int = 0, memory_us: int = 0, phases: int = 1, barrier: int = 0, **busy: int
) -> KernelTime:
    """A kernel of *phases* phases of *us* (*memory_us*) microseconds each; *busy* cycles of each engine in all."""
    phase = PhaseTime("core", 10**9, us * 1000, memory_us * US, tuple(busy.items()))
    rest = PhaseTime("core", 10**9, us * 1000, memory_us * US, ())
    return KernelTime((phase, *[rest] * (phases - 1)), barrier, macs, 0)


@define(eq=False)
class Accounts:
    """A ledger, and the least that a launch must say."""

    chip: Chip
    ledger: Ledger = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.ledger = Ledger(self.chip)

    def launch(self, time: KernelTime, *, flops: int = 0, of: Kernel | None = None, program: Program = EMPTY) -> None:
        self.ledger.launch(of or kernel(), "linear", time, flops, "first offer", program)

    def report(self) -> Any:
        return self.ledger.report("generic", "isa", "fast", 3 << 20)


@pytest.fixture
def accounts() -> Accounts:
    return Accounts(hdl.load("acme-x1"))


def test_short_kernels_cost_one_latency_and_an_interval_each(accounts: Accounts) -> None:
    """The host issues every 3 us; the last of 4 is issued at 12 us, starts 10 us later and runs 1 us."""
    for _ in range(4):
        accounts.launch(lasting(1))
    assert accounts.ledger.now_fs == (4 * 3 + 10 + 1) * US


def test_long_kernels_run_one_after_the_other(accounts: Accounts) -> None:
    """The first starts at 3 + 10 us; the others are issued long before the device is free."""
    for _ in range(3):
        accounts.launch(lasting(100))
    assert accounts.ledger.now_fs == (13 + 300) * US


def test_a_copy_waits_for_the_device_and_holds_the_host(accounts: Accounts) -> None:
    """12 kB over 12 GB/s take 1 us, starting takes 10; only then the next launch is issued."""
    accounts.launch(lasting(1))
    assert accounts.ledger.now_fs == 14 * US
    accounts.ledger.copy(12_000)
    assert accounts.ledger.now_fs == 25 * US
    accounts.launch(lasting(1))
    assert accounts.ledger.now_fs == (25 + 3 + 10 + 1) * US


def test_after_synchronising_the_latency_is_paid_again(accounts: Accounts) -> None:
    accounts.launch(lasting(1))
    accounts.ledger.synchronize()
    assert accounts.ledger.now_fs == 14 * US
    accounts.launch(lasting(1))
    assert accounts.ledger.now_fs == (14 + 3 + 10 + 1) * US


def test_a_fallback_costs_two_copies_and_the_hosts_own_time(accounts: Accounts) -> None:
    """24 kB over (10 + 2 us), 36 kB through the host's memory (10 + 3.6 us), 12 kB back (10 + 1 us)."""
    accounts.launch(lasting(1))
    accounts.ledger.fallback("aten.sort.default", 24_000, 12_000, "no kernel", 0)
    assert accounts.ledger.now_fs == 14 * US + 36_600_000_000
    (row,) = accounts.report().fallbacks
    assert (row.what, row.count, row.milliseconds, row.reason) == ("aten.sort.default", 1, 0.0366, "no kernel")
    assert row.mebibytes == 36_000 / 1_048_576


def test_the_report_divides_emulated_time(accounts: Accounts) -> None:
    """3 + 10 us until the kernel starts, 1 us of kernel, 11 us of copy, 36.6 us of host."""
    accounts.launch(lasting(1))
    accounts.ledger.copy(12_000)
    accounts.ledger.fallback("aten.sort.default", 24_000, 12_000, "no kernel", 0)
    report = accounts.report()
    assert report.emulated_milliseconds == 0.0616
    assert (report.device_milliseconds, report.copy_milliseconds, report.host_milliseconds) == (0.001, 0.011, 0.0366)
    assert report.host_share == pytest.approx(0.0366 / 0.0616)


def test_phases_are_joined_by_barriers_and_bound_by_cores_or_memory(accounts: Accounts) -> None:
    """Three phases of 4 us, two barriers of 0.5 us; then one whose bytes need 7 us while its cores need 2."""
    accounts.launch(lasting(4, phases=3, barrier=US // 2), of=kernel("joined"))
    assert accounts.ledger.now_fs == (13 + 3 * 4 + 1) * US
    accounts.launch(lasting(2, memory_us=7, vec=9), of=kernel("streamed"))
    assert accounts.ledger.now_fs == (13 + 3 * 4 + 1 + 7) * US
    accounts.launch(lasting(9, memory_us=7, vec=4, mxu=5), of=kernel("computed"))
    bounds = {row.name: row.bound for row in accounts.report().kernels}
    assert bounds == {"joined": "none", "streamed": "memory", "computed": "mxu"}  # nobody is busy in the first


def test_after_a_reset_counting_begins_at_the_present(accounts: Accounts) -> None:
    """The first kernel is still running when the reset comes: what follows starts behind it."""
    accounts.launch(lasting(100), flops=7)
    accounts.ledger.copy(1)
    accounts.ledger.fallback("aten.sort.default", 1, 1, "no kernel", 0)
    accounts.launch(lasting(100), flops=7)
    before = accounts.ledger.now_fs
    accounts.ledger.reset()
    empty = accounts.report()
    assert (empty.emulated_milliseconds, empty.launches, empty.kernels, empty.fallbacks) == (0, 0, (), ())
    assert (empty.device_milliseconds, empty.copy_milliseconds, empty.host_milliseconds) == (0, 0, 0)
    assert (empty.flops.wanted, empty.flops.executed, empty.engines) == (0, 0, ())
    accounts.launch(lasting(5))
    assert accounts.ledger.now_fs == before + 5 * US
    assert accounts.report().emulated_milliseconds == 0.005


def test_flops_are_wanted_executed_padded_or_the_hosts(accounts: Accounts) -> None:
    """A product that asks for 1000 FLOPs runs 640 multiply-accumulates; another one of 500 FLOPs runs on the host."""
    accounts.launch(lasting(1, macs=640), flops=1000)
    accounts.ledger.fallback("aten.linear.default", 8, 8, "no kernel", 500)
    flops = accounts.report().flops
    assert (flops.wanted, flops.executed, flops.padding, flops.host) == (1500, 1280, 280, 500)
    assert flops.instruction_share == pytest.approx(2 / 3)


def test_a_session_without_matrices_has_nothing_but_instructions(accounts: Accounts) -> None:
    assert accounts.report().flops.instruction_share == 1.0


def test_an_engines_share_is_of_all_its_cores_time(accounts: Accounts) -> None:
    """25 us on 8 cores of 1 GHz are 200,000 core cycles; the matrix engines work 50,000 of them."""
    accounts.launch(lasting(12, mxu=50_000, din=4))
    shares = {row.name: row.share for row in accounts.report().engines}
    assert shares == {"din": 4 / 200_000, "mxu": 0.25}
    assert {row.name: row.busy_megacycles for row in accounts.report().engines}["mxu"] == 0.05


@given(st.lists(st.tuples(st.integers(0, 50_000), st.booleans()), min_size=1, max_size=20), st.booleans())
def test_no_engine_is_busier_than_its_cores_have_time(kernels: list[tuple[int, bool]], reset: bool) -> None:
    """On a clock of 1.7 GHz, whose period is no whole number of femtoseconds, engines that never pause."""
    chip = evolve(hdl.load("acme-x1"), clocks=FrozenDict({"core": 1_700_000_000}))
    accounts = Accounts(chip)
    if reset:
        accounts.launch(lasting(1000))
        accounts.ledger.reset()
    for cycles, copies in kernels:
        phase = PhaseTime("core", chip.clocks["core"], cycles, 0, (("mxu", 8 * cycles),))
        accounts.launch(KernelTime((phase,), 0, 0, 0))
        if copies:
            accounts.ledger.copy(1)
    assert all(row.share <= 1 for row in accounts.report().engines)


def test_kernels_are_listed_by_their_time_with_their_share(accounts: Accounts) -> None:
    for us, name in ((1, "short"), (6, "long"), (1, "short"), (2, "long")):
        accounts.launch(lasting(us), flops=10**9, of=kernel(name, "acme"))
    rows = accounts.report().kernels
    assert [(r.name, r.library, r.launches, r.milliseconds, r.share, r.gflops) for r in rows] == [
        ("long", "acme", 2, 0.008, 0.8, 2.0),
        ("short", "acme", 2, 0.002, 0.2, 2.0),
    ]
    assert accounts.report().launches == 4


def test_memories_show_how_far_programs_reach(accounts: Accounts) -> None:
    """16 loops of 4096 bytes from address 1024 on, the last one 256 elements of 4 bytes long."""
    operand = Operand("sram", (256,), (1,), "float32", Affine(1024, (Term("i", 4096),)))
    body = (Loop("i", 16, (Instruction("v.fill", (operand,)),)),)
    program = Program("fill", (), (Phase("core", (Nest((("block", 2),), body),)),))
    accounts.launch(lasting(1), program=program)
    rows = {row.name: (row.scope, row.mebibytes, row.peak_mebibytes) for row in accounts.report().memory}
    assert rows == {
        "hbm": ("chip", 16384, 3.0),
        "sram": ("core", 1, (1024 + 15 * 4096 + 1024) / 1_048_576),
    }


def test_a_ping_pong_buffer_reaches_as_far_as_its_modulus(accounts: Accounts) -> None:
    operand = Operand("sram", (8,), (2,), "float16", Affine(0, (Term("i", 512, 2),)))
    program = Program("p", (), (Phase("core", (Nest((("i", 100),), (Instruction("v.fill", (operand,)),)),)),))
    accounts.launch(lasting(1), program=program)
    assert accounts.report().memory[1].peak_mebibytes == (512 + 30) / 1_048_576


# Origins


def _measured(node: Any) -> Any:
    """A description in which everything was measured."""
    if isinstance(node, dict):
        return {k: "measured" if k == "origin" else _measured(v) for k, v in node.items()}
    return [_measured(v) for v in node] if isinstance(node, list) else node


@pytest.fixture
def origins(described: Callable[..., Path]) -> Callable[..., dict[str, str]]:
    """The origins of a report of one launch (of the `mxu` and `din` engines), one copy and one fallback, when all
    numbers of the chip are measured but those at *pointers*, which are estimates; with heat if there is a *policy*."""

    def origins(*pointers: str, phases: int = 1, policy: Policy | None = None, **room: float) -> dict[str, str]:
        path = described()
        document = _measured(json.loads(path.read_text("utf-8")))
        for pointer in pointers:
            node = document
            for key in pointer.split("/")[1:]:
                node = node[int(key) if isinstance(node, list) else key]
            node["origin"] = "estimate"
        path.write_text(json.dumps(document), "utf-8")
        accounts = Accounts(hdl.load(path))
        if policy is not None:
            accounts.ledger.heat = Heat(accounts.chip, policy, accounts.ledger.timeline, **room)
            accounts.ledger.copy(24 * 10**9)  # two seconds: the policy is asked
        accounts.launch(lasting(1, mxu=1, din=1, phases=phases))
        accounts.ledger.copy(1)
        accounts.ledger.fallback("aten.sort.default", 1, 1, "no kernel", 0)
        found: dict[str, str] = accounts.report().origins
        return found

    return origins


TIMES = ("device time", "emulated time", "host time")


@pytest.mark.parametrize(
    ("pointer", "weakened"),
    [
        ("/clocks/core", {"device time", "emulated time"}),
        ("/cores/core/count", {"device time", "emulated time"}),
        ("/engines/mxu/rates/mac", {"device time", "emulated time"}),
        ("/engines/mxu/startup", {"device time", "emulated time"}),
        ("/engines/vec/rates/exp", set()),
        ("/paths/hbm->sram/width", {"device time", "emulated time"}),
        ("/paths/hbm->sram/startup", {"device time", "emulated time"}),
        ("/paths/sram->hbm/width", set()),
        ("/memories/hbm/bandwidth", {"device time", "emulated time"}),
        ("/host/launch_latency", {"emulated time"}),
        ("/host/issue_interval", {"emulated time"}),
        ("/host/copy_bandwidth", {"emulated time", "host time"}),
        ("/host/copy_latency", {"emulated time", "host time"}),
        ("/host/op_latency", {"emulated time", "host time"}),
        ("/host/op_bandwidth", {"emulated time", "host time"}),
        ("/power/limit", set()),
    ],
)
def test_a_time_is_as_sure_as_its_weakest_number(
    origins: Callable[..., dict[str, str]], pointer: str, weakened: set[str]
) -> None:
    found = origins(pointer)
    assert {name for name in TIMES if found[name] == "estimate"} == weakened
    assert {found[name] for name in TIMES} <= {"measured", "estimate"}


def test_a_barrier_counts_where_there_is_one(origins: Callable[..., dict[str, str]]) -> None:
    assert origins("/sync/barrier")["device time"] == "measured"
    assert origins("/sync/barrier", phases=2)["device time"] == "estimate"


def test_what_is_counted_is_derived_and_what_the_wall_clock_says_is_measured(
    origins: Callable[..., dict[str, str]],
) -> None:
    found = origins()
    assert (found["memory"], found["flops"], found["host wall time"]) == ("derived", "derived", "measured")


FREE = Policy("free", lambda celsius, step, chip: 0)
SLOW = Policy("slow", lambda celsius, step, chip: 1)
HEAT = ("power", "ambient", "temperature", "throttling")


@pytest.mark.parametrize(
    ("pointer", "weakened"),
    [
        ("/power/states/idle", {"power", "temperature", "throttling"}),
        ("/power/engines/mxu", {"power", "temperature", "throttling"}),
        ("/power/memory", {"power", "temperature", "throttling"}),
        ("/clocks/core", {"power", "temperature", "throttling"}),
        ("/thermal/ambient", {"ambient", "temperature", "throttling"}),
        ("/thermal/nodes/die", {"temperature", "throttling"}),
        ("/thermal/edges/die->ambient", {"temperature", "throttling"}),
        ("/thermal/control/cap", {"throttling"}),
        ("/thermal/control/period", {"throttling"}),
        ("/thermal/throttle/hysteresis", {"throttling"}),
        ("/thermal/throttle/ladder/0/above", {"throttling"}),
        ("/power/frequencies", {"throttling"}),
        ("/power/voltage_floor", {"throttling"}),
        ("/power/limit", set()),
    ],
)
def test_heat_is_as_sure_as_its_weakest_number(
    origins: Callable[..., dict[str, str]], pointer: str, weakened: set[str]
) -> None:
    found = origins(pointer, policy=FREE)
    assert {name for name in HEAT if found[name] == "estimate"} == weakened


def test_a_room_that_was_asked_for_is_no_ones_guess(origins: Callable[..., dict[str, str]]) -> None:
    found = origins("/thermal/ambient", policy=FREE, ambient=40.0)
    assert "ambient" not in found
    assert {found[name] for name in ("temperature", "throttling")} == {"measured"}


@pytest.mark.parametrize(("policy", "sure"), [(FREE, "measured"), (SLOW, "estimate")])
def test_times_at_clocks_that_heat_lowered_are_as_sure_as_heat(
    origins: Callable[..., dict[str, str]], policy: Policy, sure: str
) -> None:
    found = origins("/thermal/nodes/die", policy=policy)
    assert (found["device time"], found["emulated time"], found["host time"]) == (sure, sure, "measured")


def test_a_kernel_at_slower_clocks_is_bound_by_what_it_then_waits_for(accounts: Accounts) -> None:
    """4 us of cores beside 5 us of memory: at 3/4 of the clocks 5.33 us of cores."""
    accounts.ledger.heat = Heat(accounts.chip, SLOW, accounts.ledger.timeline)
    time = lasting(4, memory_us=5, mxu=9)
    accounts.launch(time)
    assert accounts.report().kernels[0].bound == "memory"
    accounts.ledger.copy(24 * 10**9)
    accounts.ledger.reset()
    accounts.launch(time)
    (row,) = accounts.report().kernels
    assert (row.bound, row.milliseconds) == ("mxu", pytest.approx(4 * 4 / 3 / 1000))
