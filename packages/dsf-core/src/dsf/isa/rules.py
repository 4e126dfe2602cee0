"""What the operands of one instruction must be to each other. Each rule answers None, or what is wrong in words."""

from __future__ import annotations

import sys
from fractions import Fraction
from math import gcd, isfinite

import torch

from dsf.hdl import Chip
from dsf.isa.program import Affine, Instruction, Operand, torch_dtype
from dsf.isa.table import Rule

__all__ = [
    "apart_or_the_same", "fits_written", "holds_numbers", "limit", "one_dtype", "one_shape", "product_shapes",
    "reduced_shape", "repeats", "rows_of", "scalars_fit", "whole", "whole_steps",
]  # fmt: skip

MOST_COMPARED = 1 << 20  # elements of a window that are compared one by one


def limit(chip: Chip, name: str) -> int:
    """The number that the HDL states for one of its limits."""
    value = chip.limits[name]
    assert isinstance(value, int), "a limit that rules ask for is one number"
    return value


def whole(ins: Instruction, name: str, default: int = 0) -> int:
    """The whole number that the instruction holds as *name*. One that depends on a loop is none: `holds_numbers` is the
    rule that refuses it, and stands before whoever asks."""
    value = dict(ins.scalars).get(name, default)
    if isinstance(value, Affine):
        return value.const
    assert isinstance(value, int), "verify has checked the kind"
    return value


def holds_numbers(*names: str) -> Rule:
    """What the instruction itself holds as these scalars is fixed: no loop changes it."""

    def rule(chip: Chip, ins: Instruction) -> str | None:
        for name, value in ins.scalars:
            if name in names and isinstance(value, Affine) and value.terms:
                return f"{name}={value} depends on a loop; expected a number"
        return None

    rule.__doc__ = f"{', '.join(names)}: no loop changes what the instruction itself holds."
    return rule


def one_shape(chip: Chip, ins: Instruction) -> str | None:
    """Every operand has the shape of the first; what is broadcast has stride 0 there."""
    shape = ins.operands[0].shape
    for operand in ins.operands:
        if operand.shape != shape:
            return f"shapes {shape} and {operand.shape} differ; a broadcast dimension has its full size and stride 0"
    return None


def reduced_shape(chip: Chip, ins: Instruction) -> str | None:
    """The result has one element for each row of the source."""
    dst, src = ins.operands[0].shape, ins.operands[1].shape
    if not src or dst != (*src[:-1], 1):
        return f"a reduction of {src} leaves {(*src[:-1], 1)}, not {dst}"
    return None


def product_shapes(chip: Chip, ins: Instruction) -> str | None:
    """c (m, n), a (m, k), b (k, n), and a bias (n) where there is one."""
    c, a, b, *bias = (o.shape for o in ins.operands)
    if len(a) != 2 or len(b) != 2 or a[1] != b[0] or c != (a[0], b[1]) or any(s != c[1:] for s in bias):
        return f"no product of {a} and {b}{''.join(f' on a bias {s}' for s in bias)} is {c}"
    return None


def whole_steps(chip: Chip, ins: Instruction) -> str | None:
    """Whole numbers are stepped by whole numbers."""
    dtype, scalars = ins.operands[0].dtype, dict(ins.scalars)
    broken = [f"{name}={value}" for name, value in scalars.items() if isinstance(value, float)]
    return f"{dtype} is not stepped by {' and '.join(broken)}" if broken and "float" not in dtype else None


def one_dtype(*places: int) -> Rule:
    """The operands at these places share one dtype: the unit converts nothing on the way."""

    def rule(chip: Chip, ins: Instruction) -> str | None:
        dtypes = dict.fromkeys(ins.operands[i].dtype for i in places)
        return f"one dtype for all, not {' and '.join(dtypes)}; cast first" if len(dtypes) > 1 else None

    *most, last = (str(place + 1) for place in sorted(places))
    numbers = f"Operands {', '.join(most)} and {last} share" if most else f"Operand {last} has"
    rule.__doc__ = f"{numbers} one dtype of those listed: the unit converts nothing on the way."
    return rule


def scalars_fit(chip: Chip, ins: Instruction) -> str | None:
    """Numbers that the instruction holds are numbers of its (last) source's format."""
    dtype = torch_dtype(ins.operands[-1].dtype)
    for name, value in ins.scalars:
        if isinstance(value, Affine | str):
            continue
        if problem := _unfit(value, dtype):
            return f"{name}={value} is no {ins.operands[-1].dtype}; {problem}"
    return None


def fits_written(chip: Chip, ins: Instruction) -> str | None:
    """Numbers that fill the written operand are of its format: whole ones whole and in range, finite ones finite. They
    are rounded to it, as 1/3 is to any float."""
    name = ins.operands[0].dtype
    dtype = torch_dtype(name)
    for scalar, value in ins.scalars:
        number = value.const if isinstance(value, Affine) and not value.terms else value
        if isinstance(number, Affine | str):
            continue
        if problem := _unfit(number, dtype) if not dtype.is_floating_point else _overflows(number, dtype):
            return f"{scalar}={value} is no {name}; {problem}"
    return None


def _overflows(value: float, dtype: torch.dtype) -> str | None:
    """Why a finite *value* has no finite number of *dtype* near it."""
    most = torch.finfo(dtype).max
    if isinstance(value, float) and not isfinite(value):
        return None
    outside = abs(value) > most and (
        abs(value) > sys.float_info.max or not isfinite(float(torch.tensor(value, dtype=torch.float64).to(dtype)))
    )
    return f"expected at most {most:g}, or inf" if outside else None


def _unfit(value: float, dtype: torch.dtype) -> str | None:
    if dtype.is_floating_point:
        near = float(torch.tensor(value, dtype=torch.float64).to(dtype))
        return None if near == value or value != value else f"the nearest is {near}"
    if value - value != 0 or Fraction(value).denominator != 1:
        return "expected a whole number"
    low, high = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    return None if low <= value <= high else f"expected {low} to {high}"


def apart_or_the_same(chip: Chip, ins: Instruction) -> str | None:
    """What is written lies on a source wholly or not at all. Only windows whose distance is the same in every round are
    compared."""
    written, *sources = ins.operands
    for source in sources:
        if written.space == source.space and _meet_in_part(written, source):
            return f"{written} overlaps {source} in part; expected all of it or nothing"
    return None


def _meet_in_part(a: Operand, b: Operand) -> bool:
    if a.offset.terms != b.offset.terms or not a.numel or not b.numel:
        return False
    if (a.offset, a.itemsize) == (b.offset, b.itemsize) and (a.stride == b.stride or 1 in (a.numel, b.numel)):
        return False
    start, other = a.offset.const, b.offset.const
    if other >= start + a.reach or start >= other + b.reach:
        return False
    return not _columns_apart(a, b, other - start)


def _columns_apart(a: Operand, b: Operand, distance: int) -> bool:
    """Whether rows of the same pitch, *distance* bytes from each other, lie beside each other."""
    pitch, width = rows_of(a)
    pitch_b, width_b = rows_of(b)
    if not pitch or pitch != pitch_b:
        return False
    shift = distance % pitch
    return shift >= width and shift + width_b <= pitch


def rows_of(operand: Operand) -> tuple[int, int]:
    """(bytes from row to row, bytes of a row); a pitch of 0 where the window is in one piece or has many pitches."""
    width = operand.itemsize
    dims = sorted((s, n) for n, s in zip(operand.shape, operand.stride, strict=True) if n > 1 and s)
    while dims and dims[0][0] * operand.itemsize <= width:
        stride, n = dims.pop(0)
        width += (n - 1) * stride * operand.itemsize
    return (dims[0][0] * operand.itemsize if len(dims) == 1 else 0), width


def repeats(operand: Operand) -> bool:
    """Whether the window names a place twice: a stride of 0, or rows that overlap. Two dimensions are compared exactly;
    more, where no two of them meet, only up to `MOST_COMPARED` elements, and pass beyond."""
    dims = sorted((s, n) for n, s in zip(operand.shape, operand.stride, strict=True) if n > 1)
    if not operand.numel or _nested(dims):
        return False
    if any(_dims_meet(a, b) for place, a in enumerate(dims) for b in dims[:place]):
        return True
    if len(dims) == 2 or operand.numel > MOST_COMPARED:
        return False
    places = torch.zeros(1, dtype=torch.int64)
    for stride, n in dims:
        places = (places[:, None] + torch.arange(n) * stride).flatten()
    return places.unique().numel() < operand.numel


def _nested(dims: list[tuple[int, int]]) -> bool:
    """Whether each stride steps over all that the smaller ones reach."""
    reach = 0
    for stride, n in dims:
        if stride <= reach:
            return False
        reach += (n - 1) * stride
    return True


def _dims_meet(a: tuple[int, int], b: tuple[int, int]) -> bool:
    """Whether some steps of the one (stride, size) go as far as some of the other."""
    (s, n), (t, m) = a, b
    common = gcd(s, t)
    return not s or not t or (t // common < n and s // common < m)
