"""The number formats that chips compute in, as data. A name is torch's, or the vendor's where torch has none."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from attrs import frozen

from dsf import errors

__all__ = ["FORMATS", "Format", "by_dtype", "by_name"]


@frozen
class Format:
    """*dtype* is what torch stores it in, *bits* how many of them the chip keeps.

    *exponent* and *mantissa* are the stored bits of a float (zero for other kinds); *finite* formats have no infinity.
    """

    name: str
    dtype: torch.dtype
    kind: str
    bits: int
    exponent: int = 0
    mantissa: int = 0
    finite: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes of one element as torch stores it."""
        return self.dtype.itemsize

    @property
    def is_stored_as_itself(self) -> bool:
        """Whether torch has this very format, and not only a wider one to keep its values in."""
        return self.name == str(self.dtype).removeprefix("torch.")

    @property
    def bias(self) -> int:
        """What a float's stored exponent is above its true one."""
        return (1 << (self.exponent - 1)) - 1 if self.exponent else 0

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next larger number; 1 for whole numbers."""
        return 2.0**-self.mantissa

    @property
    def largest(self) -> float:
        """The largest finite number."""
        if self.kind != "float":
            return float((1 << self.bits - (self.kind == "int")) - 1)
        if self.finite:  # the topmost exponent holds numbers too; all ones is NaN
            return (2.0 - 2 * self.epsilon) * 2.0 ** ((1 << self.exponent) - 1 - self.bias)
        return (2.0 - self.epsilon) * 2.0**self.bias

    @property
    def smallest_normal(self) -> float:
        """The smallest positive number with a full mantissa."""
        return 2.0 ** (1 - self.bias) if self.kind == "float" else 1.0


def _float(name: str, dtype: torch.dtype, exponent: int, mantissa: int, finite: bool = False) -> Format:
    return Format(name, dtype, "float", 1 + exponent + mantissa, exponent, mantissa, finite)


def _whole(name: str, dtype: torch.dtype, bits: int) -> Format:
    return Format(name, dtype, "uint" if name.startswith(("u", "b")) else "int", bits)


FORMATS: Mapping[str, Format] = {
    f.name: f
    for f in (
        _float("float64", torch.float64, 11, 52),
        _float("float32", torch.float32, 8, 23),
        _float("hf32", torch.float32, 8, 11),  # Ascend: float32 with 11 stored mantissa bits
        _float("tf32", torch.float32, 8, 10),  # NVIDIA and others: to 10
        _float("float16", torch.float16, 5, 10),
        _float("bfloat16", torch.bfloat16, 8, 7),
        _float("float8_e4m3fn", torch.float8_e4m3fn, 4, 3, finite=True),
        _float("float8_e5m2", torch.float8_e5m2, 5, 2),
        _whole("int64", torch.int64, 64),
        _whole("int32", torch.int32, 32),
        _whole("int16", torch.int16, 16),
        _whole("int8", torch.int8, 8),
        _whole("int4", torch.int8, 4),  # one number to a byte
        _whole("uint8", torch.uint8, 8),
        _whole("bool", torch.bool, 1),
    )
}

_BY_DTYPE = {f.dtype: f for f in FORMATS.values() if f.is_stored_as_itself}


def by_name(name: str) -> Format:
    """The format called *name*, as HDL files write it."""
    if name in FORMATS:
        return FORMATS[name]
    raise errors.DtypeError("DSF-N001", f"no number format named '{name}'; known formats: {', '.join(FORMATS)}")


def by_dtype(dtype: torch.dtype) -> Format:
    """The format that torch calls *dtype*; the ones torch only stores, such as hf32, have names alone."""
    if dtype in _BY_DTYPE:
        return _BY_DTYPE[dtype]
    known = ", ".join(f.name for f in _BY_DTYPE.values())
    raise errors.DtypeError("DSF-N001", f"{dtype} is no format that a chip computes in; known formats: {known}")
