"""The river on tapes written by hand: plans, places, fallbacks, fidelities, each without a torch device."""

from __future__ import annotations

import re
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import dsf
from dsf import errors, hdl
from dsf.memory.place import Life, place
from dsf.pipeline import Session

Maker = Callable[..., Any]
MIB = 1 << 20


@pytest.fixture
def write(session_on: Maker, hand: Maker) -> Maker:
    """A tape to write by hand, for a session on the invented chip with these options."""
    return lambda **options: hand(session_on(**options))


@pytest.fixture
def small(described: Maker) -> Maker:
    """The invented chip with so many MiB of main memory for programs, and none reserved."""

    def small(mebibytes: int, **changes: str) -> Any:
        size = {"value": f"{mebibytes} MiB", "origin": "estimate", "source": "acme"}
        return hdl.load(described({"/memories/hbm/size": size, "/memories/hbm/reserved": None, **changes}))

    return small


# Plans


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the segments that were parsed."""
    from dsf import pipeline

    seen: list[int] = []
    plain = pipeline.parse
    monkeypatch.setattr(pipeline, "parse", lambda tape, **how: seen.append(len(tape.ops)) or plain(tape, **how))
    return seen


def step(tape: Any, x: Any, weights: list[Any]) -> Any:
    """A stack of equal layers, each a product and an activation, which one kernel serves together."""
    for n, weight in enumerate(weights):
        y = tape.op("linear.default", x, weight, scope=f"layers.{n}")
        x = tape.op("relu.default", y, scope=f"layers.{n}", keep=n + 1 == len(weights))
    return x


def test_equal_layers_are_planned_once(write: Maker, parsed: list[int]) -> None:
    """Of 8 layers the first reads what was uploaded, the others read what the one before left: two structures."""
    tape = write()
    step(tape, tape.put(torch.ones(4, 16)), [tape.put(torch.eye(16)) for _ in range(8)])
    tape.run()
    assert parsed == [2, 2]
    assert tape.session.report().launches == 8


def test_a_step_of_the_same_lengths_is_not_planned_again(write: Maker, parsed: list[int]) -> None:
    tape = write()
    weights = [tape.put(torch.eye(16)) for _ in range(3)]
    for _ in range(2):
        step(tape, tape.put(torch.ones(4, 16)), weights)
        tape.run()
    assert len(parsed) == 2
    step(tape, tape.put(torch.ones(5, 16)), weights)
    tape.run()
    assert len(parsed) == 4


def test_a_plan_is_shared_but_the_numbers_are_not(write: Maker) -> None:
    tape = write()
    weights = [tape.put(torch.eye(16) * n) for n in (2, 3, 5)]
    results = []
    for start in (1.0, 7.0):
        results.append(step(tape, tape.put(torch.full((4, 16), start)), weights))
        tape.run()
    assert [tape.value(r).unique().tolist() for r in results] == [[30.0], [210.0]]


def test_what_a_later_layer_reads_is_there(write: Maker) -> None:
    """`neg` could disappear inside `exp`, whose only reader it has in its own layer; the next layer reads it too."""
    tape = write()
    x = tape.put(torch.ones(8))
    negative = tape.op("neg.default", x, scope="layers.0")
    tape.op("exp.default", negative, scope="layers.0", keep=True)
    total = tape.op("mul.Tensor", negative, x, scope="layers.1", keep=True)
    tape.run()
    assert tape.value(total).tolist() == [-1.0] * 8


# Places


def test_lives_that_meet_have_bytes_of_their_own() -> None:
    """Every pair, over many random plans: sharing a byte means that one was dead before the other was born."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda high: int(torch.randint(high, (), generator=generator))  # noqa: E731
    for _ in range(50):
        lives = [Life(1 + draw(5000), first, first + draw(6)) for first in (draw(12) for _ in range(20))]
        placement = place(lives, 512)
        for a, x in enumerate(lives):
            assert placement.offsets[a] % 512 == 0
            assert placement.offsets[a] + x.nbytes <= placement.nbytes
            for b, y in enumerate(lives[:a]):
                apart = placement.offsets[a] + x.nbytes <= placement.offsets[b] or (
                    placement.offsets[b] + y.nbytes <= placement.offsets[a]
                )
                assert apart or x.last < y.first or y.last < x.first


def test_the_dead_give_their_room_to_the_unborn() -> None:
    """A chain of ten temporaries, each read by the next step only, needs the room of two."""
    assert place([Life(512, n, n + 1) for n in range(10)], 512).nbytes == 2 * 512


def test_temporaries_cost_no_more_than_the_most_that_live_at_once(small: Maker, session_on: Maker, hand: Maker) -> None:
    """Ten results of 1 MiB one after the other, input and last output in memory of their own: 4 MiB are enough."""
    tape = hand(session_on(small(4)))
    x = tape.put(torch.ones(512, 512))
    for n in range(10):
        x = tape.op("relu.default", x, scope=f"layers.{n}", keep=n == 9)
    tape.run()
    assert tape.session.peak == 4 * MIB
    assert tape.value(x).eq(1).all()


def test_outputs_outlive_the_next_steps_temporaries(write: Maker) -> None:
    tape = write()
    x = tape.put(torch.arange(2048.0))
    first = tape.op("mul.Tensor", x, 2.0, keep=True)
    tape.run()
    held = tape.value(first)
    for n in range(6):
        x = tape.op("neg.default", x, scope=f"layers.{n}", keep=n == 5)
    tape.run()
    assert torch.equal(tape.value(first), held)
    assert torch.equal(tape.value(x), torch.arange(2048.0))


def test_out_of_memory_says_all_and_leaves_nothing_behind(small: Maker, session_on: Maker, hand: Maker) -> None:
    """8 MiB; input 1 MiB, the first output 4 MiB, the second one of 4 MiB does not fit into the 3 that are left."""
    tape = hand(session_on(small(8)))
    x = tape.put(torch.ones(512, 512))
    tape.op("cat.default", (x, x, x, x), keep=True, line=7)
    tape.op("cat.default", (x, x, x, x), keep=True, line=8)
    sentence = (
        "DSF-M001: hbm of acme-x1: needed 4.0 MiB, available 3.0 MiB of 8.0 MiB (largest piece 3.0 MiB), recorded "
        "at model.py:8; use a smaller model, batch or context, a narrower dtype, or a chip with more memory "
        "(dsf-cli chips)\n"
        "  4.0 MiB in 1 tensor recorded at model.py:7\n"
        "  1.0 MiB in 1 tensor whose line was not recorded"
    )
    with pytest.raises(errors.OutOfMemory, match=f"^{re.escape(sentence)}$") as caught:
        tape.run()
    assert caught.value.exit_status == 2
    assert isinstance(caught.value, MemoryError)
    assert tape.session.allocated == 1 * MIB


def test_out_of_memory_names_the_line_of_this_step_not_of_an_equal_one_before(
    small: Maker, session_on: Maker, hand: Maker
) -> None:
    tape = hand(session_on(small(8)))
    x = tape.put(torch.ones(512, 512))
    for line in (10, 20):
        tape.op("cat.default", (x, x, x, x), keep=True, line=line)
        if line == 10:
            tape.run()
    with pytest.raises(errors.OutOfMemory, match=r"recorded at model\.py:20;"):
        tape.run()


def test_temporaries_that_do_not_fit_are_out_of_memory_too(small: Maker, session_on: Maker, hand: Maker) -> None:
    tape = hand(session_on(small(8)))
    x = tape.put(torch.ones(512, 512))
    whole = tape.op("cat.default", (x,) * 8, line=31)
    tape.op("sum.default", whole, keep=True, scope="layers.0", line=32)
    with pytest.raises(errors.OutOfMemory, match=r"needed 8.0 MiB, .*, recorded at model.py:31;"):
        tape.run()
    assert tape.session.allocated == 1 * MIB


def test_room_kept_for_temporaries_gives_way_to_what_is_asked_for(small: Maker, session_on: Maker, hand: Maker) -> None:
    """8 MiB; a step of 1 MiB with temporaries of 5. Then 6 MiB are asked for, and the step runs again beside 1 MiB."""
    tape = hand(session_on(small(8)))
    x = tape.put(torch.ones(512, 512))
    total = []
    for _ in range(2):
        wide = tape.op("cat.default", (x,) * 5)
        total.append(tape.op("sum.default", wide, scope="layers.0", keep=True))
        tape.run()
        address = tape.session.allocate(6 * MIB, None)
        tape.session.free(address)
    assert [tape.value(t).item() for t in total] == [5 * 512 * 512] * 2


@pytest.mark.parametrize("fidelity", ["isa", "operator", "timing"])
def test_every_fidelity_needs_the_same_memory(write: Maker, fidelity: str) -> None:
    """Also the workspaces of programs: what fits in one fits in all."""
    tape = write(fidelity=fidelity)
    q, k, v = (tape.put(torch.zeros(1, 4, 64, 32)) for _ in range(3))
    tape.op("scaled_dot_product_attention.default", q, k, v, keep=True)
    tape.run()
    peaks = tape.session.peak
    other = write(fidelity="isa")
    q, k, v = (other.put(torch.zeros(1, 4, 64, 32)) for _ in range(3))
    other.op("scaled_dot_product_attention.default", q, k, v, keep=True)
    other.run()
    assert peaks == other.session.peak > 4 * 4 * 64 * 32 * 4


def test_a_step_that_fails_while_it_runs_leaves_nothing_behind(write: Maker) -> None:
    """The host finds out only then that a matrix is not positive definite."""
    tape = write()
    x = tape.put(-torch.eye(4))
    before = tape.session.allocated
    tape.op("linalg_cholesky_ex.default", x, check_errors=True, keep=True)
    with pytest.raises(torch.linalg.LinAlgError):
        tape.run()
    assert tape.session.allocated == before


# Fallbacks


def test_an_operation_nobody_serves_runs_on_the_host_and_is_priced(write: Maker) -> None:
    """128 bytes there: 10 us + 128 B / 12 GB/s; the host: 10 us + 512 B / 10 GB/s; 384 bytes back (values and int64
    indices): 10 us + 384 B / 12 GB/s. In femtoseconds, rounded down one by one."""
    tape = write()
    x = tape.put(torch.randn(4, 8))
    values, indices = tape.op("cummax.default", x, 1, keep=True, line=3)
    start = tape.session.now_fs()
    tape.run()
    price = 10**10 + 10_666_666 + 10**10 + 51_200_000 + 10**10 + 32_000_000
    assert tape.session.now_fs() - start == price
    wanted = torch.cummax(tape.value(x), 1)
    assert torch.equal(tape.value(values), wanted.values)
    assert torch.equal(tape.value(indices), wanted.indices)
    (row,) = tape.session.report().fallbacks
    assert (row.what, row.count, row.reason) == ("aten.cummax.default", 1, "no kernel of this kind is offered")
    assert (row.milliseconds, row.mebibytes) == (price / 10**12, 512 / MIB)


def test_every_fallback_is_counted_once(write: Maker) -> None:
    tape = write()
    x = tape.put(torch.randn(4, 8))
    for n in range(3):
        x, _ = tape.op("cummax.default", x, 1, scope=f"layers.{n}", keep=True)
    tape.op("linalg_inv_ex.default", tape.put(torch.eye(3)), keep=True)
    tape.run()
    counts = {row.what: row.count for row in tape.session.report().fallbacks}
    assert counts == {"aten.cummax.default": 3, "aten.linalg_inv_ex.default": 1}
    assert tape.session.report().launches == 0


def test_a_fallback_waits_for_the_kernel_before_it(write: Maker) -> None:
    tape = write()
    x = tape.put(torch.randn(4, 8))
    y = tape.op("neg.default", x, keep=True)
    values, _ = tape.op("cummax.default", y, 1, keep=True)
    tape.run()
    assert torch.equal(tape.value(values), torch.cummax(-tape.value(x), 1).values)
    report = tape.session.report()
    assert report.launches == 1
    assert report.emulated_milliseconds == pytest.approx(
        0.013 + report.device_milliseconds + report.host_milliseconds + report.copy_milliseconds
    )


def test_under_strict_a_fallback_is_an_error_that_names_operation_and_line(write: Maker) -> None:
    tape = write(strict=True)
    before = tape.session.allocated
    x = tape.put(torch.randn(4, 8))
    tape.op("cummax.default", x, 1, keep=True, line=41)
    sentence = (
        "DSF-F001: aten.cummax.default (recorded at model.py:41) would run on the host, which strict forbids: no "
        "kernel of this kind is offered; enable without strict to have it priced and counted"
    )
    with pytest.raises(errors.FallbackError, match=f"^{re.escape(sentence)}$"):
        tape.run()
    assert tape.session.allocated == before + 512
    assert tape.session.report().fallbacks == ()


def test_what_the_device_hands_to_the_host_is_priced_and_forbidden_alike(session_on: Maker) -> None:
    """12 kB there and 24 kB back: 11 us, 13.6 us, 12 us."""
    session = session_on()
    session.host_op("aten.nonzero.default", 12_000, 24_000, None)
    assert session.now_fs() == 36_600_000_000
    with pytest.raises(errors.FallbackError, match=r"^DSF-F001: aten.rand.default would run on the host.*it is random"):
        session_on(strict=True).host_op("aten.rand.default", 0, 4, None)


def test_a_format_the_chip_leaves_to_the_host_is_computed_there(write: Maker) -> None:
    tape = write()
    x = tape.put(torch.randn(4, 4, dtype=torch.float64))
    y = tape.op("mul.Tensor", x, x, keep=True)
    tape.run()
    assert torch.equal(tape.value(y), tape.value(x) * tape.value(x))
    (row,) = tape.session.report().fallbacks
    assert (row.what, row.reason) == ("elementwise", "chip: the HDL computes float64 on the host")


def test_a_format_the_chip_lacks_can_still_be_moved(write: Maker) -> None:
    tape = write(strict=True)
    x = tape.put(torch.randn(4, 4, dtype=torch.float64))
    y = tape.op("cat.default", (x, x), keep=True)
    tape.run()
    assert torch.equal(tape.value(y), torch.cat((tape.value(x), tape.value(x))))
    assert tape.session.report().fallbacks == ()


def test_under_strict_a_format_left_to_the_host_names_the_tensor(write: Maker) -> None:
    tape = write(strict=True)
    x = tape.put(torch.randn(4, 6, dtype=torch.float64))
    tape.op("mul.Tensor", x, x, keep=True, line=9, scope="head")
    sentence = (
        "DSF-N010: head: elementwise on a [4, 6] tensor of float64; acme-x1 computes it by way of host, which strict "
        "forbids (recorded at model.py:9); convert the tensor on the host, for example with .cpu().to(torch.float32), "
        "or enable without strict"
    )
    with pytest.raises(errors.DtypeError, match=f"^{re.escape(sentence)}$"):
        tape.run()


@pytest.mark.parametrize("strict", [False, True])
def test_a_format_that_is_an_error_is_one_in_any_mode(
    described: Maker, session_on: Maker, hand: Maker, strict: bool
) -> None:
    rule = {"matrix": "error", "vector": "error", "accumulate": "float32", "origin": "estimate", "source": "acme"}
    tape = hand(session_on(described({"/numerics/dtypes/float64": rule}), strict=strict))
    x = tape.put(torch.randn(4, 6, dtype=torch.float64))
    tape.op("mul.Tensor", x, x, keep=True, line=9)
    with pytest.raises(
        errors.DtypeError,
        match=r"^DSF-N010: outside any module: elementwise on a \[4, 6\] tensor of float64; acme-x1 cannot compute it "
        r"\(recorded at model.py:9\); convert the tensor on the host, for example with .cpu\(\).to\(torch.float32\)",
    ):
        tape.run()


# Numbers, time and FLOPs


@torch.no_grad()
def logits(session: Session, decoder: Maker, **sizes: int) -> torch.Tensor:
    """Of a small decoder in the chip's preferred format, moved to it."""
    model = decoder(**sizes).to(getattr(torch, session.chip.numerics.preferred)).to("npu")
    ids = torch.arange(24).reshape(2, 12).to("npu")
    result: torch.Tensor = model(ids).cpu().float()
    return result


def test_a_decoder_says_what_it_says_on_the_cpu(enabled: Maker, decoder: Maker) -> None:
    """bfloat16 rounds every operator to 8 bits: 2**-8 of the largest logit for each of some ten roundings in a row."""
    ours = logits(enabled(), decoder)
    with torch.no_grad():
        wanted = decoder()(torch.arange(24).reshape(2, 12))
    assert (ours - wanted).abs().max() <= 10 * 2**-8 * wanted.abs().max()


def test_executed_programs_agree_with_their_references(enabled: Maker, decoder: Maker) -> None:
    """In float32 they differ by the order of sums alone: 2**-23 of the largest logit for each of the 256 terms of the
    deepest sum, and that twice for the two layers."""
    found = {}
    for fidelity in ("isa", "operator"):
        enabled(fidelity=fidelity)
        with torch.no_grad():
            model = decoder().to("npu")
            found[fidelity] = model(torch.arange(12).reshape(1, 12).to("npu")).cpu()
    scale = found["operator"].abs().max()
    assert 0 < (found["isa"] - found["operator"]).abs().max() <= 2 * 256 * 2**-23 * scale


def test_every_fidelity_states_the_same_times_and_launches(enabled: Maker, decoder: Maker) -> None:
    """Per layer two norms with the sum before or behind them, q, k, v, o, two rotations, attention, gate, up, their
    product and down; beside the layers the embedding, a norm and the head."""
    reports = {}
    for fidelity in ("isa", "operator", "timing"):
        session = enabled(fidelity=fidelity)
        logits(session, decoder)
        reports[fidelity] = dsf.report().to_json()
        assert reports[fidelity].pop("fidelity") == fidelity
    assert reports["isa"] == reports["operator"] == reports["timing"]
    assert reports["isa"]["launches"] == 2 * 13 + 3
    assert reports["isa"]["fallbacks"] == []


def test_a_forecast_of_recorded_intents_is_the_time_of_running_them(enabled: Maker, decoder: Maker) -> None:
    session = enabled(fidelity="timing")
    with session.listening() as steps:
        logits(session, decoder)
    durations = [fs for step in steps for fs in session.forecast().durations(step)]
    assert len(durations) == 29
    assert sum(durations) / 1e12 == dsf.report().device_milliseconds
    fresh = enabled(fidelity="timing")  # it has planned nothing
    assert [fs for step in steps for fs in fresh.forecast().durations(step)] == durations


def test_a_forecast_prices_what_the_host_does(write: Maker) -> None:
    tape = write(fidelity="timing")
    tape.op("cummax.default", tape.put(torch.randn(4, 8)), 1, keep=True)
    with tape.session.listening() as steps:
        tape.run()
    (step,) = steps
    wanted = tape.session.report().host_milliseconds
    assert wanted > 0
    assert sum(tape.session.forecast().durations(step)) / 1e12 == wanted


def test_launched_programs_run_again_give_the_same_bytes(enabled: Maker, decoder: Maker) -> None:
    session = enabled()
    with session.launches() as launched:
        logits(session, decoder)
    assert len(launched) == 29
    before = session.storage.arena.bytes[: session.peak].clone()
    for program in launched:
        program.run()
    assert torch.equal(session.storage.arena.bytes[: session.peak], before)


def test_two_runs_are_equal_to_the_bit_and_the_femtosecond(enabled: Maker, decoder: Maker) -> None:
    runs = []
    for _ in range(2):
        session = enabled()
        runs.append((logits(session, decoder), session.now_fs(), dsf.report().to_json()))
    assert torch.equal(runs[0][0], runs[1][0])
    assert runs[0][1:] == runs[1][1:]


def test_where_numbers_lie_does_not_change_them(write: Maker) -> None:
    """The same step again, at other addresses, with other bytes in what is free."""
    tape = write()
    weights = [tape.put(torch.randn(16, 16)) for _ in range(3)]
    x = torch.randn(5, 16)
    first = step(tape, tape.put(x), weights)
    tape.run()
    tape.put(torch.full((1000,), float("nan")))
    second = step(tape, tape.put(x), weights)
    tape.run()
    assert torch.equal(tape.value(first), tape.value(second))


@torch.no_grad()
def test_whole_tiles_are_exactly_the_flops_that_torch_counts(enabled: Maker, decoder: Maker) -> None:
    """All dimensions are multiples of the matrix engine's 16 x 16 x 16 tile. (On the CPU the counter sees attention
    only where it is made of products.)"""
    model, ids = decoder(width=64, heads=4, groups=2, inner=128), torch.arange(32).reshape(2, 16)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(ids)
    session = enabled()
    model.to(torch.bfloat16).to("npu")(ids.to("npu")).cpu()
    flops = dsf.report().flops
    assert session.chip.engines["mxu"].tiles["bfloat16"] == (16, 16, 16)
    assert (flops.wanted, flops.executed) == (counter.get_total_flops(), counter.get_total_flops())
    assert (flops.padding, flops.host, flops.instruction_share) == (0, 0, 1.0)


def test_ragged_shapes_are_padded_to_tiles(write: Maker) -> None:
    """(5, 40) @ (40, 24) runs as (16, 48) @ (48, 32)."""
    tape = write()
    x, w = tape.put(torch.ones(5, 40, dtype=torch.bfloat16)), tape.put(torch.ones(24, 40, dtype=torch.bfloat16))
    y = tape.op("linear.default", x, w, keep=True)
    tape.run()
    flops = tape.session.report().flops
    assert flops.wanted == 2 * 5 * 40 * 24
    assert flops.executed == 2 * 16 * 48 * 32
    assert flops.padding == 2 * (16 * 48 * 32 - 5 * 40 * 24)
    assert tape.value(y).eq(40).all()


def test_flops_on_the_host_are_not_executed(write: Maker) -> None:
    tape = write()
    x, w = tape.put(torch.ones(16, 16, dtype=torch.float64)), tape.put(torch.ones(16, 16, dtype=torch.float64))
    tape.op("linear.default", x, w, keep=True)
    tape.run()
    flops = tape.session.report().flops
    assert (flops.wanted, flops.executed, flops.padding, flops.host) == (8192, 0, 0, 8192)
    assert flops.instruction_share == 0.0


@torch.no_grad()
def test_timing_takes_a_model_that_no_host_could_hold(enabled: Maker) -> None:
    """80 products of 8192 x 53248: 70 GB in bfloat16, on a chip of 256 GiB."""
    size = {"value": "256 GiB", "origin": "estimate", "source": "acme"}
    session = enabled({"/memories/hbm/size": size}, fidelity="timing")
    model = torch.nn.Sequential(
        *(torch.nn.Linear(8192, 8192 * 13 // 2, device="meta", dtype=torch.bfloat16) for _ in range(80))
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model.to_empty(device="npu")
    x = torch.empty(16, 8192, dtype=torch.bfloat16, device="npu")
    for layer in model:
        layer(x)
    report = dsf.report()
    assert session.peak > 69 * 10**9
    assert report.launches == 80
    assert report.flops.executed == 80 * 2 * 16 * 8192 * 53248
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 * 1024  # KiB
    assert session.peek(0, x_window(x)).eq(0).all()


def x_window(x: torch.Tensor) -> Any:
    from dsf.device.tape import window

    return window(x)


def test_timing_reads_zeros_and_takes_writes_that_only_cost_time(write: Maker) -> None:
    """12 kB: 10 us + 1 us each way."""
    tape = write(fidelity="timing")
    x = tape.put(torch.ones(3000))
    assert tape.session.now_fs() == 11 * 10**9
    assert tape.session.read(tape.buffers[x.buffer].address, x.window).eq(0).all()
    assert tape.session.now_fs() == 22 * 10**9


def test_exact_sums_of_products_are_rounded_once_per_instruction(write: Maker) -> None:
    """1 + 2**-24 + 2**-24 is 1 + 2**-23 in float64 and 1 in float32, where each small term is lost on its own."""
    found = []
    for exact in (True, False):
        tape = write(exact=exact)
        x = torch.zeros(16, 16)
        x[0, :3] = torch.tensor([1.0, 2**-24, 2**-24])
        y = tape.op("linear.default", tape.put(x), tape.put(torch.ones(16, 16)), keep=True)
        tape.run()
        found.append(tape.value(y)[0, 0].item())
        assert tape.session.report().numerics == ("exact" if exact else "fast")
    assert found[0] == 1 + 2**-23


def test_a_report_can_begin_anew_while_memory_stays(write: Maker) -> None:
    tape = write()
    x = tape.put(torch.ones(64))
    y = tape.op("neg.default", x, keep=True)
    tape.run()
    assert tape.session.report(reset=True).launches == 1
    assert tape.session.report().launches == 0
    assert tape.value(y).eq(-1).all()


def test_memory_that_is_given_back_is_given_back_to_the_host(session_on: Maker) -> None:
    session = session_on()
    address = session.allocate(64 * MIB, None)
    session.write(address, torch.ones(16 * MIB))
    held = resident()
    session.free(address)
    assert held - resident() > 60 * MIB


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * resource.getpagesize()


def test_running_out_of_memory_is_torchs_own_error_too(write: Maker) -> None:
    with pytest.raises(torch.OutOfMemoryError, match=r"^DSF-M001"):
        write().session.allocate(1 << 60, None)


def test_a_session_shows_itself_in_one_line(write: Maker) -> None:
    shown = "<dsf session on acme-x1: generic plugin, fidelity='isa', strict=False, exact=False>"
    assert repr(write().session) == shown
