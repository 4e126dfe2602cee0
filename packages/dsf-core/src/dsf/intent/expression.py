"""Pointwise expressions as nested tuples, every rounding point written down.

    ("in", 0)                                the value of input 0, in its window's dtype
    ("const", torch.float32, 2.0)            a number
    ("add", torch.float16, left, right)      a primitive, the dtype its result is rounded to, its operands

Operands of a primitive have one dtype, its own (where: all but the condition; comparisons: result bool); a `cast` is a
node of its own. Integer `and`, `or`, `xor`, `not` are bitwise, which on bool is logical.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from math import isnan, nan
from typing import Any

import torch
from attrs import frozen

__all__ = ["PRIMITIVES", "Expr", "Primitive", "cast", "const", "dtype_of", "evaluate", "nodes", "substitute", "text"]

Expr = tuple[Any, ...]


@frozen
class Primitive:
    """*arity*, the torch function that means it, and whether the result is a bool (*test*)."""

    arity: int
    function: Callable[..., torch.Tensor]
    test: bool = False


def _rounded_division(mode: str) -> Callable[..., torch.Tensor]:
    return lambda a, b: torch.div(a, b, rounding_mode=mode)


PRIMITIVES: dict[str, Primitive] = {
    **{name: Primitive(1, getattr(torch, name)) for name in (
        "abs", "ceil", "cos", "erf", "exp", "exp2", "expm1", "floor", "log", "log1p", "log2", "neg", "reciprocal",
        "round", "rsqrt", "sigmoid", "sign", "sin", "sqrt", "tan", "tanh", "trunc")},
    "silu": Primitive(1, torch.nn.functional.silu),
    "gelu": Primitive(1, torch.nn.functional.gelu),
    "gelu_tanh": Primitive(1, lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
    "cast": Primitive(1, lambda x: x),
    **{name: Primitive(2, getattr(torch, name)) for name in ("add", "sub", "mul", "div", "pow", "fmod")},
    "mod": Primitive(2, torch.remainder),
    "floor_div": Primitive(2, _rounded_division("floor")),
    "trunc_div": Primitive(2, _rounded_division("trunc")),
    "min": Primitive(2, torch.minimum),
    "max": Primitive(2, torch.maximum),
    **{name: Primitive(2, getattr(torch, name), test=True) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "and": Primitive(2, torch.bitwise_and),
    "or": Primitive(2, torch.bitwise_or),
    "xor": Primitive(2, torch.bitwise_xor),
    "not": Primitive(1, torch.bitwise_not),
    "where": Primitive(3, torch.where),
}  # fmt: skip

# These take a Python number on the right and compute with it unrounded, as the operators that recorded it do.
_KEEPS_NUMBERS = frozenset({"add", "sub", "mul", "div", "pow", "fmod", "mod", "floor_div", "trunc_div",
                            "eq", "ne", "lt", "le", "gt", "ge"})  # fmt: skip


def const(dtype: torch.dtype, value: bool | int | float) -> Expr:
    """A number as a leaf of *dtype*; its Python type follows the dtype, so that equal leaves mean equal numbers."""
    if dtype == torch.bool:
        return "const", dtype, bool(value)
    if not dtype.is_floating_point:
        return "const", dtype, int(value)
    number = float(value)
    return "const", dtype, nan if isnan(number) else number


def cast(expr: Expr, dtype: torch.dtype, dtypes: Sequence[torch.dtype]) -> Expr:
    """*expr* rounded to *dtype*; itself if it has that dtype. *dtypes* are those of the inputs."""
    return expr if dtype_of(expr, dtypes) == dtype else ("cast", dtype, expr)


def dtype_of(expr: Expr, dtypes: Sequence[torch.dtype]) -> torch.dtype:
    """The dtype of the expression's value; *dtypes* are those of the inputs."""
    result: torch.dtype = dtypes[expr[1]] if expr[0] == "in" else expr[1]
    return result


def nodes(expr: Expr) -> Iterator[Expr]:
    """Every node, operands before the primitive that takes them."""
    if expr[0] not in ("in", "const"):
        for operand in expr[2:]:
            yield from nodes(operand)
    yield expr


def substitute(expr: Expr, leaves: Sequence[Expr]) -> Expr:
    """*expr* with ("in", i) replaced by leaves[i]."""
    if expr[0] == "in":
        return leaves[expr[1]]
    if expr[0] == "const":
        return expr
    return (*expr[:2], *(substitute(operand, leaves) for operand in expr[2:]))


def evaluate(expr: Expr, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """The value of *expr*, computed by the torch operators that it came from."""
    value = _value(expr, inputs)
    return value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=expr[1])


def _value(expr: Expr, inputs: Sequence[torch.Tensor]) -> Any:
    name = expr[0]
    if name == "in":
        return inputs[expr[1]]
    if name == "const":
        return expr[2]
    operands = [_value(operand, inputs) for operand in expr[2:]]
    keep = name in _KEEPS_NUMBERS and isinstance(operands[0], torch.Tensor)
    operands = [v if keep or isinstance(v, torch.Tensor) else torch.tensor(v, dtype=leaf[1])
                for v, leaf in zip(operands, expr[2:], strict=True)]  # fmt: skip
    return PRIMITIVES[name].function(*operands).to(expr[1])


def text(expr: Expr) -> str:
    """The expression for people: `add(x0, 2.0)`, casts with their dtype."""
    if expr[0] == "in":
        return f"x{expr[1]}"
    if expr[0] == "const":
        return str(expr[2])
    operands = ", ".join(map(text, expr[2:]))
    return f"{_short(expr[1])}({operands})" if expr[0] == "cast" else f"{expr[0]}({operands})"


@lru_cache
def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
