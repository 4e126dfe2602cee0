"""The neutral vocabulary: what a vector or scalar engine may be asked to do, whatever its vendor calls it.

A chip's table says which of its instructions serve which primitive (`implements=`); kernels that are written in
primitives run on every chip that serves them. One row per primitive: its arity, its pure meaning on torch tensors, the
rate class of the HDL that prices it, and whether its result is a truth value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from attrs import frozen

__all__ = ["ARG_REDUCTIONS", "POINTWISE", "REDUCTIONS", "Primitive"]


@frozen(eq=False)
class Primitive:
    """*meaning(\\*operands)* is a new tensor; *out(\\*operands, out=)* the same in place, where torch has it."""

    name: str
    arity: int
    meaning: Callable[..., torch.Tensor]
    out: Callable[..., Any] | None
    opclass: str = "default"
    predicate: bool = False


def _table(*rows: Primitive) -> dict[str, Primitive]:
    return {row.name: row for row in rows}


def _binary(name: str, opclass: str = "add", predicate: bool = False, torch_name: str = "") -> Primitive:
    function = getattr(torch, torch_name or name)
    return Primitive(name, 2, function, function, opclass, predicate)


def _unary(name: str, opclass: str, torch_name: str = "") -> Primitive:
    function = getattr(torch, torch_name or name)
    return Primitive(name, 1, function, function, opclass)




def _rounded(mode: str) -> Callable[..., torch.Tensor]:
    return partial(torch.div, rounding_mode=mode)


POINTWISE: dict[str, Primitive] = _table(
    _binary("add"),
    _binary("sub"),
    _binary("mul"),
    _binary("div", "div"),
    Primitive("floor_div", 2, _rounded("floor"), _rounded("floor"), "div"),
    Primitive("trunc_div", 2, _rounded("trunc"), _rounded("trunc"), "div"),
    _binary("mod", "div", torch_name="remainder"),
    _binary("fmod", "div"),
    _binary("max", torch_name="maximum"),
    _binary("min", torch_name="minimum"),
    _binary("pow", "exp"),
    _binary("eq", "select", predicate=True),
    _binary("ne", "select", predicate=True),
    _binary("lt", "select", predicate=True),
    _binary("le", "select", predicate=True),
    _binary("gt", "select", predicate=True),
    _binary("ge", "select", predicate=True),
    _binary("and", torch_name="bitwise_and"),
    _binary("or", torch_name="bitwise_or"),
    _binary("xor", torch_name="bitwise_xor"),
    Primitive("not", 1, torch.bitwise_not, torch.bitwise_not, "add"),
    Primitive("where", 3, torch.where, torch.where, "select"),
    _unary("neg", "add"),
    _unary("abs", "add"),
    _unary("sign", "select"),
    _unary("exp", "exp"),
    _unary("exp2", "exp"),
    _unary("expm1", "exp"),
    _unary("log", "exp"),
    _unary("log2", "exp"),
    _unary("log1p", "exp"),
    _unary("sqrt", "exp"),
    _unary("rsqrt", "rec"),
    _unary("reciprocal", "rec"),
    _unary("sin", "exp"),
    _unary("cos", "exp"),
    _unary("tan", "exp"),
    _unary("tanh", "exp"),
    _unary("erf", "exp"),
    _unary("sigmoid", "exp"),
    _unary("floor", "cast"),
    _unary("ceil", "cast"),
    _unary("round", "cast"),
    _unary("trunc", "cast"),
)


def _reduction(name: str, function: Callable[..., torch.Tensor]) -> Primitive:
    return Primitive(name, 1, function, None, "reduce")


def _sum(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1, keepdim=True, dtype=x.dtype)


def _prod(x: torch.Tensor) -> torch.Tensor:
    return x.prod(-1, keepdim=True, dtype=x.dtype)


REDUCTIONS: dict[str, Primitive] = _table(
    _reduction("sum", _sum),
    _reduction("prod", _prod),
    _reduction("max", lambda x: x.amax(-1, keepdim=True)),
    _reduction("min", lambda x: x.amin(-1, keepdim=True)),
    _reduction("any", lambda x: x.any(-1, keepdim=True)),
    _reduction("all", lambda x: x.all(-1, keepdim=True)),
)
"""Over the last dimension, which stays with size 1."""

ARG_REDUCTIONS: dict[str, Primitive] = _table(
    _reduction("argmax", lambda x: x.argmax(-1, keepdim=True)),
    _reduction("argmin", lambda x: x.argmin(-1, keepdim=True)),
)
"""The index (int64) of the first extreme over the last dimension, which stays with size 1."""
