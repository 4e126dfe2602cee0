"""What each pointwise ATen operator computes, as an expression. One row per operator."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, reduce
from math import inf
from typing import Any

import torch

from dsf.intent.expression import Expr, cast, const
from dsf.intent.graph import Node
from dsf.intent.tape import Region
from dsf.intent.views import expand, narrow, reshape, view

__all__ = ["POINTWISE", "Operands", "Row", "promoted"]


@lru_cache(maxsize=4096)
def _promote(a: tuple[Any, bool], b: tuple[Any, bool]) -> torch.dtype:
    def sample(kind: Any, scalar: bool) -> Any:
        if isinstance(kind, torch.dtype):
            return torch.empty(() if scalar else (1,), dtype=kind, device="meta")
        return kind()

    return torch.result_type(sample(*a), sample(*b))


def promoted(*values: Region | bool | int | float) -> torch.dtype:
    """The dtype torch computes in for these operands; one without dimensions, or a number, only lifts the category."""
    regions = [v for v in values if isinstance(v, Region)]
    if len({r.dtype for r in regions}) == 1 and len(regions) == len(values):
        return regions[0].dtype
    kinds = [(v.dtype, not v.shape) if isinstance(v, Region) else (type(v), True) for v in values]
    tensors = sorted(kinds, key=lambda kind: (not isinstance(kind[0], torch.dtype), kind[1]))
    if len(tensors) == 1:
        return regions[0].dtype
    result: Any
    result, scalar = tensors[0]
    for kind in tensors[1:]:
        result, scalar = _promote((result, scalar), kind), scalar and kind[1]
    dtype: torch.dtype = result
    return dtype


class Operands:
    """The arguments of one pointwise operation as leaves of an expression; collects the distinct inputs."""

    def __init__(self, node: Node, shape: tuple[int, ...]) -> None:
        self.node, self.shape = node, shape
        self.inputs: list[Region] = []

    @property
    def dtypes(self) -> list[torch.dtype]:
        return [r.dtype for r in self.inputs]

    def leaf(self, region: Region) -> Expr:
        region = expand(region, self.shape)
        if region not in self.inputs:
            self.inputs.append(region)
        return "in", self.inputs.index(region)

    def __call__(self, value: Any, dtype: torch.dtype) -> Expr:
        """An argument (region or number) as an operand of *dtype*."""
        return self.cast(self.leaf(value), dtype) if isinstance(value, Region) else const(dtype, value)

    def cast(self, expr: Expr, dtype: torch.dtype) -> Expr:
        return cast(expr, dtype, self.dtypes)


Row = Callable[[Operands, Node], "Expr | None"]


def _floating(node: Node, *values: Any) -> torch.dtype:
    dtype = promoted(*values)
    return dtype if dtype.is_floating_point else node.out.dtype if node.out.dtype.is_floating_point else torch.float32


def _unary(primitive: str, *, floating: bool = True) -> Row:
    def row(x: Operands, node: Node) -> Expr | None:
        dtype = _floating(node, node.args[0]) if floating else node.args[0].dtype
        return primitive, dtype, x(node.args[0], dtype)

    return row


def _binary(primitive: str) -> Row:
    def row(x: Operands, node: Node) -> Expr | None:
        dtype = promoted(*node.args[:2])
        return primitive, dtype, x(node.args[0], dtype), x(node.args[1], dtype)

    return row


def _compare(primitive: str) -> Row:
    def row(x: Operands, node: Node) -> Expr | None:
        dtype = promoted(*node.args[:2])
        return primitive, torch.bool, x(node.args[0], dtype), x(node.args[1], dtype)

    return row


def _truth(x: Operands, value: Any) -> Expr:
    if not isinstance(value, Region) or value.dtype == torch.bool:
        return x(value, torch.bool)
    return "ne", torch.bool, x(value, value.dtype), const(value.dtype, 0)


def _logical(primitive: str) -> Row:
    def row(x: Operands, node: Node) -> Expr | None:
        return primitive, torch.bool, *(_truth(x, a) for a in node.args[: 1 if primitive == "not" else 2])

    return row


def _scaled(x: Operands, primitive: str, left: Any, right: Any, alpha: Any, dtype: torch.dtype) -> Expr:
    """left (op) alpha * right, rounded once at the end as torch does for 16-bit floats."""
    if alpha == 1:
        return primitive, dtype, x(left, dtype), x(right, dtype)
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    product = "mul", wide, x.cast(x(right, dtype), wide), const(wide, alpha)
    return x.cast((primitive, wide, x.cast(x(left, dtype), wide), product), dtype)


def _add(primitive: str, *, reverse: bool = False) -> Row:
    def row(x: Operands, node: Node) -> Expr | None:
        left, right = node.args[:2]
        dtype, alpha = promoted(left, right), node.arg(2, "alpha", 1)
        if primitive == "add" and dtype == torch.bool:
            return "or", dtype, x(left, dtype), x(right, dtype)
        return _scaled(x, primitive, *((right, left) if reverse else (left, right)), alpha, dtype)

    return row


def _mul(x: Operands, node: Node) -> Expr | None:
    dtype = promoted(*node.args[:2])
    return "and" if dtype == torch.bool else "mul", dtype, x(node.args[0], dtype), x(node.args[1], dtype)


def _div(x: Operands, node: Node) -> Expr | None:
    left, right = node.args[:2]
    mode = node.arg(2, "rounding_mode")
    if mode is None:
        dtype = _floating(node, left, right)
        return "div", dtype, x(left, dtype), x(right, dtype)
    dtype = promoted(left, right)
    return f"{mode}_div", dtype, x(left, dtype), x(right, dtype)


def _floor_divide(x: Operands, node: Node) -> Expr | None:
    dtype = promoted(*node.args[:2])
    return "floor_div", dtype, x(node.args[0], dtype), x(node.args[1], dtype)


def _pow(x: Operands, node: Node) -> Expr | None:
    base, exponent = node.args[:2]
    dtype = promoted(base, exponent)
    if not isinstance(exponent, Region) and isinstance(base, Region):
        operand = x(base, dtype)
        if exponent == 2:
            return "mul", dtype, operand, operand
        if exponent == 1:
            return operand
        if exponent == 0.5:
            return "sqrt", dtype, operand
    return "pow", dtype, x(base, dtype), x(exponent, dtype)


def _gelu(x: Operands, node: Node) -> Expr | None:
    dtype = node.args[0].dtype
    return "gelu_tanh" if node.arg(1, "approximate", "none") == "tanh" else "gelu", dtype, x(node.args[0], dtype)


def _relu(x: Operands, node: Node) -> Expr | None:
    dtype = node.args[0].dtype
    return "max", dtype, x(node.args[0], dtype), const(dtype, 0)


def _clamp(x: Operands, node: Node) -> Expr | None:
    value, low, high = node.args[0], node.arg(1, "min"), node.arg(2, "max")
    dtype = promoted(*(v for v in (value, low, high) if v is not None))
    expr = x(value, dtype)
    for primitive, bound in (("max", low), ("min", high)):
        if bound is not None:
            expr = primitive, dtype, expr, x(bound, dtype)
    return expr


def _where(x: Operands, node: Node) -> Expr | None:
    condition, left, right = node.args[:3]
    dtype = promoted(left, right)
    return "where", dtype, _truth(x, condition), x(left, dtype), x(right, dtype)


def _masked_fill(x: Operands, node: Node) -> Expr | None:
    value, mask, filler = node.args[:3]
    dtype = value.dtype
    return "where", dtype, _truth(x, mask), x(filler, dtype), x(value, dtype)


def _isnan(x: Operands, node: Node) -> Expr | None:
    leaf = x(node.args[0], node.args[0].dtype)
    return "ne", torch.bool, leaf, leaf


def _isinf(x: Operands, node: Node) -> Expr | None:
    dtype = node.args[0].dtype
    if not dtype.is_floating_point:
        return const(torch.bool, False)
    return "eq", torch.bool, ("abs", dtype, x(node.args[0], dtype)), const(dtype, inf)


def _convert(x: Operands, node: Node) -> Expr | None:
    """A cast; between equal dtypes it is a copy, which is not an expression's business."""
    source = node.args[0] if node.name != "copy.default" else node.args[1]
    return x.leaf(source)


def _addcmul(primitive: str) -> Row:
    def row(x: Operands, node: Node) -> Expr | None:
        base, left, right = node.args[:3]
        dtype, value = promoted(base, left, right), node.arg(3, "value", 1)
        if not dtype.is_floating_point:
            return None
        wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
        a, b, c = (x.cast(x(v, dtype), wide) for v in (base, left, right))
        scaled = b if value == 1 else ("mul", wide, const(wide, value), b)
        return x.cast(("add", wide, a, (primitive, wide, scaled, c)), dtype)

    return row


MAX_MEMBERS = 32  # of the set an isin compares with; a larger one is a search, not a chain of comparisons


def _isin(x: Operands, node: Node) -> Expr | None:
    elements, members = node.args[:2]
    if isinstance(members, Region):
        flat = members if len(members.shape) == 1 else reshape(members, (members.numel,))
        if flat is None or not 0 < flat.numel <= MAX_MEMBERS:
            return None
        candidates: list[Any] = [view(narrow(flat, 0, i, 1), (), ()) for i in range(flat.numel)]
    else:
        candidates = [members]
    dtype = promoted(elements, members) if isinstance(elements, Region) else members.dtype
    tests = [("eq", torch.bool, x(elements, dtype), x(member, dtype)) for member in candidates]
    found = reduce(lambda a, b: ("or", torch.bool, a, b), tests)
    return ("not", torch.bool, found) if node.arg(3, "invert", False) else found


def _rows(names: str, row: Row) -> dict[str, Row]:
    return dict.fromkeys(names.split(), row)


_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def _overloads(base: str, row: Row) -> dict[str, Row]:
    return {f"{base}.Tensor": row, f"{base}.Scalar": row}


POINTWISE: dict[str, Row] = {
    **{f"{name}.default": _unary(name) for name in (
        "cos", "erf", "exp", "exp2", "expm1", "log", "log1p", "log2", "reciprocal", "rsqrt", "sigmoid", "sin", "sqrt",
        "tan", "tanh", "silu")},
    **{f"{name}.default": _unary(name, floating=False) for name in (
        "abs", "ceil", "floor", "neg", "round", "sign", "trunc")},
    **_overloads("add", _add("add")), **_overloads("sub", _add("sub")), **_overloads("rsub", _add("sub", reverse=True)),
    **_overloads("mul", _mul), **_overloads("div", _div),
    **_rows("div.Tensor_mode div.Scalar_mode", _div),
    **_rows("floor_divide.default floor_divide.Scalar", _floor_divide),
    **_overloads("remainder", _binary("mod")), "remainder.Scalar_Tensor": _binary("mod"),
    **_overloads("fmod", _binary("fmod")),
    **_rows("pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar", _pow),
    **_rows("minimum.default min.other", _binary("min")), **_rows("maximum.default max.other", _binary("max")),
    **{f"{name}.{kind}": _compare(name) for name in _COMPARISONS for kind in ("Tensor", "Scalar")},
    **{f"logical_{name}.default": _logical(name) for name in ("and", "or", "xor", "not")},
    **{f"bitwise_{name}.{kind}": _binary(name) for name in ("and", "or", "xor") for kind in ("Tensor", "Scalar")},
    "bitwise_not.default": _unary("not", floating=False),
    "gelu.default": _gelu, "relu.default": _relu,
    **_rows("clamp.default clamp.Tensor", _clamp),
    **_rows("clamp_min.default clamp_min.Tensor", _binary("max")),
    **_rows("clamp_max.default clamp_max.Tensor", _binary("min")),
    **_rows("where.self where.ScalarSelf where.ScalarOther where.Scalar", _where),
    **_rows("masked_fill.Scalar masked_fill.Tensor", _masked_fill),
    "isnan.default": _isnan, "isinf.default": _isinf,
    **_rows("isin.Tensor_Tensor isin.Tensor_Scalar isin.Scalar_Tensor", _isin),
    "addcmul.default": _addcmul("mul"), "addcdiv.default": _addcmul("div"),
    **_rows("_to_copy.default copy.default clone.default lift_fresh_copy.default", _convert),
}  # fmt: skip
