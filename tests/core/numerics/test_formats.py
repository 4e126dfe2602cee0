"""The number formats, against the literals of their standards."""

from __future__ import annotations

import pytest
import torch

from dsf import errors
from dsf.numerics import FORMATS, by_dtype, by_name


@pytest.mark.parametrize(
    ("name", "bits", "exponent", "mantissa", "largest", "smallest_normal"),
    [
        ("float64", 64, 11, 52, 1.7976931348623157e308, 2.2250738585072014e-308),
        ("float32", 32, 8, 23, 3.4028234663852886e38, 1.1754943508222875e-38),
        ("tf32", 19, 8, 10, 3.4011621342146535e38, 1.1754943508222875e-38),
        ("float16", 16, 5, 10, 65504.0, 6.103515625e-05),
        ("bfloat16", 16, 8, 7, 3.3895313892515355e38, 1.1754943508222875e-38),
        ("float8_e4m3fn", 8, 4, 3, 448.0, 0.015625),
        ("float8_e5m2", 8, 5, 2, 57344.0, 6.103515625e-05),
    ],
)
def test_a_float_has_the_extremes_of_its_standard(
    name: str, bits: int, exponent: int, mantissa: int, largest: float, smallest_normal: float
) -> None:
    """float16: IEEE 754; the 8-bit ones: OCP OFP8; tf32: 2^128 (1 - 2^-11)."""
    form = by_name(name)
    assert (form.bits, form.exponent, form.mantissa) == (bits, exponent, mantissa)
    assert form.largest == largest
    assert form.smallest_normal == smallest_normal


@pytest.mark.parametrize(
    ("name", "bits", "largest"),
    [("int64", 64, 2.0**63), ("int32", 32, 2147483647), ("int16", 16, 32767), ("int8", 8, 127), ("int4", 4, 7),
     ("uint8", 8, 255), ("bool", 1, 1)],
)  # fmt: skip
def test_a_whole_number_has_its_range(name: str, bits: int, largest: float) -> None:
    assert (by_name(name).bits, by_name(name).largest) == (bits, largest)


def test_torch_agrees_about_its_own_floats() -> None:
    for form in FORMATS.values():
        if form.kind == "float" and form.is_stored_as_itself:
            info = torch.finfo(form.dtype)
            assert (form.largest, form.epsilon, form.smallest_normal) == (info.max, info.eps, info.smallest_normal)


def test_formats_that_torch_lacks_are_kept_in_wider_ones() -> None:
    stored = {form.name: form.dtype for form in FORMATS.values() if not form.is_stored_as_itself}
    assert stored == {"hf32": torch.float32, "tf32": torch.float32, "int4": torch.int8}
    assert by_name("hf32").itemsize == 4


def test_a_torch_dtype_finds_its_own_format() -> None:
    assert by_dtype(torch.float32).name == "float32"
    assert by_dtype(torch.int8).name == "int8"
    assert by_dtype(torch.bool).name == "bool"


def test_an_unknown_format_is_answered_with_the_known_ones() -> None:
    known = (
        "float64, float32, hf32, tf32, float16, bfloat16, float8_e4m3fn, float8_e5m2, int64, int32, int16, int8, "
        "int4, uint8, bool"
    )
    with pytest.raises(errors.DtypeError, match=f"^DSF-N001: no number format named 'fp7'; known formats: {known}$"):
        by_name("fp7")
    with pytest.raises(errors.DtypeError, match=r"^DSF-N001: torch.complex64 is no format that a chip computes in; "):
        by_dtype(torch.complex64)
