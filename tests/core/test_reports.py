"""A report is a value: the same as plain data, with what can be computed from it beside what was counted."""

from __future__ import annotations

import json

import pytest
from attrs import evolve, fields

from dsf.reports import EngineRow, FallbackRow, Flops, HeatSummary, KernelRow, MemoryRow, Report

REPORT = Report(
    chip="acme-x1", plugin="generic", fidelity="isa", numerics="fast",
    emulated_milliseconds=20.0, device_milliseconds=12.0, host_milliseconds=5.0, copy_milliseconds=1.0, launches=3,
    memory=(MemoryRow("hbm", "chip", 16384.0, 1.5),),
    engines=(EngineRow("mxu", "core", 0.25, 0.5),),
    kernels=(KernelRow("generic.matmul", "generic", "linear", 3, 12.0, 1.0, 0.5, "compute", "first offer"),),
    fallbacks=(FallbackRow("aten.sort.default", 2, 5.0, 0.25, "no kernel of this kind is offered"),),
    flops=Flops(wanted=1000, executed=1280, padding=480, host=200),
    origins={"device time": "estimate"},
    heat=HeatSummary(
        policy="ladder", ambient_celsius=55.0, ambient_given=True, celsius=84.06, peak_celsius=85.02,
        settled_celsius=91.5, cap_celsius=85.0, mean_watts=309.44, peak_watts=359.0, joules=557_312.0,
        throttled_share=0.885, lowest_frequency_share=0.8,
    ),
)  # fmt: skip


def test_the_shares_are_of_what_was_wanted_and_of_all_time() -> None:
    assert REPORT.flops.instruction_share == 0.8
    assert REPORT.host_share == 0.25


def test_nothing_wanted_and_no_time_are_no_division_by_zero() -> None:
    assert Flops(0, 0, 0, 0).instruction_share == 1.0
    assert evolve(REPORT, emulated_milliseconds=0.0, host_milliseconds=0.0).host_share == 0.0


def test_as_json_it_is_the_same_value() -> None:
    data = json.loads(json.dumps(REPORT.to_json()))
    assert (data["host_share"], data["flops"]["instruction_share"]) == (0.25, 0.8)
    assert data["kernels"] == [
        {
            "name": "generic.matmul", "library": "generic", "intent": "linear", "launches": 3, "milliseconds": 12.0,
            "share": 1.0, "gflops": 0.5, "bound": "compute", "reason": "first offer",
        }
    ]  # fmt: skip
    assert data["fallbacks"][0]["reason"] == "no kernel of this kind is offered"
    assert data["memory"] == [{"name": "hbm", "scope": "chip", "mebibytes": 16384.0, "peak_mebibytes": 1.5}]
    assert data["engines"] == [{"name": "mxu", "core": "core", "busy_megacycles": 0.25, "share": 0.5}]
    assert data["origins"] == {"device time": "estimate"}
    assert data["heat"] == {
        "policy": "ladder", "ambient_celsius": 55.0, "ambient_given": True, "celsius": 84.06, "peak_celsius": 85.02,
        "settled_celsius": 91.5, "cap_celsius": 85.0, "mean_watts": 309.44, "peak_watts": 359.0, "joules": 557_312.0,
        "throttled_share": 0.885,
        "lowest_frequency_share": 0.8,
    }  # fmt: skip
    named = {a.name for a in fields(Report)}
    assert set(data) == named | {"host_share"}


def test_as_json_it_is_made_of_plain_data_only() -> None:
    def kinds(value: object) -> set[type]:
        if isinstance(value, dict):
            return {dict} | {kind for item in value.values() for kind in kinds(item)} | {type(key) for key in value}
        if isinstance(value, list):
            return {list} | {kind for item in value for kind in kinds(item)}
        return {type(value)}

    assert kinds(REPORT.to_json()) <= {dict, list, str, int, float, bool}


def test_without_heat_it_says_why() -> None:
    cold = evolve(REPORT, heat=None, no_heat="the hardware description of acme-x1 has no /thermal")
    assert json.loads(json.dumps(cold.to_json()))["heat"] is None
    assert cold.to_json()["no_heat"] == "the hardware description of acme-x1 has no /thermal"
    assert str(cold).splitlines()[-1] == "  heat (derived): none: the hardware description of acme-x1 has no /thermal"


def test_a_report_cannot_be_edited() -> None:
    with pytest.raises(AttributeError):
        REPORT.launches = 4  # type: ignore[misc]


def test_as_text_it_is_a_few_lines_with_what_ran_where_and_why() -> None:
    assert str(REPORT).splitlines() == [
        "acme-x1 (generic), fidelity isa, numerics fast: 20 ms emulated (derived), launches: 3, 25.00 % on the "
        "host, 80.00 % of 1,000 FLOPs executed as instructions",
        "  generic.matmul (linear): launched 3 x, 12 ms, 100.0 %, bound by compute",
        "  on the host: aten.sort.default, 2 x, 5 ms: no kernel of this kind is offered",
        "  hbm: 1.5 MiB of 16 GiB at the peak",
        "  heat (derived): 84.1 °C (peak 85.0) in a room of 55 °C, 309.4 W in the mean (peak 359.0), 5.573e+05 J, "
        "88.50 % of device time throttled (clocks down to 80 %), policy ladder",
    ]
    assert "planned as instructions, not executed" in str(evolve(REPORT, fidelity="timing"))
