"""Norms as T5, Gemma, OLMo 2 and Llama 4 write them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

f32, f16, bf16 = torch.float32, torch.float16, torch.bfloat16


def x(*shape: int, dtype: torch.dtype = f32) -> Tensor:
    return torch.randn(shape).to(dtype)


def t5(a: Tensor, weight: Tensor) -> Tensor:
    """transformers T5LayerNorm: the variance is wide, the factor is widened by the product."""
    variance = a.to(f32).pow(2).mean(-1, keepdim=True)
    a = a * torch.rsqrt(variance + 1e-6)
    return weight * (a.to(weight.dtype) if weight.dtype in (f16, bf16) else a)


def gemma(a: Tensor, weight: Tensor) -> Tensor:
    """transformers GemmaRMSNorm: the weight is one more, in float32."""
    wide = a.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * (1.0 + weight.float())).type_as(a)


def olmo2(a: Tensor, weight: Tensor) -> Tensor:
    """transformers Olmo2RMSNorm: the weight comes before the cast."""
    wide = a.to(f32)
    return (weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6))).to(a.dtype)


def unweighted(a: Tensor, weight: Tensor) -> Tensor:
    """transformers Llama4TextL2Norm."""
    wide = a.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(a)


@pytest.mark.parametrize("dtype", [f32, f16, bf16])
@pytest.mark.parametrize(
    ("function", "after", "has_weight"),
    [(t5, True, True), (gemma, False, True), (olmo2, False, True), (unweighted, False, False)],
)
def test_every_family_writes_one_norm(record, dtype, function, after, has_weight):
    recording = record(function, x(2, 3, 8, dtype=dtype), x(8, dtype=dtype))
    intent = recording.only("rms_norm")
    assert intent.attr("has_weight") is has_weight
    if dtype != f32:  # in float32 there is no cast that the weight could be before or after
        assert intent.attr("weight_after_cast") is after
    assert set(recording.kinds()) <= {"rms_norm", "elementwise"}
    assert len(recording.kinds()) == (2 if function is gemma else 1)
    recording.assert_same()


@pytest.mark.parametrize(
    "near",
    [
        pytest.param(lambda a, w: w * (a * torch.rsqrt((a * 2).to(f32).pow(2).mean(-1, keepdim=True) + 1e-6)).half(),
                     id="the variance of another tensor"),
        pytest.param(lambda a, w: w * (a * torch.rsqrt(a.pow(2).to(f32).mean(-1, keepdim=True) + 1e-6)).half(),
                     id="a square in 16 bits"),
    ],
)  # fmt: skip
def test_what_only_looks_like_a_wide_variance_is_left_in_pieces(record, near):
    recording = record(near, x(3, 8, dtype=f16), x(8, dtype=f16))
    assert "rms_norm" not in recording.kinds()
    recording.assert_same()
