"""Numbers made numbers of a format, against an exact reference: the format's numbers written out as fractions, in
order, and the rounding done by comparing. It shares no step with the code: no float, no scale, no torch conversion."""

from __future__ import annotations

import math
import random
import struct
from bisect import bisect_right
from fractions import Fraction
from functools import cache

import pytest
import torch

from dsf import errors
from dsf.numerics import ROUNDINGS, by_name, quantise
from dsf.numerics.quantise import in_range

INF = math.inf
SMALL = ("float8_e4m3fn", "float8_e5m2", "float16")
LAYOUTS = {"float8_e4m3fn": (4, 3), "float8_e5m2": (5, 2), "float16": (5, 10), "bfloat16": (8, 7), "tf32": (8, 10),
           "hf32": (8, 11), "float32": (8, 23)}  # fmt: skip


@cache
def positives(name: str) -> list[Fraction]:
    """All finite numbers from 0 on, by their codes."""
    exponent, mantissa = LAYOUTS[name]
    bias, top = 2 ** (exponent - 1) - 1, 2**exponent - 1
    finite = name == "float8_e4m3fn"
    numbers = []
    for e in range(top + finite):
        for m in range(2**mantissa):
            if finite and (e, m) == (top, 2**mantissa - 1):
                continue  # NaN
            whole = (1 << mantissa) + m if e else m
            numbers.append(Fraction(whole) * Fraction(2) ** (max(e, 1) - bias - mantissa))
    return numbers


def neighbours(name: str, size: Fraction) -> tuple[Fraction, Fraction | None, bool]:
    """The number at or below *size*, the next one above (None beyond the largest), and whether the lower is even."""
    if name in ("tf32", "hf32", "bfloat16", "float32"):
        return _neighbours_by_arithmetic(name, size)
    numbers = positives(name)
    at = bisect_right(numbers, size) - 1
    return numbers[at], numbers[at + 1] if at + 1 < len(numbers) else None, at % 2 == 0


def _neighbours_by_arithmetic(name: str, size: Fraction) -> tuple[Fraction, Fraction | None, bool]:
    exponent, mantissa = LAYOUTS[name]
    bias = 2 ** (exponent - 1) - 1
    e = size.numerator.bit_length() - size.denominator.bit_length()
    e = max(e - (size < Fraction(2) ** e), 1 - bias)
    step = Fraction(2) ** (e - mantissa)
    whole = size // step
    largest = (2 - Fraction(1, 2**mantissa)) * Fraction(2) ** bias
    if whole * step >= largest:
        return largest, None, (2 ** (mantissa + 1) - 1) % 2 == 0
    return whole * step, (whole + 1) * step, whole % 2 == 0


def reference(x: float, name: str, rounding: str, saturate: bool = False, flush: bool = False) -> float:
    if math.isnan(x):
        return x
    sign = math.copysign(1.0, x)
    finite = name == "float8_e4m3fn"
    exponent, _ = LAYOUTS[name]
    top = neighbours(name, Fraction(2) ** 300)[0]
    beyond = float(top) if saturate else math.nan if finite else INF
    if math.isinf(x):
        return math.copysign(beyond, x)
    size = abs(Fraction(x))
    low, high, even = neighbours(name, size)
    up = {"toward-zero": False, "toward-positive": sign > 0, "toward-negative": sign < 0}.get(rounding)
    ceiling = high if high is not None else _after(name, low)
    if size == low:
        result: Fraction | None = low
    else:
        if rounding == "odd":
            up = even and high is not None
        elif up is None:
            middle = (low + ceiling) / 2
            up = size > middle or (size == middle and (rounding == "nearest-away" or not even))
        result = (high if high is not None else None) if up else low
    if result is None:
        return math.copysign(beyond, x)
    if flush and result < Fraction(2) ** (2 - 2 ** (exponent - 1)):
        result = Fraction(0)
    return math.copysign(float(result), x)


def _after(name: str, largest: Fraction) -> Fraction:
    """Where the next number would be if the exponent went on."""
    step = largest - neighbours(name, largest - Fraction(1, 2**40) * largest)[0]
    return largest + step


def same(found: float, wanted: float) -> bool:
    if math.isnan(found) or math.isnan(wanted):
        return math.isnan(found) and math.isnan(wanted)
    return found == wanted and math.copysign(1, found) == math.copysign(1, wanted)


def check(values: list[float], name: str, rounding: str, saturate: bool = False, flush: bool = False) -> None:
    source = torch.tensor(values, dtype=torch.float64)
    made = quantise(source, name, rounding, saturate, "flush" if flush else "keep")
    assert made.dtype == by_name(name).dtype
    for value, found in zip(values, made.double().tolist(), strict=True):
        wanted = reference(value, name, rounding, saturate, flush)
        assert same(found, wanted), (name, rounding, saturate, flush, value.hex(), found, wanted)


def edges(name: str) -> list[float]:
    """Where rounding is decided: around zero, the least number, the subnormals' end, the largest, and ties."""
    form = by_name(name)
    exponent, mantissa = LAYOUTS[name]
    least = 2.0 ** (2 - 2 ** (exponent - 1) - mantissa)
    points = [0.0, least, least / 2, least * 1.5, form.smallest_normal, form.smallest_normal - least / 2, 1.0,
              1 + form.epsilon / 2, 1 + form.epsilon * 1.5, form.largest, form.largest * (1 + form.epsilon / 4),
              form.largest * (1 + form.epsilon / 2), form.largest * (1 + form.epsilon), 2 * form.largest]  # fmt: skip
    near = [math.nextafter(p, d) for p in points for d in (-INF, INF)]
    special = [INF, math.nan, 1e300, 1e-300, 5e-324]
    return [s * p for p in (*points, *near, *special) for s in (1.0, -1.0)]


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_rounding_decides_as_the_fractions_do(name: str, rounding: str) -> None:
    dice = random.Random(1)  # noqa: S311  a draw for a test
    values = edges(name) + [math.ldexp(dice.uniform(-2, 2), dice.randint(-160, 140)) for _ in range(100)]
    values += [math.ldexp(dice.uniform(-2, 2), dice.randint(-26, 17)) for _ in range(100)]
    for saturate, flush in ((False, False), (True, False), (False, True)):
        check(values, name, rounding, saturate, flush)


@pytest.mark.parametrize("name", SMALL)
def test_every_code_is_its_own_number_in_every_rounding(name: str) -> None:
    """All 256 codes of the 8-bit formats, all 65536 of float16, as torch reads the bits and as the fractions say."""
    form = by_name(name)
    codes = torch.arange(1 << form.bits).to(torch.uint8 if form.bits == 8 else torch.int32)
    stored = codes.view(form.dtype) if form.bits == 8 else codes.to(torch.int16).view(form.dtype)
    half = 1 << (form.bits - 1)
    numbers = stored[:half].double()
    finite = positives(name)
    assert numbers[: len(finite)].tolist() == [float(f) for f in finite]
    assert not numbers[len(finite) :].isfinite().any()
    for rounding in ROUNDINGS:
        made = quantise(stored.double(), name, rounding)
        integers = torch.uint8 if form.bits == 8 else torch.int16
        kept = ~stored.double().isnan()
        assert torch.equal(made.view(integers)[kept], stored.view(integers)[kept])
        assert made[~kept].double().isnan().all()


@pytest.mark.parametrize("name", SMALL)
def test_every_middle_between_two_codes_goes_where_the_rounding_says(name: str) -> None:
    numbers = positives(name)
    step = 1 if len(numbers) < 1000 else 211
    for rounding in ROUNDINGS:
        middles = [float((a + b) / 2) for a, b in zip(numbers[::step], numbers[1::step], strict=False)]
        check([*middles, *(-m for m in middles)], name, rounding)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_random_numbers_round_as_torch_rounds_to_nearest_even(name: str, dtype: torch.dtype) -> None:
    """Out of a float32, that is: from float64 torch rounds twice. It saturates in the format without infinities."""
    torch.manual_seed(0)
    values = (torch.randn(4000) * torch.exp2(torch.randint(-20, 18, (4000,)).float())).float().to(dtype)
    made = quantise(values, name, saturate=name == "float8_e4m3fn").double()
    wanted = values.float().to(by_name(name).dtype).double()
    assert torch.equal(made.nan_to_num(1e9), wanted.nan_to_num(1e9))


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("name", ["hf32", "tf32", "bfloat16"])
def test_a_float32_is_shortened_on_its_bits_as_on_its_value(name: str, rounding: str) -> None:
    torch.manual_seed(0)
    codes = torch.randint(-(2**31), 2**31, (500,)).to(torch.int32)
    values = torch.cat([codes.view(torch.float32), torch.tensor([0.0, -0.0, INF, -INF, math.nan, 3.4028234e38])])
    for saturate in (False, True):
        for subnormals in ("keep", "flush"):
            short = quantise(values, name, rounding, saturate, subnormals)
            long = quantise(values.double(), name, rounding, saturate, subnormals)
            assert all(same(a, b) for a, b in zip(short.double().tolist(), long.double().tolist(), strict=True))


def test_hf32_keeps_eleven_mantissa_bits_and_tf32_ten() -> None:
    for name, kept in (("hf32", 11), ("tf32", 10)):
        source = torch.tensor([struct.unpack("<f", struct.pack("<I", 0x3F800000 + i))[0] for i in range(0, 1 << 15, 7)])
        made = quantise(source, name).view(torch.int32)
        assert torch.all(made & ((1 << (23 - kept)) - 1) == 0)
        assert made.unique().numel() == (1 << 15 >> (23 - kept)) + 1


WHOLE = {
    "nearest-even": [0, 2, 2, -2, 3], "nearest-away": [1, 2, 3, -3, 3], "toward-zero": [0, 1, 2, -2, 2],
    "toward-positive": [1, 2, 3, -2, 3], "toward-negative": [0, 1, 2, -3, 2], "odd": [1, 1, 3, -3, 3],
}  # fmt: skip


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("name", ["int4", "int8", "int16", "int32", "int64"])
def test_whole_numbers_are_rounded_by_the_same_words(name: str, rounding: str) -> None:
    made = quantise(torch.tensor([0.5, 1.5, 2.5, -2.5, 2.75]), name, rounding)
    assert made.dtype == by_name(name).dtype
    assert made.tolist() == WHOLE[rounding]


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("int4", -8, 7), ("int8", -128, 127), ("uint8", 0, 255), ("int16", -32768, 32767),
     ("int32", -(2**31), 2**31 - 1), ("int64", -(2**63), 2**63 - 1)],
)  # fmt: skip
def test_saturated_whole_numbers_stop_at_their_ends(name: str, low: int, high: int) -> None:
    values = torch.tensor([-INF, -1e30, INF, 1e30, math.nan, 5.0], dtype=torch.float64)
    assert quantise(values, name, saturate=True).tolist() == [low, low, high, high, 0, 5]
    if name != "int64":
        assert quantise(torch.tensor([low - 1, high + 1, low, high]), name, saturate=True).tolist() == [
            low, high, low, high,
        ]  # fmt: skip


def test_whole_numbers_that_do_not_saturate_keep_their_low_bits() -> None:
    assert quantise(torch.tensor([130, -130, 256]), "int8").tolist() == [-126, 126, 0]
    assert quantise(torch.tensor([8, -9, 16, 7]), "int4").tolist() == [-8, 7, 0, 7]
    assert quantise(torch.tensor([300.6]), "uint8").tolist() == [45]
    assert quantise(torch.tensor([0.0, 0.25, -3.0]), "bool").tolist() == [False, True, True]


def test_long_whole_numbers_are_rounded_once() -> None:
    """2^60 + 2^36 is the middle of two float32; the 1 below tips it, and float64 would have lost it."""
    values = torch.tensor([2**60 + 2**36, 2**60 + 2**36 + 1, 2**60 + 3 * 2**36 - 1, -(2**60) - 2**36 - 1])
    wanted = [2.0**60, 2.0**60 + 2.0**37, 2.0**60 + 2.0**37, -(2.0**60) - 2.0**37]
    assert quantise(values, "float32").double().tolist() == wanted


def test_unknown_words_are_answered_with_the_known_ones() -> None:
    known = "nearest-even, nearest-away, toward-zero, toward-positive, toward-negative, odd"
    with pytest.raises(errors.DtypeError, match=f"^DSF-N003: no rounding named 'up'; known: {known}$"):
        quantise(torch.ones(1), "float16", "up")
    with pytest.raises(
        errors.DtypeError, match=r"^DSF-N003: no treatment of subnormals named 'x'; known: keep, flush$"
    ):
        quantise(torch.ones(1), "float16", subnormals="x")


def test_a_number_that_a_narrow_format_lacks_is_named() -> None:
    assert in_range(torch.tensor([-8, 7], dtype=torch.int8), "int4").tolist() == [-8, 7]
    sentence = r"^DSF-N004: 8 \(number 2 of 3\) is no int4; expected -8 to 7, one number to a byte$"
    with pytest.raises(errors.DtypeError, match=sentence):
        in_range(torch.tensor([1, -8, 8], dtype=torch.int8), "int4")
