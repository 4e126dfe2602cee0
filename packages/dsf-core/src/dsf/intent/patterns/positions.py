"""Rows of rotary positions [Su 2021, arXiv 2104.09864], as the libraries write them."""

from __future__ import annotations

import torch

from dsf.intent.graph import Node
from dsf.intent.ir import Intent
from dsf.intent.operators import build
from dsf.intent.patterns.match import Match, cast_source, require
from dsf.intent.tape import Region
from dsf.intent.views import expand, narrow, same, unsqueeze, view

__all__ = ["rotary", "rotary_by_halves", "rotary_wide"]


def every_other(region: Region, start: int) -> Region:
    """Elements start, start + 2, ... of the last dimension."""
    *lead, last = region.shape
    stride = (*region.stride[:-1], 2 * region.stride[-1])
    return view(region, (*lead, last // 2), stride, region.offset + start * region.stride[-1])


def rotary(m: Match) -> Intent:
    """x * cos + rotate(x) * sin: halves [Llama apply_rotary_pos_emb] or neighbours [GPT-J apply_rotary_pos_emb]."""
    x, cos, sin, style = _rotation(m, m.anchor)
    require(x.dtype == cos.dtype == sin.dtype == m.anchor.out.dtype)
    return build("rotary", m.anchor, (x, cos, sin), style=style)


def rotary_wide(m: Match) -> Intent:
    """The same in float32, rounded once: x widened by a cast [Qwen2-VL apply_rotary_pos_emb_vision], or by the product
    with a wide cosine [OLMo apply_rotary_pos_emb]."""
    total = m.made_by(cast_source(m.anchor), "add.Tensor")
    x, cos, sin, style = _rotation(m, total)
    compute = total.out.dtype
    require(cos.dtype == sin.dtype == compute)
    if x.dtype == compute:
        x = cast_source(m.made_by(x, "_to_copy.default"))
    require(x.dtype == m.anchor.out.dtype and torch.promote_types(x.dtype, compute) == compute != x.dtype)
    return build("rotary", m.anchor, (x, cos, sin), style=style, compute=compute)


def _rotation(m: Match, total: Node) -> tuple[Region, Region, Region, str]:
    """x, cos, sin and style of an addition; all of x's shape."""
    plain, turned = m.operands(total, "mul.Tensor")
    rotated, sin = m.operands(m.made_by(turned, "mul.Tensor"), "cat.default", "stack.default")
    x, cos = m.operands(m.made_by(plain, "mul.Tensor"))
    joined = m.made_as(rotated, "cat.default", "stack.default")
    require(len(joined.args[0]) == 2 and x.shape == rotated.shape == total.out.shape and x.shape[-1] % 2 == 0)
    negative, first = joined.args[0]
    if joined.name == "stack.default":
        negative, first = unsqueeze(negative, -1), unsqueeze(first, -1)
        require(joined.arg(1, "dim", 0) in (-1, len(x.shape)))
    else:
        require(joined.arg(1, "dim", 0) in (-1, len(first.shape) - 1))
    second = _negated(m, negative)
    half = x.shape[-1] // 2
    if len(first.shape) == len(x.shape):
        require(same(first, narrow(x, -1, 0, half)) and same(second, narrow(x, -1, half, half)))
        style = "half"
    else:
        require(same(first, unsqueeze(every_other(x, 0), -1)) and same(second, every_other(x, 1)))
        style = "interleaved"
    return x, expand(cos, x.shape), expand(sin, x.shape), style


def _negated(m: Match, region: Region) -> Region:
    """What *region* is the negative of; a trailing dimension of 1 that stacking gave it is dropped."""
    node = m.made_as(region, "neg.default")
    source: Region = node.args[0]
    require(region.numel == source.numel and region.shape[: len(source.shape)] == source.shape)
    return source


def rotary_by_halves(m: Match) -> Intent:
    """cat(x1 * cos - x2 * sin, x2 * cos + x1 * sin), cos and sin of half the size: x1, x2 are the halves of x
    [gpt-oss _apply_rotary_emb] or its neighbours [DeepSeek-V3 apply_rotary_pos_emb_interleave]."""
    out = m.anchor.out
    require(len(m.anchor.args[0]) == 2 and m.anchor.arg(1, "dim", 0) in (-1, len(out.shape) - 1))
    first, second = m.anchor.args[0]
    x1, x2, cos, sin = _difference(m, first)
    left, right = m.operands(m.made_by(second, "add.Tensor"))
    _product(m, left, x2, cos)
    _product(m, right, x1, sin)
    half = x1.shape[-1]
    require(x1.shape == x2.shape == first.shape and x1.buffer == x2.buffer and x1.stride == x2.stride)
    require(x1.dtype == cos.dtype == sin.dtype == out.dtype)
    step = x1.stride[-1]
    shape = (*x1.shape[:-1], 2 * half)
    if x2.offset - x1.offset == half * step:
        x, style = view(x1, shape, x1.stride), "half"
    else:
        require(step % 2 == 0 and x2.offset - x1.offset == step // 2)
        x, style = view(x1, shape, (*x1.stride[:-1], step // 2)), "gathered"
    return build("rotary", m.anchor, (x, expand(cos, x1.shape), expand(sin, x1.shape)), style=style)


def _difference(m: Match, region: Region) -> tuple[Region, Region, Region, Region]:
    """a, b, cos, sin of a * cos - b * sin."""
    node = m.made_by(region, "sub.Tensor")
    require(node.arg(2, "alpha", 1) == 1 and all(isinstance(a, Region) for a in node.args[:2]))
    a, cos = m.operands(m.made_by(node.args[0], "mul.Tensor"))
    b, sin = m.operands(m.made_by(node.args[1], "mul.Tensor"))
    return a, b, cos, sin


def _product(m: Match, region: Region, a: Region, b: Region) -> None:
    """*region* is a * b."""
    node = m.made_by(region, "mul.Tensor")
    require({node.args[0], node.args[1]} == {a, b})
