"""A decoder layer of the Llama family, written as transformers 5.24 writes it, in float16."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dsf.intent import flops

HIDDEN, INNER, HEADS, KV_HEADS, WIDTH = 64, 96, 4, 2, 16


def rms_norm(a: Tensor, weight: Tensor) -> Tensor:
    wide = a.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    return weight * wide.to(a.dtype)


def rotary(a: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = WIDTH // 2
    return (a * cos) + (torch.cat((-a[..., half:], a[..., :half]), dim=-1) * sin)


def layer(a: Tensor, keys: Tensor, values: Tensor, cos: Tensor, sin: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    """One layer with a growing cache: its output, and the cache after it."""
    norm1, wq, wk, wv, wo, norm2, gate, up, down = weights
    shape = (*a.shape[:-1], -1, WIDTH)
    normed = rms_norm(a, norm1)
    q, k, v = (F.linear(normed, w).view(shape).transpose(1, 2) for w in (wq, wk, wv))
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    q, k = rotary(q, cos, sin), rotary(k, cos, sin)
    keys, values = torch.cat((keys, k), dim=-2), torch.cat((values, v), dim=-2)
    grouped = F.scaled_dot_product_attention(
        q, keys, values, scale=WIDTH**-0.5, is_causal=a.shape[1] > 1, enable_gqa=True
    )
    rows = grouped.transpose(1, 2).contiguous().reshape(*a.shape[:-1], -1).contiguous()
    a = a + F.linear(rows, wo)
    normed = rms_norm(a, norm2)
    return a + F.linear(F.silu(F.linear(normed, gate)) * F.linear(normed, up), down), keys, values


@pytest.fixture(params=[(7, 0), (1, 7)], ids=["prefill", "decode"])
def recording(request, record):
    length, past = request.param

    def half(*shape: int) -> Tensor:
        return (torch.randn(shape) / 8).half()

    cache = half(1, KV_HEADS, past, WIDTH), half(1, KV_HEADS, past, WIDTH)
    cache = cache if past else (torch.tensor([]).half(), torch.tensor([]).half())
    rows = KV_HEADS * WIDTH
    weights = (
        1 + half(HIDDEN), half(HIDDEN, HIDDEN), half(rows, HIDDEN), half(rows, HIDDEN), half(HIDDEN, HIDDEN),
        1 + half(HIDDEN), half(INNER, HIDDEN), half(INNER, HIDDEN), half(HIDDEN, INNER),
    )  # fmt: skip
    return record(layer, half(1, length, HIDDEN), *cache, half(1, length, WIDTH), half(1, length, WIDTH), *weights)


def test_a_layer_is_fifteen_intents(recording):
    append = "concat" if recording.only("attention").attr("causal") is False else "copy"
    assert recording.kinds() == [
        "rms_norm", "linear", "linear", "linear", "rotary", "rotary", append, append, "attention", "linear",
        "add_rms_norm", "linear", "linear", "gated_activation", "linear",
    ]  # fmt: skip
    recording.assert_same(2e-2, 2e-2)


def test_the_matrix_flops_of_a_layer(recording):
    """Per row: q and o 64 x 64 each, k and v 64 x 32 each, three of 96 x 64; attention two products of 4 heads x 16."""
    attention = recording.only("attention")
    rows, kv = attention.inputs[0].shape[2], attention.inputs[1].shape[2]
    per_row = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 96 * 64) + 2 * 4 * 16 * 2 * kv
    assert sum(map(flops, recording.parsed())) == rows * per_row
