"""Operator rows of what multiplies and adds up: products, attention, convolutions, experts, whole numbers."""

from __future__ import annotations

from typing import Any

import torch

from dsf.intent.graph import Graph, Node
from dsf.intent.ir import Intent
from dsf.intent.operators.rows import Row, build, named, one_dtype
from dsf.intent.tape import Region
from dsf.intent.views import broadcast_shapes, expand, is_contiguous, transposed, unsqueeze, view

__all__ = ["ROWS", "attention", "attention_operands", "stored"]


def _linear(graph: Graph, node: Node) -> Intent | None:
    x, weight = node.args[:2]
    bias = node.arg(2, "bias")
    if len(weight.shape) != 2 or not one_dtype(x, weight, bias):
        return None
    inputs = (x, weight, bias) if bias else (x, weight)
    return build("linear", node, inputs, has_bias=bias is not None, transposed=True)


def _mm(graph: Graph, node: Node) -> Intent | None:
    return _contract(node, node.args[0], node.args[1], None)


def _addmm(graph: Graph, node: Node) -> Intent | None:
    bias, a, b = node.args[:3]
    width, beta = b.shape[1], node.arg(3, "beta", 1)
    if node.arg(4, "alpha", 1) != 1 or beta not in (0, 1):
        return None
    if beta == 0:
        return _contract(node, a, b, None)
    if bias.shape not in ((width,), (1, width)) or bias.dtype != a.dtype:
        return None
    return _contract(node, a, b, view(bias, bias.shape[-1:], bias.stride[-1:]))


def _baddbmm(graph: Graph, node: Node) -> Intent | None:
    """Only the product; with an addend it is attention's (see patterns) or nobody's, since it is rounded once."""
    if node.arg(3, "beta", 1) != 0 or node.arg(4, "alpha", 1) != 1:
        return None
    return _contract(node, node.args[1], node.args[2], None)


def stored(w: Region) -> tuple[Region, bool]:
    """A matrix [..., K, N] for the attribute `transposed`: as it lies, and whether that is [..., N, K]."""
    if w.stride[-2] == 1 and not is_contiguous(w):
        return transposed(w), True
    return w, False


def _contract(node: Node, a: Region, b: Region, bias: Region | None) -> Intent | None:
    """a @ b by the rules of torch.matmul; a matrix on the right makes it a linear."""
    out = node.out
    if not one_dtype(a, b, out) or not a.shape or not b.shape:
        return None
    if len(b.shape) == 1:
        b, out = unsqueeze(b, 1), unsqueeze(out, -1)
    if len(b.shape) == 2:
        weight, is_transposed = stored(b)
        inputs = (a, weight, *([bias] if bias else []))
        return build("linear", node, inputs, out, has_bias=bias is not None, transposed=is_transposed)
    if len(a.shape) == 1:
        a, out = unsqueeze(a, 0), unsqueeze(out, -2)
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return build("matmul", node, (expand(a, batch + a.shape[-2:]), expand(b, batch + b.shape[-2:])), out)


def _int_mm(graph: Graph, node: Node) -> Intent | None:
    a, b = node.args[:2]
    if a.dtype != torch.int8 or b.dtype != torch.int8:
        return None
    weight, is_transposed = stored(b)
    return build("linear", node, (a, weight), has_bias=False, transposed=is_transposed)


def _grouped_mm(graph: Graph, node: Node) -> Intent | None:
    x, w, ends = node.args[0], node.args[1], node.arg(2, "offs")
    if node.arg(3, "bias") is not None or not one_dtype(x, w, node.out):
        return None
    if ends is None:
        return _contract(node, x, w, None) if len(x.shape) == len(w.shape) == 3 else None
    if len(x.shape) != 2 or len(w.shape) != 3:
        return None
    weight, is_transposed = stored(w)
    return build("grouped_linear", node, (x, weight, ends), transposed=is_transposed)


def _int8_pack(graph: Graph, node: Node) -> Intent | None:
    """x @ w^T * scale, where the order of the two products makes no difference: not in 16 bits, whose weights this
    operator never rounds."""
    x, w, scale = node.args[:3]
    if x.dtype != torch.float32 or w.dtype != torch.int8 or not one_dtype(x, scale):
        return None
    return build("quant_linear", node, (x, w, unsqueeze(scale, 1)), bits=8, group=w.shape[1], has_bias=False,
                 has_zero=False)  # fmt: skip


# Attention


def attention_operands(node: Node) -> tuple[Region, Region, Region, Region | None] | None:
    """q, k, v and mask of an sdpa operation in four dimensions; None where it is not plain attention."""
    q, k, v, mask = *node.args[:3], node.arg(3, "attn_mask")
    if node.arg(4, "dropout_p", 0.0) or not one_dtype(q, k, v) or len({len(r.shape) for r in (q, k, v)}) != 1:
        return None
    lead = 4 - len(q.shape)
    if lead not in (0, 1) or k.shape[:-1] != v.shape[:-1] or q.shape[: 1 - lead] != k.shape[: 1 - lead]:
        return None
    q, k, v = (unsqueeze(r, 0) if lead else r for r in (q, k, v))
    if q.shape[1] % k.shape[1] or (q.shape[1] != k.shape[1] and not node.arg(7, "enable_gqa", False)):
        return None
    return q, k, v, None if mask is None else expand(mask, (*q.shape[:3], k.shape[2]))


def attention(node: Node, q: Region, k: Region, v: Region, mask: Region | None) -> Intent:
    """The intent of an sdpa operation on these operands."""
    out = node.out if len(node.out.shape) == 4 else unsqueeze(node.out, 0)
    scale = node.arg(6, "scale")
    return build(
        "attention", node, (q, k, v) if mask is None else (q, k, v, mask), out,
        causal=bool(node.arg(5, "is_causal", False)), groups=q.shape[1] // k.shape[1], has_mask=mask is not None,
        scale=float(q.shape[-1] ** -0.5 if scale is None else scale),
    )  # fmt: skip


def _sdpa(graph: Graph, node: Node) -> Intent | None:
    operands = attention_operands(node)
    return attention(node, *operands) if operands else None


# Convolution


def _convolution(graph: Graph, node: Node) -> Intent | None:
    x, w, bias = node.args[:3]
    stride, padding, dilation, is_transposed, output_padding, groups = node.args[3:9]
    rank = len(w.shape) - 2
    if rank not in (1, 2, 3) or len(x.shape) != rank + 2 or not one_dtype(x, w, bias) or not x.dtype.is_floating_point:
        return None
    more: dict[str, Any] = {"output_padding": _each(output_padding, rank), "transposed": True} if is_transposed else {}
    return build(
        "convolution", node, (x, w) if bias is None else (x, w, bias), dilation=_each(dilation, rank), groups=groups,
        has_bias=bias is not None, padding=_each(padding, rank), stride=_each(stride, rank), **more,
    )  # fmt: skip


def _each(sizes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """One size per dimension, where torch allows one for all."""
    return tuple(sizes) * rank if len(sizes) == 1 else tuple(sizes)


ROWS: dict[str, Row] = {
    "linear.default": _linear, "addmm.default": _addmm, "baddbmm.default": _baddbmm,
    **named("mm.default bmm.default matmul.default mv.default dot.default", _mm),
    "_int_mm.default": _int_mm, "_grouped_mm.default": _grouped_mm, "_weight_int8pack_mm.default": _int8_pack,
    "scaled_dot_product_attention.default": _sdpa,
    **named("convolution.default convolution_overrideable.default _convolution.default", _convolution),
}  # fmt: skip
