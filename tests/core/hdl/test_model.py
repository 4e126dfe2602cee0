"""A chip is a value: nobody changes it, it can be a key, it survives a trip to another process."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import attrs
import pytest

from dsf import errors, hdl


@pytest.fixture
def acme() -> hdl.Chip:
    return hdl.load("acme-x1")


def test_no_part_of_a_chip_can_be_changed(acme: hdl.Chip) -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        acme.memories["sram"].nbytes = 1  # type: ignore[misc]  # what the test is about
    message = "^a chip's tables cannot be changed; write another HDL file, or a variant in this one$"
    memories = acme.memories
    for change in (
        lambda: memories.__setitem__("sram", memories["hbm"]),
        lambda: memories.__delitem__("sram"),
        lambda: memories.__ior__({}),
        lambda: memories.clear(),
        lambda: memories.pop("sram"),
        lambda: memories.popitem(),
        lambda: memories.setdefault("x", memories["hbm"]),
        lambda: memories.update({}),
    ):
        with pytest.raises(TypeError, match=message):
            change()
    assert set(memories) == {"hbm", "sram", "acc"}


def test_every_part_of_a_chip_is_hashable(acme: hdl.Chip) -> None:
    assert len({getattr(acme, field.name.lstrip("_")) for field in attrs.fields(hdl.Chip) if field.repr}) > 10
    assert {acme: 1}[hdl.load("acme-x1")] == 1


def test_chips_are_equal_if_their_descriptions_say_the_same(acme: hdl.Chip, write: Callable[..., Path]) -> None:
    copied, renamed = hdl.load(write({}, "a.json")), hdl.load(write({"/title": "Another"}, "b.json"))
    assert copied == acme
    assert copied.hash == acme.hash
    assert renamed != acme
    assert acme != "acme-x1"


def test_a_copy_and_a_pickled_chip_equal_the_first(acme: hdl.Chip) -> None:
    assert copy.deepcopy(acme) == acme
    assert copy.copy(acme.memories) is acme.memories
    sent = pickle.loads(pickle.dumps(acme))  # noqa: S301  # our own bytes: this is how a worker process gets a chip
    assert (sent, sent.memories) == (acme, acme.memories)


@pytest.mark.parametrize(
    ("pointer", "origin"),
    [
        ("/memories/sram/size", "estimate"),
        ("/engines/mxu/rates/mac", "estimate"),
        ("/engines/mxu/rates/mac/int8", "measured"),
        ("/engines/vec/rates/exp/float16", "estimate"),
        ("/thermal/throttle/ladder/0/above", "estimate"),
        ("/numerics/dtypes/int8/matrix", "estimate"),
        ("/paths/hbm->sram/width", "datasheet"),
    ],
)
def test_a_pointer_leads_to_the_origin_of_its_number_or_table(
    write: Callable[..., Path], pointer: str, origin: str
) -> None:
    chip = hdl.load(write({"/paths/hbm->sram/width/origin": "datasheet"}))
    if origin == "measured":
        chip = hdl.load(write({"/engines/mxu/rates/mac/origin": "measured"}, "measured.json"))
    assert chip.origin(pointer) == hdl.Origin(origin, "invented for tests and tutorials")


def test_a_pointer_to_nothing_or_to_no_number_is_an_error(acme: hdl.Chip) -> None:
    for pointer in ("/memories/l2/size", "/thermal/throttle/ladder/1", "/thermal/throttle/ladder/x", "/name/size"):
        with pytest.raises(errors.HdlError, match=f"^DSF-H006: acme-x1: its HDL has no field {pointer}$"):
            acme.origin(pointer)
    with pytest.raises(
        errors.HdlError, match=r"^DSF-H006: acme-x1: /device is no number; only numbers have an origin$"
    ):
        acme.origin("/device")


def test_a_peak_is_no_surer_than_its_clock(write: Callable[..., Path]) -> None:
    known = {f"{pointer}/origin": "measured" for pointer in ("/cores/core/count", "/engines/mxu/rates/mac")}
    assert hdl.load(write(known | {"/clocks/core/origin": "fitted"})).peak_origin("bfloat16") == "fitted"
    assert hdl.load(write(known | {"/clocks/core/origin": "measured"}, "b.json")).peak_origin("int8") == "measured"


def test_a_rate_for_any_dtype_counts_for_each(write: Callable[..., Path]) -> None:
    macs = {"value": {"default": 10}, "unit": "MAC/cycle", "origin": "estimate", "source": "acme"}
    chip = hdl.load(write({"/engines/mxu/rates/mac": macs, "/engines/mxu/tiles/value/default": [4, 4, 4]}))
    assert chip.peak_flops("int32") == 160_000_000_000  # 2 x 10 x 8 cores x 1 GHz


def test_clock_steps_and_rungs_are_in_order_however_they_are_written(described: Callable[..., Path]) -> None:
    """Steps from the fastest, rungs from the coolest."""
    rungs = [
        {"above": {"value": f"{t} °C", "origin": "estimate", "source": "acme"},
         "frequency": {"value": f, "origin": "estimate", "source": "acme"}}
        for t, f in ((95, "1/4"), (90, "1/2"))
    ]  # fmt: skip
    changes = {"/power/frequencies/value": ["1/2", "1", "3/4"], "/thermal/throttle/ladder": rungs}
    chip = hdl.load(described(changes))
    assert chip.power is not None
    assert chip.thermal is not None
    assert [float(f) for f in chip.power.frequencies] == [1, 0.75, 0.5]
    assert [rung.celsius for rung in chip.thermal.ladder] == [90, 95]


def test_the_voltage_falls_in_a_straight_line_to_its_floor(described: Callable[..., Path]) -> None:
    power = hdl.load(described({"/power/voltage_floor/value": "0.4"})).power
    assert power is not None
    assert [power.voltage(Fraction(n, 2)) for n in (0, 1, 2)] == pytest.approx([0.4, 0.7, 1])
    constant = hdl.load(described({"/power/voltage_floor": None})).power
    assert constant is not None
    assert constant.voltage(Fraction(1, 10)) == 1
