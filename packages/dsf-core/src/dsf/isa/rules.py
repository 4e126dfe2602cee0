"""What the operands of one instruction must be to each other. Each rule answers None, or what is wrong in words."""

from __future__ import annotations

from dsf.hdl import Chip
from dsf.isa.program import Instruction
from dsf.isa.table import Rule

__all__ = ["limit", "one_dtype", "one_shape", "product_shapes", "reduced_shape", "whole_steps"]


def limit(chip: Chip, name: str) -> int:
    """The number that the HDL states for one of its limits."""
    value = chip.limits[name]
    assert isinstance(value, int), "a limit that rules ask for is one number"
    return value


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

    return rule
