"""Rows of norms that models write out."""

from __future__ import annotations

import torch

from dsf.intent.graph import Node
from dsf.intent.ir import Intent
from dsf.intent.operators import build
from dsf.intent.patterns.match import Match, cast_source, require
from dsf.intent.tape import Region
from dsf.intent.views import same, view

__all__ = ["rms_norm", "rms_norm_weight_inside", "rms_norm_without_weight"]


def _vector(region: Region, size: int) -> Region:
    """A weight over the last dimension as a vector: it must not vary along any other."""
    require(region.numel == size and region.shape[-1:] == (size,))
    return view(region, (size,), region.stride[-1:])


def _normalised(m: Match, product: Node) -> tuple[Region, torch.dtype, float]:
    """x * rsqrt(mean(x ** 2, -1, keepdim) + eps) with an optional cast of x: x before it, the dtype inside, eps."""
    inverse, x = m.operands(product, "rsqrt.default")
    shifted = m.made_by(m.made_by(inverse, "rsqrt.default").args[0], "add.Tensor", "add.Scalar")
    total, eps = shifted.args[:2]
    require(isinstance(eps, float) and shifted.arg(2, "alpha", 1) == 1)
    mean = m.made_by(total, "mean.dim")
    require(mean.args[0].shape == x.shape and mean.arg(2, "keepdim", False) and mean.kwargs.get("dtype") is None)
    require(mean.args[1] in ((-1,), (len(x.shape) - 1,)))
    square = m.made_by(mean.args[0], "pow.Tensor_Scalar", "mul.Tensor")
    require(square.args[1] == 2 if square.name.startswith("pow") else square.args[0] == square.args[1])
    wide: Region = square.args[0]
    if same(wide, x):
        return m.through_cast(x), x.dtype, eps
    narrow = cast_source(m.made_by(wide, "_to_copy.default"))  # T5: the factor is x itself, which torch widens
    require(
        same(narrow, x) and product.out.dtype == wide.dtype and torch.promote_types(x.dtype, wide.dtype) == wide.dtype
    )
    return x, wide.dtype, eps


def rms_norm(m: Match) -> Intent:
    """weight * cast(normalised): Llama, Qwen, Mistral, T5 [transformers LlamaRMSNorm, T5LayerNorm]."""
    out = m.anchor.out
    scaled, weight = m.operands(m.anchor, "mul.Tensor", "_to_copy.default")
    require(weight.dtype == scaled.dtype == out.dtype)
    x, compute, eps = _normalised(m, m.made_by(m.through_cast(scaled), "mul.Tensor"))
    require(x.dtype == out.dtype and x.shape == out.shape)
    inputs = x, _vector(weight, x.shape[-1])
    return build("rms_norm", m.anchor, inputs, compute=compute, eps=eps, weight_after_cast=True)


def rms_norm_weight_inside(m: Match) -> Intent:
    """cast(normalised * weight), the weight in the inner dtype: Gemma, OLMo 2 [transformers GemmaRMSNorm]."""
    product = m.made_by(cast_source(m.anchor), "mul.Tensor")
    scaled, weight = m.operands(product, "mul.Tensor")
    x, compute, eps = _normalised(m, m.made_by(scaled, "mul.Tensor"))
    require(x.dtype == m.anchor.out.dtype and x.shape == m.anchor.out.shape)
    inputs = x, _vector(weight, x.shape[-1])
    return build("rms_norm", m.anchor, inputs, compute=compute, eps=eps, weight_after_cast=False)


def rms_norm_without_weight(m: Match) -> Intent:
    """cast(normalised): the norm of heads that have no weight [transformers Llama4TextL2Norm]."""
    out, product = m.anchor.out, m.anchor
    if product.name == "_to_copy.default":
        product = m.made_by(cast_source(product), "mul.Tensor")
    x, compute, eps = _normalised(m, product)
    require(x.dtype == out.dtype and x.shape == out.shape)
    return build("rms_norm", m.anchor, (x,), compute=compute, eps=eps, has_weight=False, weight_after_cast=False)
