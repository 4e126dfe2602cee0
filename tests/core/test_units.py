"""Quantities: read exactly or refused in a sentence, shown for people, and as sure as their least sure part."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsf import units


@pytest.mark.parametrize(
    ("text", "dimension", "quantity"),
    [
        ("64 KiB", "bytes", 65536),
        ("64 kB", "bytes", 64000),
        ("1.5 KiB", "bytes", 1536),
        ("1.465 GHz", "hertz", 1_465_000_000),
        ("5 us", "femtoseconds", 5_000_000_000),
        ("5 µs", "femtoseconds", 5_000_000_000),
        ("5 μs", "femtoseconds", 5_000_000_000),
        ("1.6 TB/s", "bytes_per_second", 1_600_000_000_000),
        ("1.6TiB/s", "bytes_per_second", None),
        ("200 Gb/s", "bytes_per_second", 25_000_000_000),
        ("32 B/cycle", "bytes_per_cycle", 32),
        ("128/7 element/cycle", "per_cycle", Fraction(128, 7)),
        ("4096 MAC/cycle", "per_cycle", Fraction(4096)),
        ("1/33", "share", Fraction(1, 33)),
        ("70 %", "share", Fraction(7, 10)),
        (0.7, "share", Fraction(7, 10)),
        ("2e3", "count", 2000),
        ("14 cycles", "cycles", 14),
        (255, "limit", 255),
        ("16 KiB", "limit", 16384),
        ("-5 °C", "celsius", -5.0),
        ("364.5 W", "watts", 364.5),
    ],
)
def test_a_quantity_is_read_exactly(text: object, dimension: str, quantity: object) -> None:
    if quantity is None:  # 1.6 x 2^40 bytes is no whole number of bytes
        with pytest.raises(ValueError, match=r"^'1.6TiB/s' is not a whole number of bytes per second$"):
            units.parse(text, dimension)
    else:
        assert units.parse(text, dimension) == quantity
        assert type(units.parse(text, dimension)) is type(quantity)


@pytest.mark.parametrize(
    ("text", "dimension", "sentence"),
    [
        ("fast", "hertz", "'fast' is not a frequency; write a number and a unit, like '1.2 GHz'"),
        ("4096", "bytes", "'4096' has no unit; write a size as a number and a unit, like '64 KiB'"),
        (4096, "bytes", "'4096' has no unit; write a size as a number and a unit, like '64 KiB'"),
        ("5 us", "watts", "'5 us': 'us' is no unit of a power; a power has the units W, mW, kW"),
        ("3 B", "count", "'3 B': 'B' is no unit of a whole number; a whole number has no unit, like '24'"),
        ("0.3 B", "bytes", "'0.3 B' is not a whole number of bytes"),
        ("2.5", "count", "'2.5' is not a whole number of count"),
        ("-1 KiB", "bytes", "'-1 KiB' is negative; a size is not"),
        ("1/0", "share", "'1/0' divides by zero"),
        ("", "count", "'' is not a whole number; write a number, like '24'"),
        (True, "count", "'True' is not a whole number; write a number, like '24'"),
        (None, "hertz", "'None' is not a frequency; write a number and a unit, like '1.2 GHz'"),
        ("NaN GHz", "hertz", "'NaN GHz' is not a frequency; write a number and a unit, like '1.2 GHz'"),
        ("1\x1b[31m", "count", "'1?[31m': '?[31m' is no unit of a whole number; a whole number has no unit, like '24'"),
    ],
)
def test_nonsense_gets_a_sentence(text: object, dimension: str, sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        units.parse(text, dimension)
    assert str(error.value) == sentence


@pytest.mark.parametrize("text", ["1e999999999 GHz", "9" * 5000 + " GHz", "1e-99999999 GHz", "1" * 40])
def test_a_monstrous_number_is_refused_at_once(text: str) -> None:
    """The first would have a billion digits."""
    with pytest.raises(ValueError, match="frequency"):
        units.parse(text, "hertz")


@given(st.text(max_size=40), st.sampled_from(sorted(units.DIMENSIONS)))
def test_any_text_is_a_quantity_or_gets_a_sentence(text: str, dimension: str) -> None:
    try:
        assert units.parse(text, dimension) is not None
    except ValueError as error:
        assert str(error).isprintable()  # noqa: PT017  # either outcome is fine, as long as it is one of the two


@pytest.mark.parametrize(
    ("quantity", "dimension", "text"),
    [
        (65536, "bytes", "64 KiB"),
        (196608, "bytes", "192 KiB"),
        (64_768_442_368, "bytes", "60.32 GiB"),
        (1023, "bytes", "1023 B"),
        (0, "bytes", "0 B"),
        (47_000_000_000, "femtoseconds", "47 us"),
        (999, "femtoseconds", "999 fs"),
        (1_800_000_000, "hertz", "1.8 GHz"),
        (1_600_000_000_000, "bytes_per_second", "1.6 TB/s"),
        (353_894_400_000_000, "flops", "353.9 TFLOPS"),
        (65.5, "celsius", "65.5 °C"),
        (364.5, "watts", "364.5 W"),
        (Fraction(128, 7), "per_cycle", "18.29"),
    ],
)
def test_a_quantity_is_shown_in_the_unit_that_fits_it(quantity: int | float, dimension: str, text: str) -> None:
    assert units.show(quantity, dimension) == text


def test_a_number_is_no_surer_than_its_least_sure_part() -> None:
    assert units.weakest(["measured", "datasheet"]) == "datasheet"
    assert units.weakest(["derived", "fitted", "datasheet"]) == "fitted"
    assert units.weakest(["estimate", "measured"]) == "estimate"
    assert units.weakest(["measured"]) == "measured"
