"""The one place where a number becomes a number of a format: rounded once, then overflow, then subnormals.

The value is scaled so that the format's last place is 1, rounded to a whole number there, and scaled back; every step
but the rounding is exact in float64. A float32 is taken to the 32-bit formats of fewer mantissa bits on its bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch

from dsf import errors
from dsf.numerics.formats import Format, by_name

__all__ = ["ROUNDINGS", "SUBNORMALS", "in_range", "quantise"]


def quantise(
    value: torch.Tensor,
    form: Format | str,
    rounding: str = "nearest-even",
    saturate: bool = False,
    subnormals: str = "keep",
) -> torch.Tensor:
    """*value* as numbers of *form*, in the dtype that torch stores them in; any dtype goes in.

    A float too large becomes an infinity (NaN in a format without one), or the largest number where *rounding* points
    there or with *saturate*. Beyond its range a whole number keeps its low bits, or with *saturate* becomes the nearest
    one; NaN is 0 there. *subnormals* `flush` makes a zero of its sign of what is, once rounded, below the smallest
    normal number.
    """
    target = by_name(form) if isinstance(form, str) else form
    if rounding not in ROUNDINGS:
        raise errors.DtypeError("DSF-N003", _unknown("rounding", rounding, ROUNDINGS))
    if subnormals not in SUBNORMALS:
        raise errors.DtypeError("DSF-N003", _unknown("treatment of subnormals", subnormals, SUBNORMALS))
    if target.kind != "float":
        return _whole(value, target, rounding, saturate)
    if value.dtype == torch.float32 and rounding in _CARRIES and target.exponent == 8 and target.mantissa < 23:
        result: torch.Tensor = _shorter(value, target, rounding).double()
    elif target.mantissa >= 52:
        result = value.double()
    else:
        result = _rounded(_exact(value), target, rounding)
    return _within(result, target, rounding, saturate, subnormals).to(target.dtype)


def _unknown(what: str, found: str, known: Iterable[str]) -> str:
    return f"no {what} named '{found}'; known: {', '.join(known)}"


def _to_even(x: torch.Tensor) -> torch.Tensor:
    return torch.round(x)


def _away(x: torch.Tensor) -> torch.Tensor:
    whole = x.abs().floor()
    return torch.copysign(whole + (x.abs() - whole >= 0.5), x)


def _odd(x: torch.Tensor) -> torch.Tensor:
    """Von Neumann's: what is cut off sets the last bit."""
    whole = x.trunc()
    return torch.where((whole != x) & (whole % 2 == 0), whole + torch.copysign(torch.ones_like(x), x), whole)


ROUNDINGS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nearest-even": _to_even,
    "nearest-away": _away,
    "toward-zero": torch.trunc,
    "toward-positive": torch.ceil,
    "toward-negative": torch.floor,
    "odd": _odd,
}
"""A rounding by name, as what it does to numbers whose last place is 1."""

SUBNORMALS = ("keep", "flush")
_CARRIES = ("nearest-even", "nearest-away", "toward-zero")


def _exact(value: torch.Tensor) -> torch.Tensor:
    """*value* in float64. An int64 that is too long for it loses bits below any narrower format's last place, and the
    lowest bit kept says that something was lost."""
    if value.dtype != torch.int64:
        return value.double()
    low = value & 0xFFF
    short = (value - low) | ((low != 0).long() << 11)
    return torch.where((value >= -(1 << 53)) & (value <= 1 << 53), value, short).double()


def _rounded(value: torch.Tensor, form: Format, rounding: str) -> torch.Tensor:
    """*value* (float64) in steps of the format's last place, the exponent being unlimited above."""
    exponent = torch.frexp(value)[1].clamp(min=2 - form.bias) - 1
    last = exponent - form.mantissa
    steps = ROUNDINGS[rounding](value * _power(-last))
    return torch.where(value.isfinite(), torch.copysign(steps * _power(last), value), value)


def _power(exponent: torch.Tensor) -> torch.Tensor:
    """2.0 to a whole *exponent* within float64's normal range, from its bits."""
    return ((exponent.long().clamp(-1022, 1023) + 1023) << 52).view(torch.float64)


def _shorter(value: torch.Tensor, form: Format, rounding: str) -> torch.Tensor:
    """A float32 with its low mantissa bits rounded away: a carry runs into the exponent, as it should."""
    bits, cut = value.view(torch.int32), 23 - form.mantissa
    half = 1 << (cut - 1)
    if rounding == "nearest-even":
        bits = bits + (half - 1) + ((bits >> cut) & 1)
    elif rounding == "nearest-away":
        bits = bits + half
    kept = bits & -(1 << cut)
    return torch.where(value.isfinite(), kept.view(torch.float32), value)


def _within(value: torch.Tensor, form: Format, rounding: str, saturate: bool, subnormals: str) -> torch.Tensor:
    """Rounded numbers brought into the format's range."""
    largest = form.largest
    if saturate:
        value = value.clamp(-largest, largest)
    else:
        over = value.abs() > largest
        beyond = torch.copysign(torch.full_like(value, torch.nan if form.finite else torch.inf), value)
        stays = value.isfinite() & _stops_at_the_largest(value, rounding)
        value = torch.where(
            over, torch.where(stays, torch.copysign(torch.full_like(value, largest), value), beyond), value
        )
    if subnormals == "flush":
        value = torch.where(value.abs() < form.smallest_normal, torch.copysign(torch.zeros_like(value), value), value)
    return value


def _stops_at_the_largest(value: torch.Tensor, rounding: str) -> torch.Tensor:
    """Where a finite number that is too large is rounded towards the largest one and not beyond. [IEEE 754, 7.4]"""
    if rounding in ("toward-zero", "odd"):
        return torch.ones_like(value, dtype=torch.bool)
    if rounding == "toward-positive":
        return value < 0
    return value > 0 if rounding == "toward-negative" else torch.zeros_like(value, dtype=torch.bool)


def _whole(value: torch.Tensor, form: Format, rounding: str, saturate: bool) -> torch.Tensor:
    if form.name == "bool":
        return value != 0
    low, high = _bounds(form)
    if value.is_floating_point():
        steps = ROUNDINGS[rounding](value.double()).nan_to_num(0.0, torch.inf, -torch.inf)
        inside = torch.where(steps.abs() < 2.0**63, steps, 0.0).long()
        whole = torch.where(steps >= 2.0**63, (1 << 63) - 1, torch.where(steps < -(2.0**63) + 1, -(1 << 63), inside))
    else:
        whole = value.long()
    if saturate:
        return whole.clamp(low, high).to(form.dtype)
    span = 1 << form.bits
    return whole.to(form.dtype) if form.bits >= 8 else ((whole - low) % span + low).to(form.dtype)


def _bounds(form: Format) -> tuple[int, int]:
    """The least and the largest number of a whole format."""
    if form.kind == "uint":
        return 0, (1 << form.bits) - 1
    return -(1 << (form.bits - 1)), (1 << (form.bits - 1)) - 1


def in_range(value: torch.Tensor, form: Format | str) -> torch.Tensor:
    """*value*, whole numbers kept in a wider dtype; a DtypeError for the first that *form* does not have."""
    target = by_name(form) if isinstance(form, str) else form
    low, high = _bounds(target)
    strays = ((value < low) | (value > high)).flatten().nonzero()
    if strays.numel():
        at = int(strays[0])
        raise errors.DtypeError(
            "DSF-N004",
            f"{value.flatten()[at].item()} (number {at} of {value.numel()}) is no {target.name}; "
            f"expected {low} to {high}, one number to a byte",
        )
    return value
