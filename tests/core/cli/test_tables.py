"""What a person sees of a run: every number of the value, with its unit and its kind."""

from __future__ import annotations

import json
import re

import pytest
from attrs import evolve

from dsf.cli.tables import present
from dsf.models import Answer
from dsf.reports import EngineRow, FallbackRow, Flops, HeatSummary, KernelRow, MemoryRow, Report

REPORT = Report(
    chip="toy1",
    plugin="generic",
    fidelity="isa",
    numerics="fast",
    emulated_milliseconds=8.0,
    device_milliseconds=6.5,
    host_milliseconds=0.2,
    copy_milliseconds=0.3,
    launches=1234,
    memory=(MemoryRow("HBM", "chip", 1024.0, 256.5),),
    engines=(EngineRow("cube", "AIC", 12.5, 0.25),),
    kernels=(KernelRow("matmul", "toy", "linear", 211, 5.0, 0.75, 34.5, "HBM", "fits L1"),),
    fallbacks=(FallbackRow("aten::sort", 3, 0.2, 0.5, "no kernel sorts"),),
    flops=Flops(wanted=2_000_000, executed=2_300_000, padding=300_000, host=20_000),
    origins={
        "emulated time": "estimate", "device time": "fitted", "host time": "measured", "memory": "datasheet",
        "flops": "derived", "host wall time": "measured", "temperature": "fitted", "power": "estimate",
        "throttling": "derived", "ambient": "datasheet",
    },
    heat=HeatSummary(
        policy="threshold", ambient_celsius=30.0, ambient_given=False, celsius=84.06, peak_celsius=85.02,
        settled_celsius=91.5, cap_celsius=85.0, mean_watts=309.44, peak_watts=359.0, joules=557_312.0,
        throttled_share=0.885, lowest_frequency_share=0.8,
    ),
)  # fmt: skip
ANSWER = Answer(
    model="Toy",
    prompt="Hello?",
    text="Hi.",
    prompt_tokens=37,
    tokens=(5, 6, 7),
    upload_fs=14_000_000_000_000,
    arrivals_fs=(2_000_000_000_000, 3_000_000_000_000, 5_000_000_000_000),
    wall_seconds={"load": 5.0, "generate": 12.5},
    report=REPORT,
)


def _rows(text: str) -> list[str]:
    return [re.sub(r"  +", " | ", line.strip()) for line in text.splitlines()]


def test_first_token_and_the_mean_of_the_others() -> None:
    """2 ms to the first; the other two take 3 ms together."""
    assert ANSWER.ttft_seconds == 0.002
    assert ANSWER.tpot_seconds == 0.0015
    assert evolve(ANSWER, tokens=(5,), arrivals_fs=(2_000_000_000_000,)).tpot_seconds is None


def test_a_run_is_shown_with_every_number_its_unit_and_its_kind(capsys: pytest.CaptureFixture[str]) -> None:
    present(ANSWER, as_json=False)
    rows = _rows(capsys.readouterr().out)
    for expected in (
        "Toy on the emulated toy1 (generic), fidelity isa, numerics fast",
        "time to first token (37 prompt tokens) | 2 ms | emulated | estimate",
        "time per output token after it (3 in all) | 1.5 ms | emulated | estimate",
        "the whole answer | 8 ms | emulated | estimate",
        "the chip at work | 6.5 ms | emulated | fitted",
        "copies to and from the chip | 300 us | emulated | measured",
        "the host, for what the chip cannot do (2.50%) | 200 us | emulated | measured",
        "the chip waiting for 1,234 launches | 1 ms | emulated | estimate",
        "the weights' way to the chip, before | 14 ms | emulated | estimate",
        "matrix FLOPs of the model | 2,000,000 | counted | derived",
        "of them executed as instructions | 99.00% | counted | derived",
        "padding on top | 300,000 | counted | derived",
        "host wall time: load | 5 s | this machine | measured",
        "host wall time: generate | 12.5 s | this machine | measured",
        "memory (origin: datasheet)",
        "HBM | chip | 1 GiB | 256.5 MiB",
        "engines (origin: fitted)",
        "cube | AIC | 12.500 Mcycles | 25.00%",
        "kernels (origin: fitted)",
        "matmul | linear | toy | 211 | 5 ms | 75.0% | 34.500 | HBM | fits L1",
        "fallbacks (origin: measured)",
        "aten::sort | 3 | 200 us | 512 KiB | no kernel sorts",
        "temperature | 84.06 °C | emulated | fitted",
        "at its peak | 85.02 °C | emulated | fitted",
        "if this load went on | 91.5 °C | emulated | fitted",
        "the policy's cap | 85 °C | described | derived",
        "of the room | 30 °C | described | datasheet",
        "power, in the mean | 309.4 W | emulated | estimate",
        "at its peak | 359 W | emulated | estimate",
        "energy | 5.573e+05 J | emulated | estimate",
        "device time throttled, by the policy threshold or the firmware | 88.50% | emulated | derived",
        "the lowest clocks | 80.00% | emulated | derived",
    ):
        assert expected in rows


def test_a_room_that_was_asked_for_has_no_origin(capsys: pytest.CaptureFixture[str]) -> None:
    assert REPORT.heat is not None
    present(evolve(ANSWER, report=evolve(REPORT, heat=evolve(REPORT.heat, ambient_given=True))), as_json=False)
    assert "of the room | 30 °C | asked for | -" in _rows(capsys.readouterr().out)


def test_a_chip_without_heat_is_shown_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    cold = evolve(REPORT, heat=None, no_heat="the hardware description of toy1 has no /thermal")
    present(evolve(ANSWER, report=cold), as_json=False)
    assert "heat: none, since the hardware description of toy1 has no /thermal" in _rows(capsys.readouterr().out)


def test_a_run_without_fallbacks_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    present(evolve(ANSWER, report=evolve(REPORT, fallbacks=())), as_json=False)
    assert "fallbacks: none" in _rows(capsys.readouterr().out)


def test_a_run_that_computed_nothing_says_that_it_has_no_answer(capsys: pytest.CaptureFixture[str]) -> None:
    present(evolve(ANSWER, text=None), as_json=False)
    assert "no answer: fidelity 'timing' computes no numbers, only their time" in capsys.readouterr().out


def test_json_holds_the_same_value(capsys: pytest.CaptureFixture[str]) -> None:
    present(ANSWER, as_json=True)
    value = json.loads(capsys.readouterr().out)
    assert value["answer"] == "Hi."
    assert value["tokens"] == [5, 6, 7]
    assert value["ttft_seconds"] == 0.002
    assert value["upload_seconds"] == 0.014
    assert value["origins"] == {
        "upload_seconds": "estimate",
        "ttft_seconds": "estimate",
        "tpot_seconds": "estimate",
        "wall_seconds": "measured",
    }
    assert value["report"]["kernels"][0]["name"] == "matmul"
    assert value["report"]["flops"]["instruction_share"] == 0.99
    assert value["report"]["host_share"] == pytest.approx(0.025)
    assert value["report"]["origins"]["device time"] == "fitted"


def test_square_brackets_of_an_answer_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    odd = evolve(REPORT, kernels=(evolve(REPORT.kernels[0], reason="[bold]because[/bold]"),))
    present(evolve(ANSWER, report=odd), as_json=False)
    assert "[bold]because[/bold]" in capsys.readouterr().out


def test_at_80_columns_no_line_is_wider_and_no_kernel_is_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsf.cli.tables.PIPE_WIDTH", 80)
    long = evolve(REPORT.kernels[0], name="MatMulSoftmaxMatMul", intent="attention", library="ascend")
    present(evolve(ANSWER, report=evolve(REPORT, kernels=(long,), host_milliseconds=0.0)), as_json=False)
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "MatMulSoftmaxMatMul" in text
    assert re.search(r"\b0 s\b", text)


def test_instructions_that_did_not_run_are_not_called_executed(capsys: pytest.CaptureFixture[str]) -> None:
    present(evolve(ANSWER, report=evolve(REPORT, fidelity="timing")), as_json=False)
    assert "of them planned as instructions, not executed" in capsys.readouterr().out


def test_no_line_of_a_file_ends_in_spaces(capsys: pytest.CaptureFixture[str]) -> None:
    present(ANSWER, as_json=False)
    assert [line for line in capsys.readouterr().out.splitlines() if line != line.rstrip()] == []
