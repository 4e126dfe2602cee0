"""Rows of quantised weights and activations, as libraries write them in plain torch."""

from __future__ import annotations

import torch

from dsf.intent.ir import Intent
from dsf.intent.operators import build, stored
from dsf.intent.patterns.match import Match, cast_source, require
from dsf.intent.tape import Region
from dsf.intent.views import expand, is_contiguous, reshape, same, transposed, view

__all__ = ["quant_linear", "quantise", "scaled_linear"]

_CAST = "_to_copy.default"
_SHIFTS = ("bitwise_rshift.Scalar", "bitwise_right_shift.Tensor_Scalar")


# Weights only


def quant_linear(m: Match) -> Intent:
    """x @ ((w - zero) * scale)^T: int8 or packed int4 weights, widened to x's dtype right before the product."""
    x, given = m.anchor.args[:2]
    bias = m.anchor.arg(2, "bias") if m.anchor.name == "linear.default" else None
    weight = given if m.anchor.name == "linear.default" else transposed(given)
    require(len(weight.shape) == 2 and x.dtype == weight.dtype and x.dtype.is_floating_point)
    n, k = weight.shape
    product = m.made_as(weight, "mul.Tensor")
    numbers, scale = m.operands(product)
    groups = product.out.shape[1] if len(product.out.shape) == 3 else 1
    require(numbers.shape == product.out.shape in ((n, k), (n, groups, k // groups)))
    inputs = [_per_group(m, scale, n, groups, x.dtype)]
    has_zero = m.maker(numbers) == "sub.Tensor"
    if has_zero:
        shifted = m.made_as(numbers, "sub.Tensor")
        numbers, zero = shifted.args[:2]
        require(shifted.arg(2, "alpha", 1) == 1 and isinstance(zero, Region) and numbers.shape == product.out.shape)
        inputs.append(_per_group(m, zero, n, groups, x.dtype))
    whole = cast_source(m.made_as(numbers, _CAST))
    require(numbers.dtype == x.dtype)
    w, bits = _whole_numbers(m, whole, n, k)
    inputs += [bias] if bias is not None else []
    return build("quant_linear", m.anchor, (x, w, *inputs), bits=bits, group=k // groups,
                 has_bias=bias is not None, has_zero=has_zero)  # fmt: skip


def _per_group(m: Match, region: Region, n: int, groups: int, dtype: torch.dtype) -> Region:
    """A scale or zero [n, (groups,) 1] as [n, groups], in *dtype* or cast to it."""
    if m.maker(region) == _CAST and m.pick((True, False)):
        region = cast_source(m.made_as(region, _CAST))
    else:
        require(region.dtype == dtype)
    require(region.shape == ((n, groups, 1) if groups > 1 or len(region.shape) == 3 else (n, 1)))
    return view(region, (n, groups), (region.stride[0], region.stride[-2] if len(region.shape) == 3 else 0))


def _whole_numbers(m: Match, region: Region, n: int, k: int) -> tuple[Region, int]:
    """The weight [n, k] of int8, or [n, k / 2] of which every byte holds two numbers, the low one first."""
    if region.dtype == torch.int8:
        flat = region if region.shape == (n, k) else reshape(region, (n, k))
        require(flat is not None)
        assert flat is not None
        return flat, 8
    pair = m.made_as(region, "stack.default", "cat.default")
    require(region.dtype == torch.uint8 and len(pair.args[0]) == 2)
    low, high = pair.args[0]
    last = len(pair.out.shape) - 1
    require(pair.out.shape[-1] == 2 and pair.arg(1, "dim", 0) in (-1, last) and is_contiguous(pair.out))
    low, high = m.made_as(low, "bitwise_and.Scalar"), m.made_as(high, *_SHIFTS)
    packed: Region = low.args[0]
    require(low.args[1] == 15 and high.args[1] == 4 and same(packed, high.args[0]))
    flat = packed if packed.shape == (n, k // 2) else reshape(packed, (n, k // 2))
    require(flat is not None)
    assert flat is not None
    return flat, 4


# Weights and activations


def scaled_linear(m: Match) -> Intent:
    """(x @ w in int32) * x_scale * w_scale + bias in float32, then rounded: W8A8."""
    node = m.anchor
    if node.name == _CAST:
        node = m.made_by(cast_source(node), "add.Tensor", "mul.Tensor")
    require(node.out.dtype == torch.float32 and m.anchor.out.dtype.is_floating_point)
    bias: list[Region] = []
    if node.name == "add.Tensor":
        product, addend = m.operands(node)
        bias = [_row(addend, node.out.shape[-1])]
        node = m.made_by(product, "mul.Tensor")
    inner, one = m.operands(node)
    product, other = m.operands(m.made_by(inner, "mul.Tensor"))
    if m.maker(product) == _CAST:
        require(product.dtype == torch.float32)
        product = cast_source(m.made_by(product, _CAST))
    x, w = m.made_by(product, "_int_mm.default").args[:2]
    require(
        x.dtype == w.dtype == torch.int8 and inner.dtype == torch.float32 and one.dtype == other.dtype == inner.dtype
    )
    x_scale, w_scale = m.pick(((one, other), (other, one)))
    require(x_scale.shape == (x.shape[0], 1))
    weight, is_transposed = stored(w)
    return build("scaled_linear", m.anchor, (x, weight, x_scale, _row(w_scale, w.shape[1]), *bias),
                 has_bias=bool(bias), transposed=is_transposed)  # fmt: skip


def _row(region: Region, n: int) -> Region:
    """A vector over the columns: [n] or [1, n]."""
    require(region.shape in ((n,), (1, n)))
    return view(region, (n,), region.stride[-1:])


def quantise(m: Match) -> Intent:
    """clamp(round(x / scale) + zero) in float32, as int8 or uint8."""
    whole = m.anchor.out.dtype
    require(whole in (torch.int8, torch.uint8))
    limits = torch.iinfo(whole)
    node = m.made_by(cast_source(m.anchor), "clamp.default")
    require((node.arg(1, "min"), node.arg(2, "max")) == (limits.min, limits.max) and node.out.dtype == torch.float32)
    zero: list[Region] = []
    rounded: Region = node.args[0]
    if m.maker(rounded) == "add.Tensor":
        rounded, offset = m.operands(m.made_by(rounded, "add.Tensor"))
        zero = [expand(offset, m.anchor.out.shape)]
    ratio = m.made_by(m.made_by(rounded, "round.default").args[0], "div.Tensor")
    x, scale = ratio.args[:2]
    require(isinstance(scale, Region) and len(ratio.args) == 2 and ratio.out.dtype == torch.float32)
    require(x.shape == m.anchor.out.shape and x.dtype.is_floating_point)
    x = m.through_cast(x)
    require(x.dtype.itemsize <= 4 and scale.dtype == torch.float32)
    return build("quantise", m.anchor, (x, expand(scale, x.shape), *zero), has_zero=bool(zero))
