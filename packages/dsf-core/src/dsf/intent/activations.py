"""Activations and their gradients as expressions: one row per operator, computed wide and rounded once, as torch does.

A row gets the arithmetic of its dtype, the operation's tensors as expressions, and its numbers by name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf, pi, sqrt
from typing import Any

import torch

from dsf.intent.expression import Expr, const
from dsf.intent.graph import Node
from dsf.intent.pointwise import Operands, Row, promoted
from dsf.intent.tape import Region

__all__ = ["ACTIVATIONS"]


class _Arithmetic:
    """Primitives of one dtype: `m.add(a, 2.0)`. A Python number is a constant."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __getattr__(self, primitive: str) -> Callable[..., Expr]:
        return partial(self._apply, primitive)

    def _apply(self, primitive: str, *operands: Any) -> Expr:
        dtype = torch.bool if primitive in ("gt", "lt", "le", "ge", "eq", "ne", "and", "or", "not") else self.dtype
        return primitive, dtype, *map(self._operand, operands)

    def _operand(self, value: Any) -> Expr:
        return value if isinstance(value, tuple) else const(self.dtype, value)

    def if_(self, condition: Expr, yes: Any, no: Any) -> Expr:
        return self._apply("where", condition, yes, no)

    def clamp(self, x: Expr, low: float, high: float) -> Expr:
        return self.min(self.max(x, low), high)


def _activation(formula: Callable[..., Expr], tensors: int = 1, **numbers: Any) -> Row:
    """A row for (tensors..., numbers...); *numbers* are the names and defaults of what follows the tensors."""

    def row(x: Operands, node: Node) -> Expr | None:
        regions = node.args[:tensors]
        if not all(isinstance(r, Region) for r in regions):
            return None
        dtype = promoted(*regions)
        if not dtype.is_floating_point:
            return None
        wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
        given = {name: node.arg(tensors + i, name, value) for i, (name, value) in enumerate(numbers.items())}
        if any(isinstance(value, Region) for value in given.values()):
            return None
        expr = formula(_Arithmetic(wide), *(x.cast(x.leaf(r), wide) for r in regions), **given)
        return x.cast(expr, dtype)

    return row


M = _Arithmetic
E = Expr


def _softplus(m: M, x: E, beta: float = 1, threshold: float = 20) -> E:
    return m.if_(m.gt(m.mul(x, beta), threshold), x, m.div(m.log1p(m.exp(m.mul(x, beta))), beta))


def _mish(m: M, x: E) -> E:
    return m.mul(x, m.tanh(m.if_(m.gt(x, 20), x, m.log1p(m.exp(x)))))


def _hardsigmoid(m: M, x: E) -> E:
    return m.div(m.clamp(m.add(x, 3), 0, 6), 6)


def _hardswish(m: M, x: E) -> E:
    return m.div(m.mul(x, m.clamp(m.add(x, 3), 0, 6)), 6)


def _elu(m: M, x: E, alpha: float, scale: float, input_scale: float) -> E:
    negative = m.mul(m.expm1(m.mul(x, input_scale)), alpha * scale)
    return m.if_(m.gt(x, 0), m.mul(x, scale), negative)


def _leaky_relu(m: M, x: E, negative_slope: float) -> E:
    return m.if_(m.gt(x, 0), x, m.mul(x, negative_slope))


def _threshold(m: M, x: E, threshold: float, value: float) -> E:
    return m.if_(m.le(x, threshold), value, x)


def _log_sigmoid(m: M, x: E) -> E:
    return m.sub(m.min(x, 0), m.log1p(m.exp(m.neg(m.abs(x)))))


def _hardshrink(m: M, x: E, lambd: float) -> E:
    return m.if_(m.le(m.abs(x), lambd), 0, x)


def _softshrink(m: M, x: E, lambd: float) -> E:
    return m.if_(m.gt(x, lambd), m.sub(x, lambd), m.if_(m.lt(x, -lambd), m.add(x, lambd), m.mul(x, 0)))


def _prelu(m: M, x: E, weight: E) -> E:
    return m.if_(m.gt(x, 0), x, m.mul(weight, x))


def _lerp(m: M, start: E, end: E, weight: float) -> E:
    """Torch goes from the nearer end, so that weight 1 gives the end itself."""
    way = m.sub(end, start)
    if abs(weight) < 0.5:
        return m.add(start, m.mul(way, weight))
    return m.sub(end, m.mul(way, 1 - weight))


def _lerp_tensor(m: M, start: E, end: E, weight: E) -> E:
    way = m.sub(end, start)
    near, far = m.add(start, m.mul(weight, way)), m.sub(end, m.mul(way, m.sub(1, weight)))
    return m.if_(m.lt(m.abs(weight), 0.5), near, far)


def _nan_to_num(x: Operands, node: Node) -> Expr | None:
    dtype = node.args[0].dtype
    if not dtype.is_floating_point:
        return x.leaf(node.args[0])
    limits, m = torch.finfo(dtype), _Arithmetic(dtype)
    nan, high, low = node.arg(1, "nan"), node.arg(2, "posinf"), node.arg(3, "neginf")
    value = x.leaf(node.args[0])
    expr = m.if_(m.eq(value, -inf), limits.min if low is None else low, value)
    expr = m.if_(m.eq(value, inf), limits.max if high is None else high, expr)
    return m.if_(m.ne(value, value), 0 if nan is None else nan, expr)


# Gradients


def _silu_backward(m: M, grad: E, x: E) -> E:
    s = m.sigmoid(x)
    return m.mul(grad, m.mul(s, m.add(m.mul(x, m.sub(1, s)), 1)))


def _gelu_backward(m: M, grad: E, x: E, approximate: str) -> E:
    if approximate == "tanh":
        square = m.mul(x, x)
        inner = m.tanh(m.mul(m.add(x, m.mul(m.mul(square, x), 0.044715)), sqrt(2 / pi)))
        slope = m.mul(m.add(m.mul(square, 3 * 0.044715), 1), sqrt(2 / pi))
        left = m.mul(m.add(inner, 1), 0.5)
        right = m.mul(m.mul(m.mul(x, 0.5), m.sub(1, m.mul(inner, inner))), slope)
        return m.mul(grad, m.add(left, right))
    chance = m.mul(m.add(m.erf(m.mul(x, sqrt(0.5))), 1), 0.5)
    density = m.mul(m.exp(m.mul(m.mul(x, x), -0.5)), 1 / sqrt(2 * pi))
    return m.mul(grad, m.add(chance, m.mul(x, density)))


def _sigmoid_backward(m: M, grad: E, y: E) -> E:
    return m.mul(grad, m.mul(m.sub(1, y), y))


def _tanh_backward(m: M, grad: E, y: E) -> E:
    return m.mul(grad, m.sub(1, m.mul(y, y)))


def _threshold_backward(m: M, grad: E, x: E, threshold: float) -> E:
    return m.if_(m.le(x, threshold), 0, grad)


def _hardtanh_backward(m: M, grad: E, x: E, min_val: float, max_val: float) -> E:
    return m.if_(m.le(x, min_val), 0, m.if_(m.ge(x, max_val), 0, grad))


def _leaky_relu_backward(m: M, grad: E, x: E, negative_slope: float, self_is_result: bool) -> E:
    return m.if_(m.gt(x, 0), grad, m.mul(grad, negative_slope))


def _hardswish_backward(m: M, grad: E, x: E) -> E:
    inside = m.mul(grad, m.add(m.div(x, 3), 0.5))
    return m.if_(m.lt(x, -3), 0, m.if_(m.le(x, 3), inside, grad))


def _softplus_backward(m: M, grad: E, x: E, beta: float, threshold: float) -> E:
    z = m.exp(m.mul(x, beta))
    return m.if_(m.gt(m.mul(x, beta), threshold), grad, m.div(m.mul(grad, z), m.add(z, 1)))


def _dropout_backward(x: Operands, node: Node) -> Expr | None:
    grad, mask, scale = node.args[:3]
    if not grad.dtype.is_floating_point:
        return None
    m = _Arithmetic(grad.dtype)
    kept = m.mul(x.leaf(grad), x(mask, grad.dtype))
    return m.mul(kept, scale)


ACTIVATIONS: dict[str, Row] = {
    "softplus.default": _activation(_softplus, beta=1, threshold=20),
    "mish.default": _activation(_mish),
    "hardtanh.default": _activation(lambda m, x, min_val, max_val: m.clamp(x, min_val, max_val), min_val=-1, max_val=1),
    "hardsigmoid.default": _activation(_hardsigmoid), "hardswish.default": _activation(_hardswish),
    "elu.default": _activation(_elu, alpha=1, scale=1, input_scale=1),
    "celu.default": _activation(lambda m, x, alpha: _elu(m, x, alpha, 1, 1 / alpha), alpha=1.0),
    "leaky_relu.default": _activation(_leaky_relu, negative_slope=0.01),
    "threshold.default": _activation(_threshold, threshold=0, value=0),
    "log_sigmoid_forward.default": _activation(_log_sigmoid),
    "hardshrink.default": _activation(_hardshrink, lambd=0.5),
    "softshrink.default": _activation(_softshrink, lambd=0.5),
    "_prelu_kernel.default": _activation(_prelu, 2),
    "lerp.Scalar": _activation(_lerp, 2, weight=0.0), "lerp.Tensor": _activation(_lerp_tensor, 3),
    "nan_to_num.default": _nan_to_num,
    "silu_backward.default": _activation(_silu_backward, 2),
    "gelu_backward.default": _activation(_gelu_backward, 2, approximate="none"),
    "sigmoid_backward.default": _activation(_sigmoid_backward, 2),
    "tanh_backward.default": _activation(_tanh_backward, 2),
    "threshold_backward.default": _activation(_threshold_backward, 2, threshold=0),
    "hardtanh_backward.default": _activation(_hardtanh_backward, 2, min_val=-1, max_val=1),
    "leaky_relu_backward.default": _activation(_leaky_relu_backward, 2, negative_slope=0.01, self_is_result=False),
    "hardswish_backward.default": _activation(_hardswish_backward, 2),
    "softplus_backward.default": _activation(_softplus_backward, 2, beta=1, threshold=20),
    "native_dropout_backward.default": _dropout_backward,
}  # fmt: skip
