"""Quantities as written by people ('64 KiB', '1.8 GHz', '128/7 element/cycle'), and how sure we are of them.

Inside DSF a quantity is an integer: bytes, hertz, femtoseconds, bytes per second, cycles. `parse` is the only way in,
`show` the only way out. Rates per cycle and shares are exact fractions; watts, degrees and their kin are floats, since
the thermal model is one of real numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache

from attrs import frozen

__all__ = ["DIMENSIONS", "ORIGINS", "Dimension", "parse", "show", "weakest"]

ORIGINS = ("measured", "datasheet", "derived", "fitted", "estimate")
"""Where a number comes from, from the strongest claim to the weakest."""

_NUMBER = re.compile(r"\s*([+-]?\d{1,30}(?:\.\d{1,30})?(?:[eE][+-]?\d{1,2})?(?:/\d{1,30})?)\s*(.*?)\s*", re.DOTALL)
_DECIMAL = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50}
_SECONDS = {"fs": 0, "ps": 3, "ns": 6, "us": 9, "µs": 9, "μs": 9, "ms": 12, "s": 15}  # two code points look like a mu
_SHORT = 60  # as much of a wrong value as a sentence shows


@frozen
class Dimension:
    """What kind of quantity a number is: the units it may be written in, and the Python number it becomes."""

    name: str
    noun: str
    example: str
    units: Mapping[str, Fraction]
    result: type = int

    @property
    def bare(self) -> bool:
        """Whether a number without a unit is a quantity of this dimension."""
        return "" in self.units


def _bytes(suffix: str = "") -> dict[str, Fraction]:
    decimal = {f"{p}B{suffix}": Fraction(10**n) for p, n in _DECIMAL.items()}
    return decimal | {f"{p}B{suffix}": Fraction(2**n) for p, n in _BINARY.items()}


def _bits_per_second() -> dict[str, Fraction]:
    return {f"{p}b/s": Fraction(10**n, 8) for p, n in _DECIMAL.items()}


def _small(unit: str) -> dict[str, Fraction]:
    return {f"{p}{unit}": Fraction(1, 10**n) for p, n in (("p", 12), ("n", 9), ("u", 6))}


def _one(*units: str) -> dict[str, Fraction]:
    return dict.fromkeys(units, Fraction(1))


DIMENSIONS: Mapping[str, Dimension] = {
    d.name: d
    for d in (
        Dimension("bytes", "a size", "64 KiB", _bytes()),
        Dimension("hertz", "a frequency", "1.2 GHz", {f"{p}Hz": Fraction(10**n) for p, n in _DECIMAL.items()}),
        Dimension("femtoseconds", "a time", "5 us", {u: Fraction(10**n) for u, n in _SECONDS.items()}),
        Dimension("bytes_per_second", "a bandwidth", "1.6 TB/s", _bytes("/s") | _bits_per_second()),
        Dimension("bytes_per_cycle", "a path width", "32 B/cycle", _one("B/cycle")),
        Dimension("per_cycle", "a rate", "128 element/cycle", _one("element/cycle", "MAC/cycle"), Fraction),
        Dimension("cycles", "a number of cycles", "14 cycles", _one("cycles", "cycle")),
        Dimension("count", "a whole number", "24", _one("")),
        Dimension("share", "a share", "1/2", _one("") | {"%": Fraction(1, 100)}, Fraction),
        Dimension("limit", "a whole number or a size", "255", _one("") | _bytes()),
        Dimension(
            "watts", "a power", "350 W", {"W": Fraction(1), "mW": Fraction(1, 1000), "kW": Fraction(1000)}, float
        ),
        Dimension("joules_per_cycle", "an energy per cycle", "2 nJ/cycle", _small("J/cycle"), float),
        Dimension("joules_per_byte", "an energy per byte", "30 pJ/B", _small("J/B"), float),
        Dimension("celsius", "a temperature", "65.5 °C", _one("°C"), float),
        Dimension("kelvin", "a temperature difference", "3 K", _one("K"), float),
        Dimension("kelvin_per_watt", "a thermal resistance", "0.1 K/W", _one("K/W"), float),
        Dimension("joules_per_kelvin", "a thermal capacity", "140 J/K", _one("J/K"), float),
    )
}


def parse(value: object, dimension: str) -> int | Fraction | float:
    """The quantity that *value* writes, in the dimension's own unit; ValueError with a sentence if it writes none.

    Exact: '1 kB' is 1000 bytes, '1 KiB' 1024, and '0.3 B' is refused, since no memory holds a part of a byte.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction | str):
        raise ValueError(_no_quantity(value, DIMENSIONS[dimension]))
    return _parsed(str(value), dimension)


@lru_cache(maxsize=4096)
def _parsed(text: str, dimension: str) -> int | Fraction | float:
    kind = DIMENSIONS[dimension]
    number, unit = _split(text, kind)
    if unit not in kind.units:
        raise ValueError(_unknown_unit(text, unit, kind))
    exact = number * kind.units[unit]
    if exact < 0 and kind.name != "celsius":
        raise ValueError(f"{_quoted(text)} is negative; {kind.noun} is not")
    if kind.result is int and exact.denominator != 1:
        raise ValueError(f"{_quoted(text)} is not a whole number of {kind.name.replace('_', ' ')}")
    result: int | Fraction | float = kind.result(exact)
    return result


def _split(text: str, kind: Dimension) -> tuple[Fraction, str]:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(_no_quantity(text, kind))
    numerator, _, denominator = match[1].partition("/")
    if denominator and not int(denominator):
        raise ValueError(f"{_quoted(text)} divides by zero")
    return Fraction(numerator) / int(denominator or 1), match[2]


def _no_quantity(value: object, kind: Dimension) -> str:
    wanted = "a number" if kind.bare else "a number and a unit"
    return f"{_quoted(value)} is not {kind.noun}; write {wanted}, like '{kind.example}'"


def _unknown_unit(value: str, unit: str, kind: Dimension) -> str:
    known = ", ".join(u for u in kind.units if u)
    if not unit:
        return f"{_quoted(value)} has no unit; write {kind.noun} as a number and a unit, like '{kind.example}'"
    expected = f"{kind.noun} has the units {known}" if known else f"{kind.noun} has no unit, like '{kind.example}'"
    return f"{_quoted(value)}: '{_short(unit)}' is no unit of {kind.noun}; {expected}"


def _quoted(value: object) -> str:
    return f"'{_short(value)}'"


def _short(value: object) -> str:
    text = "".join(c if c.isprintable() else "?" for c in str(value)[: _SHORT + 1])
    return text if len(text) <= _SHORT else text[: _SHORT - 3] + "..."


_STEPS: Mapping[str, tuple[tuple[str, int], ...]] = {
    "bytes": (*((f"{p}B", 1 << n) for p, n in reversed(_BINARY.items())), ("B", 1)),
    "hertz": tuple((f"{p}Hz", 10**n) for p, n in reversed(_DECIMAL.items())),
    "femtoseconds": tuple((u, 10**n) for u, n in reversed(_SECONDS.items()) if u.isascii()),
    "bytes_per_second": tuple((f"{p}B/s", 10**n) for p, n in reversed(_DECIMAL.items())),
    "flops": tuple((f"{p}FLOPS", 10**n) for p, n in reversed(_DECIMAL.items())),
    "operations_per_second": tuple((f"{p}OPS", 10**n) for p, n in reversed(_DECIMAL.items())),
}
_PLAIN = {"watts": "W", "celsius": "°C", "kelvin": "K", "cycles": "cycles", "bytes_per_cycle": "B/cycle"}


def show(value: int | float | Fraction, dimension: str) -> str:
    """*value* for people, to four significant digits: `show(65536, "bytes")` is '64 KiB'."""
    for unit, size in _STEPS.get(dimension, ()):
        if abs(float(value)) >= size:
            return f"{float(value) / size:.4g} {unit}"
    unit = _STEPS[dimension][-1][0] if dimension in _STEPS else _PLAIN.get(dimension, "")
    return f"{float(value):.4g} {unit}".rstrip()


def weakest(origins: Iterable[str]) -> str:
    """The origin of a number computed from numbers of these *origins*: a sum is no surer than its least sure part."""
    return max(origins, key=ORIGINS.index, default="measured")
