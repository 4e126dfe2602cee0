"""Rounding once. torch takes a float64 to a 16-bit format by way of float32, which rounds twice."""

from __future__ import annotations

import torch
from attrs import frozen

from dsf.numerics.formats import by_name
from dsf.numerics.quantise import quantise

__all__ = ["Rounding", "rounded"]


@frozen
class Rounding:
    """How an engine makes a number of its result: the words are those of `quantise`."""

    mode: str = "nearest-even"
    saturate: bool = False
    subnormals: str = "keep"

    def __call__(self, value: torch.Tensor, form: str) -> torch.Tensor:
        """*value* as numbers of the format called *form*."""
        return quantise(value, by_name(form), self.mode, self.saturate, self.subnormals)


def rounded(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """*value* in *dtype*; a float64 is rounded once, to the nearest number of *dtype*, halves to even.

    On the way through float32 it is rounded to odd [Boldo and Melquiond 2008]: the last bit then tells that something
    was cut off, and as float32 has two bits more than any narrower format needs, the second rounding is the only one.
    """
    if value.dtype != torch.float64 or not dtype.is_floating_point or dtype.itemsize >= 4:
        return value.to(dtype)
    near = value.float()
    inexact, even = near.double() != value, near.view(torch.int32) & 1 == 0
    other = torch.nextafter(near, torch.where(value > near, torch.inf, -torch.inf))
    return torch.where(inexact & even & near.isfinite(), other, near).to(dtype)
