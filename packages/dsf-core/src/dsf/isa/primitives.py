"""The neutral vocabulary: what a vector or scalar engine may be asked to do, whatever its vendor calls it.

A chip's table says which of its instructions serve which primitive (`implements=`); kernels that are written in
primitives run on every chip that serves them. One row per primitive: its arity, its pure meaning on torch tensors, the
rate class of the HDL that prices it, the number formats in which it means something, and whether its result is a truth
value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from attrs import frozen

__all__ = ["ARG_REDUCTIONS", "POINTWISE", "REDUCTIONS", "WITH_SCALAR", "Primitive"]

ANY, NUMBERS, FLOATS, BITS, TRUTH = "any", "numbers", "floats", "bits", "truth"


@frozen(eq=False)
class Primitive:
    """*meaning(\\*operands)* is a new tensor; *out(\\*operands, out=)* the same in place, where torch has it.

    *takes* says of which formats it makes sense: any, numbers (all but bool), floats, bits (whole
    numbers and bool), or truth (bool alone).
    """

    name: str
    arity: int
    meaning: Callable[..., torch.Tensor]
    out: Callable[..., Any] | None
    opclass: str = "default"
    predicate: bool = False
    takes: str = ANY

    def accepts(self, dtype: str) -> bool:
        """Whether the primitive is defined on *dtype*, its result being of that dtype or a truth value."""
        whole = not dtype.startswith(("float", "bfloat"))
        return {ANY: True, NUMBERS: dtype != "bool", FLOATS: not whole, BITS: whole, TRUTH: dtype == "bool"}[self.takes]


def _table(*rows: Primitive) -> dict[str, Primitive]:
    return {row.name: row for row in rows}


def _binary(
    name: str, opclass: str = "add", predicate: bool = False, torch_name: str = "", takes: str = ANY
) -> Primitive:
    function = getattr(torch, torch_name or name)
    return Primitive(name, 2, function, function, opclass, predicate, takes)


def _unary(name: str, opclass: str, takes: str = ANY) -> Primitive:
    function = getattr(torch, name)
    return Primitive(name, 1, function, function, opclass, False, takes)


def _rounded(mode: str) -> Callable[..., torch.Tensor]:
    return partial(torch.div, rounding_mode=mode)


POINTWISE: dict[str, Primitive] = _table(
    _binary("add"),
    _binary("sub", takes=NUMBERS),
    _binary("mul", "mul"),
    _binary("div", "div", takes=FLOATS),
    Primitive("floor_div", 2, _rounded("floor"), _rounded("floor"), "div", takes=NUMBERS),
    Primitive("trunc_div", 2, _rounded("trunc"), _rounded("trunc"), "div", takes=NUMBERS),
    _binary("mod", "div", torch_name="remainder", takes=NUMBERS),
    _binary("fmod", "div", takes=NUMBERS),
    _binary("max", "max", torch_name="maximum"),
    _binary("min", "max", torch_name="minimum"),
    _binary("pow", "exp", takes=NUMBERS),
    _binary("eq", "select", predicate=True),
    _binary("ne", "select", predicate=True),
    _binary("lt", "select", predicate=True),
    _binary("le", "select", predicate=True),
    _binary("gt", "select", predicate=True),
    _binary("ge", "select", predicate=True),
    _binary("and", torch_name="bitwise_and", takes=BITS),
    _binary("or", torch_name="bitwise_or", takes=BITS),
    _binary("xor", torch_name="bitwise_xor", takes=BITS),
    Primitive("not", 1, torch.bitwise_not, torch.bitwise_not, "add", takes=BITS),
    Primitive("where", 3, torch.where, torch.where, "select"),
    _unary("neg", "add", NUMBERS),
    _unary("abs", "add", NUMBERS),
    _unary("sign", "select"),
    *(
        _unary(name, "exp", FLOATS)
        for name in (
            "exp",
            "exp2",
            "expm1",
            "sin",
            "cos",
            "tan",
            "tanh",
            "erf",
            "sigmoid",
        )
    ),
    *(_unary(name, "log", FLOATS) for name in ("log", "log2", "log1p")),
    _unary("sqrt", "sqrt", FLOATS),
    _unary("rsqrt", "rsqrt", FLOATS),
    _unary("reciprocal", "rec", FLOATS),
    *(_unary(name, "cast", NUMBERS) for name in ("floor", "ceil", "round", "trunc")),
)


WITH_SCALAR: dict[str, Primitive] = _table(
    _binary("add"),
    _binary("mul", "mul"),
    _binary("max", "max", torch_name="clamp_min", takes=NUMBERS),
    _binary("min", "max", torch_name="clamp_max", takes=NUMBERS),
    *(_binary(name, "select", predicate=True) for name in ("eq", "ne", "lt", "le", "gt", "ge")),
    _binary("shift_left", torch_name="bitwise_left_shift", takes=BITS),
    _binary("shift_right", torch_name="bitwise_right_shift", takes=BITS),
)
"""Of two operands, the second one a number that the instruction itself holds."""


def _reduction(name: str, function: Callable[..., torch.Tensor], takes: str = ANY) -> Primitive:
    along_rows = partial(function, dim=-1, keepdim=True)
    return Primitive(name, 1, along_rows, along_rows, "reduce", takes=takes)


def _sum(x: torch.Tensor, *, out: torch.Tensor | None = None, dim: int, keepdim: bool) -> torch.Tensor:
    return torch.sum(x, dim, keepdim, dtype=x.dtype, out=out)


def _prod(x: torch.Tensor, *, out: torch.Tensor | None = None, dim: int, keepdim: bool) -> torch.Tensor:
    return torch.prod(x, dim, keepdim, dtype=x.dtype, out=out)


REDUCTIONS: dict[str, Primitive] = _table(
    _reduction("sum", _sum, NUMBERS),
    _reduction("prod", _prod, NUMBERS),
    _reduction("max", torch.amax),
    _reduction("min", torch.amin),
    _reduction("any", torch.any, TRUTH),
    _reduction("all", torch.all, TRUTH),
)
"""Over the last dimension, which stays with size 1."""

ARG_REDUCTIONS: dict[str, Primitive] = _table(
    _reduction("argmax", torch.argmax, NUMBERS),
    _reduction("argmin", torch.argmin, NUMBERS),
)
"""The index (int64) of the first extreme over the last dimension, which stays with size 1."""
