"""A description whose numbers cannot be true together is refused with the field's name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsf import errors, hdl

Complaint = Callable[[dict[str, Any]], list[str]]


def quantity(value: object) -> dict[str, object]:
    return {"value": value, "origin": "estimate", "source": "acme"}


def step(above: str, frequency: object) -> dict[str, Any]:
    return {"above": quantity(above), "frequency": quantity(frequency)}


LADDER = "/thermal/throttle/ladder"
RATES = "/engines/vec/rates/default/value/default"


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("/memories/hbm/bandwidth", "0 B/s"),
        ("/memories/hbm/bandwidth", "-1 B/s"),
        ("/clocks/core", "0 Hz"),
        ("/cores/core/count", 0),
        ("/cores/core/count", -2),
        ("/paths/hbm->sram/width", "0 B/cycle"),
        ("/memories/sram/size", "0 B"),
        ("/memories/sram/alignment", "0 B"),
        ("/memories/hbm/burst", "0 B"),
        ("/memories/sram/banks", 0),
        ("/sync/event_ids", 0),
        ("/host/copy_bandwidth", "0 B/s"),
        ("/host/op_bandwidth", "0 B/s"),
        ("/host/launch_latency", "-1 us"),
        ("/power/limit", "0 W"),
        ("/power/states/idle", "-3 W"),
        ("/thermal/nodes/die", "0 J/K"),
        ("/thermal/nodes/die", "-5 J/K"),
        ("/thermal/edges/die->ambient", "0 K/W"),
        ("/thermal/edges/die->ambient", "-0.1 K/W"),
        ("/thermal/throttle/hysteresis", "-1 K"),
    ],
)
def test_what_is_nothing_or_less_is_refused_where_there_must_be_something(
    complaint: Complaint, pointer: str, value: object
) -> None:
    """These the schema refuses."""
    (finding,) = complaint({pointer: quantity(value)})
    assert finding.startswith(f"{pointer}/value: ")
    assert "above zero" in finding or "is negative" in finding


def test_a_rate_of_zero_is_refused(complaint: Complaint) -> None:
    assert complaint({RATES: 0}) == [f"{RATES}: found '0 element/cycle'; expected a rate above zero"]


@pytest.mark.parametrize(
    ("changes", "findings"),
    [
        ({"/thermal/ambient": quantity("90 °C")},
         ["/thermal/ambient: found 90 °C, too hot for the chip at rest, since /thermal/throttle/ladder/0/above is "
          "85 °C"]),
        ({"/thermal/ambient": quantity("85 °C")},
         ["/thermal/ambient: found 85 °C, too hot for the chip at rest, since /thermal/throttle/ladder/0/above is "
          "85 °C"]),
        ({"/thermal/ambient": quantity("-300 °C")}, ["/thermal/ambient: found -300 °C, which no room has"]),
        ({"/thermal/throttle/shutdown": quantity("85 °C")},
         ["/thermal/throttle/shutdown: found 85 °C; expected more than the 85 °C of /thermal/throttle/ladder/0/above"]),
        ({LADDER: [step("90 °C", "1/2"), step("90 °C", "1/4")]},
         [f"{LADDER}/1/above: found 90 °C; expected more than the 90 °C of {LADDER}/0/above"]),
        ({LADDER: [step("88 °C", "1/4"), step("90 °C", "1/2")]},
         [f"{LADDER}/1/frequency: found 1/2; expected less than 1/4: a hotter step slows the chip down further"]),
        ({LADDER: [step("90 °C", "1/2"), step("88 °C", "1/4")]},
         [f"{LADDER}/0/frequency: found 1/2; expected less than 1/4: a hotter step slows the chip down further"]),
        ({LADDER: [step("88 °C", 1)]},
         [f"{LADDER}/0/frequency: found 1; expected less than 1: a hotter step slows the chip down further"]),
        ({"/thermal/nodes": {"die": quantity("9 J/K"), "lid": quantity("9 J/K")},
          "/thermal/edges": {"lid->ambient": quantity("1 K/W")}},
         ["/thermal/nodes/die: has no way to ambient along the edges; it would only heat up"]),
        ({"/thermal/nodes": {"die": quantity("9 J/K"), "lid": quantity("9 J/K")},
          "/thermal/edges": {"die->lid": quantity("1 K/W")}},
         ["/thermal/nodes/die: has no way to ambient along the edges; it would only heat up",
          "/thermal/nodes/lid: has no way to ambient along the edges; it would only heat up"]),
        ({"/thermal/edges/die->die": quantity("1 K/W")},
         ["/thermal/edges/die->die: joins a node with itself; drop it"]),
        ({"/thermal/edges/ambient->die": quantity("1 K/W")},
         ["/thermal/edges/ambient->die: joins what die->ambient joins already; keep one"]),
        ({"/power/states/idle": quantity("80 W")},
         ["/power/limit: found 75 W; idle alone draws 80 W", "/power/states/full: found 75 W; idle alone draws 80 W"]),
        ({"/power/limit": quantity("10 W")}, ["/power/limit: found 10 W; idle alone draws 15 W"]),
        ({"/power/voltage_floor": quantity("3/2")},
         ["/power/voltage_floor: found 3/2; a share of the whole is 1 at most"]),
        ({"/thermal/throttle/shutdown": quantity("60 °C")},
         ["/thermal/throttle/shutdown: found 60 °C; expected more than the 85 °C of /thermal/throttle/ladder/0/above"]),
        ({"/memories/sram/alignment": quantity("2 MiB")},
         ["/memories/sram/alignment: found 2 MiB; the whole memory has 1 MiB"]),
        ({"/memories/sram/burst": quantity("2 MiB")},
         ["/memories/sram/burst: found 2 MiB; the whole memory has 1 MiB"]),
        ({"/memories/hbm/reserved": quantity("16 GiB")}, ["/memories/hbm/reserved: reserves 16 GiB of 16 GiB"]),
        ({"/sync/reserved_event_ids": {**quantity([16, 3]), "value": [16, 3]}},
         ["/sync/reserved_event_ids/value/1: found 3, but /sync/event_ids says that 0 to 15 are usable"]),
        ({"/thermal/control/cap": quantity("86 °C")},
         ["/thermal/control/cap: found 86 °C; the firmware slows the chip down above 85 °C already, so it would never "
          "act"]),
        ({"/limits/dimension": quantity(0)}, ["/limits/dimension/value: found 0; expected a limit above zero"]),
        ({"/limits/line": quantity(["8 B", "0 B"])},
         ["/limits/line/value/1: found '0 B'; expected a limit above zero"]),
        ({"/numerics/dtypes/bfloat16/vector": "host"},
         ["/numerics/preferred: found 'bfloat16', whose vector rule is 'host'; expected one that the chip itself "
          "computes with"]),
    ],
)  # fmt: skip
def test_numbers_that_contradict_each_other_are_refused_by_name(
    complaint: Complaint, changes: dict[str, Any], findings: list[str]
) -> None:
    assert complaint(changes) == findings


def test_a_link_gives_no_more_than_its_bandwidth(complaint: Complaint) -> None:
    link = {"to": "chip", "bandwidth": quantity("1 GB/s"), "latency": quantity("1 us"), "efficiency": quantity("120 %")}
    assert complaint({"/interconnect": {"links": {"wire": link}}}) == [
        "/interconnect/links/wire/efficiency: found 6/5; a share of the whole is 1 at most"
    ]


def test_a_variant_is_held_to_the_same(write: Callable[..., Path]) -> None:
    variant = {"acme-x1-hot": {"title": "Acme in a desert", "set": {"/thermal/ambient/value": "95 °C"}}}
    folder = write({"/variants": variant}, "acme-x1.json").parent
    with pytest.raises(errors.HdlError, match="/thermal/ambient: found 95 °C, too hot for the chip at rest, since "):
        hdl.load("acme-x1-hot", [str(folder)])


@pytest.mark.parametrize("broken", [None, 7, "x", [], [7], {}, {"ladder": 7}, {"states": [7]}, {"nodes": {"die": 7}}])
@pytest.mark.parametrize("part", ["thermal", "power", "sync", "interconnect", "thermal/throttle", "thermal/edges"])
def test_what_has_a_wrong_form_is_left_to_the_schema(complaint: Complaint, part: str, broken: object) -> None:
    """No finding about numbers is made up, and nothing breaks."""
    assert all("too hot" not in finding and "no way" not in finding for finding in complaint({f"/{part}": broken}))


@pytest.mark.parametrize("limit", ["some_gap_blocks", "some_cycles"])
def test_a_limit_that_adds_or_bounds_a_gap_may_be_zero(write: Callable[..., Path], limit: str) -> None:
    assert hdl.load(write({f"/limits/{limit}": quantity(0)})).limits[limit] == 0


def test_a_limit_is_not_negative(complaint: Complaint) -> None:
    assert complaint({"/limits/dimension": quantity(-3)}) == [
        "/limits/dimension/value: '-3' is negative; a whole number or a size is not"
    ]


def test_a_cap_at_the_first_step_of_the_ladder_may_act(write: Callable[..., Path]) -> None:
    thermal = hdl.load(write({"/thermal/control/cap": quantity("85 °C")})).thermal
    assert thermal is not None
    assert thermal.control is not None
    assert thermal.control.cap == 85


def test_nothing_is_native_to_a_vector_engine_that_is_not_there(complaint: Complaint) -> None:
    said = complaint({"/engines/vec/kind": "scalar"})
    assert "/numerics/dtypes/float16/vector: 'native', but no engine is of kind 'vector'; expected 'host'" in said


@pytest.mark.parametrize("point", [10**400, -(10**400)], ids=["huge", "far below zero"])
def test_a_number_that_no_float_holds_is_refused_where_it_stands(complaint: Complaint, point: int) -> None:
    measured = {"what": "x", "unit": "s", "points": {"a": point}, "origin": "measured", "source": "acme"}
    (said,) = complaint({"/measurements": {"m": measured}})
    assert said.startswith("/measurements/m/points/a: found ")
    assert "1e+30" in said
