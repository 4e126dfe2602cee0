"""Attention written out, in every family's way: one intent with the same numbers; and what is none."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

f32, f16, bf16, f64 = torch.float32, torch.float16, torch.bfloat16, torch.float64


def x(*shape: int, dtype: torch.dtype = f32) -> Tensor:
    return torch.randn(shape).to(dtype)


def close(dtype: torch.dtype) -> float:
    """The fused form rounds no score to 16 bits."""
    return {f64: 1e-12, f32: 1e-5, f16: 4e-3, bf16: 3e-2}[dtype]


def qkv(dtype: torch.dtype = f32, heads: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    return x(2, heads, 5, 8, dtype=dtype), x(2, heads, 7, 8, dtype=dtype), x(2, heads, 7, 8, dtype=dtype)


# Step by step


def divided(q, k, v, mask):
    """BERT, ViT of old."""
    return torch.softmax(q @ k.mT / math.sqrt(8) + mask, -1) @ v


def unscaled(q, k, v, bias):
    """transformers T5Attention."""
    scores = torch.matmul(q, k.transpose(3, 2)) + bias
    return torch.matmul(F.softmax(scores.float(), dim=-1).type_as(scores), v)


def capped(q, k, v, mask):
    """transformers Gemma 2 eager_attention_forward."""
    scores = torch.matmul(q, k.transpose(2, 3)) * 0.25 / 50.0
    scores = torch.tanh(scores) * 50.0 + mask
    return torch.matmul(F.softmax(scores, dim=-1, dtype=f32).to(q.dtype), v)


def flattened(q, k, v, mask):
    """transformers BLOOM BloomAttention: heads flattened, ALiBi added by the product."""
    q, k, v = (t.reshape(8, -1, 8) for t in (q, k, v))
    alibi = torch.linspace(0, 1, 7).to(q.dtype)[None, None].expand(8, 1, 7)
    scores = alibi.baddbmm(batch1=q, batch2=k.mT, beta=1.0, alpha=0.25)
    scores = scores.view(2, 4, 5, 7) + mask
    weights = F.softmax(scores, dim=-1, dtype=f32).to(q.dtype)
    return torch.bmm(weights.view(8, 5, 7), v)


def scaled_before(q, k, v, mask):
    """OPT and Whisper of old: the scale is the queries'."""
    q, k, v = ((q * 0.3).view(8, 5, 8), k.view(8, 7, 8), v.view(8, 7, 8))
    return torch.bmm(torch.softmax(torch.bmm(q, k.mT).view(2, 4, 5, 7) + mask, -1).view(8, 5, 7), v)


@pytest.mark.parametrize("dtype", [f32, f16, bf16])
@pytest.mark.parametrize(
    ("function", "attrs"),
    [
        (divided, {"scale": 1 / math.sqrt(8), "softcap": None, "has_bias": False}),
        (unscaled, {"scale": 1.0, "softcap": None, "has_bias": False}),
        (capped, {"scale": 0.25, "softcap": 50.0, "has_bias": False}),
        (flattened, {"scale": 0.25, "softcap": None, "has_bias": True}),
        (scaled_before, {"scale": 1.0, "softcap": None, "has_bias": False}),
    ],
)
def test_every_family_writes_one_attention(record, dtype, function, attrs):
    recording = record(function, *qkv(dtype), x(2, 1, 5, 7, dtype=dtype))
    intent = recording.only("attention")
    assert {name: intent.attr(name) for name in attrs} == attrs
    assert (intent.attr("groups"), intent.attr("has_mask"), intent.outputs[0].shape) == (1, True, (2, 4, 5, 8))
    assert not {"softmax", "matmul"} & set(recording.kinds())
    recording.assert_same(close(dtype), close(dtype))


@pytest.mark.parametrize(("function", "found"), [(divided, 1), (capped, 0)])
def test_in_float64_a_softmax_in_float32_is_a_step_of_its_own(record, function, found):
    recording = record(function, *qkv(f64), x(2, 1, 5, 7, dtype=f64))
    assert recording.kinds().count("attention") == found
    tolerance = 1e-12 if found else 1e-6  # the softmax itself is one of float32
    recording.assert_same(tolerance, tolerance)


def test_a_bias_and_a_mask_are_both_added(record):
    """transformers MPT adds ALiBi; others add a mask on top."""

    def step(q, k, v, alibi, mask):
        return torch.softmax(q @ k.mT * 0.3 + alibi + mask, -1) @ v

    recording = record(step, *qkv(), x(1, 4, 1, 7), x(2, 1, 5, 7))
    assert recording.kinds() == ["attention"]
    assert [r.shape for r in recording.only("attention").inputs[3:]] == [(2, 4, 5, 7)] * 2
    recording.assert_same(1e-5, 1e-6)


def test_one_head_of_keys_serves_all_queries(record):
    """Multi-query attention [Shazeer 2019, arXiv 1911.02150] by broadcast."""
    recording = record(
        lambda q, k, v: torch.softmax(q @ k.mT * 0.3, -1) @ v, x(2, 4, 5, 8), x(2, 1, 7, 8), x(2, 1, 7, 8)
    )
    assert recording.kinds() == ["attention"]
    assert recording.only("attention").attr("groups") == 4
    recording.assert_same(1e-5, 1e-6)


@pytest.mark.parametrize(
    "near",
    [
        pytest.param(lambda q, k, v: torch.log_softmax(q @ k.mT * 0.3, -1) @ v, id="log softmax"),
        pytest.param(lambda q, k, v: torch.softmax(q @ k.mT, 1) @ v, id="softmax over heads"),
        pytest.param(lambda q, k, v: torch.sigmoid(q @ k.mT * 0.3) @ v, id="sigmoid"),
        pytest.param(lambda q, k, v: torch.softmax(torch.tanh(q @ k.mT / 50) * 30, -1) @ v, id="another cap"),
        pytest.param(lambda q, k, v: torch.softmax(torch.sin(q @ k.mT / 50) * 50, -1) @ v, id="another curve"),
        pytest.param(lambda q, k, v: torch.softmax(2 / (q @ k.mT), -1) @ v, id="the scores below"),
        pytest.param(lambda q, k, v: (torch.softmax(q @ k.mT, -1) * 2) @ v, id="weights that are scaled"),
        pytest.param(lambda q, k, v: torch.softmax(q @ k.mT - v.mean(), -1) @ v, id="a difference"),
    ],
)
def test_what_only_looks_like_attention_is_left_in_pieces(record, near):
    recording = record(near, *qkv())
    assert "attention" not in recording.kinds()
    recording.assert_same(1e-5, 1e-5)


def test_weights_that_are_kept_stay_visible(record):
    def keep(q, k, v):
        weights = torch.softmax(q @ k.mT * 0.3, -1)
        return weights @ v, weights

    recording = record(keep, *qkv())
    assert "attention" not in recording.kinds()
    recording.assert_same(1e-5, 1e-5)


def test_keys_overwritten_in_between_end_the_match(record):
    def overwrite(q, k, v):
        scores = q @ k.mT * 0.3
        k.zero_()
        return torch.softmax(scores, -1) @ v

    recording = record(overwrite, *qkv())
    assert "attention" not in recording.kinds()
    recording.assert_same(1e-5, 1e-5)


def test_a_mask_scaled_by_its_addition_is_none(record):
    recording = record(lambda q, k, v, m: torch.softmax(torch.add(q @ k.mT, m, alpha=2), -1) @ v, *qkv(), x(2, 1, 5, 7))
    assert "attention" not in recording.kinds()
    recording.assert_same(1e-5, 1e-5)


# torch's own operation


@pytest.mark.parametrize("dtype", [f32, f16, bf16, f64])
@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float", "row", "head", "flat"])
def test_every_kind_of_mask(record, dtype, mask):
    masks = {
        "bool": (torch.rand(2, 4, 5, 7) > 0.4) | (torch.arange(7) == 0), "float": x(5, 7, dtype=dtype),
        "row": torch.rand(2, 1, 1, 7) > -1, "head": x(4, 5, 7, dtype=dtype), "flat": x(1, 7, dtype=dtype),
    }  # fmt: skip
    given = masks.get(mask)

    def step(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=given, is_causal=mask == "causal")

    recording = record(step, *qkv(dtype))
    intent = recording.only("attention")
    assert (intent.attr("causal"), intent.attr("has_mask")) == (mask == "causal", given is not None)
    recording.assert_same(close(dtype), close(dtype))


def test_keys_wider_than_values_are_attention_too(record):
    """MLA, materialised: keys are put together from what positions turn and what they do not."""

    def step(q, nope, rope, v):
        k = torch.cat((nope, rope.expand(2, 4, 7, 4)), -1)
        return F.scaled_dot_product_attention(q, k, v)

    recording = record(step, x(2, 4, 5, 12), x(2, 4, 7, 8), x(2, 1, 7, 4), x(2, 4, 7, 6))
    assert recording.kinds() == ["concat", "attention"]
    assert recording.only("attention").outputs[0].shape == (2, 4, 5, 6)
    recording.assert_same(1e-5, 1e-5)


# MLA, absorbed


def absorbed(q, rope, latent, key, mask=None):
    """DeepSeek-V3 inference/model.py MLA.forward, attn_impl "absorb"."""
    latent, key = latent.unsqueeze(1), key.unsqueeze(1)
    scores = (torch.matmul(q, latent.mT) + torch.matmul(rope, key.mT)) * 0.2
    scores = scores if mask is None else scores + mask
    return torch.matmul(scores.softmax(dim=-1, dtype=f32).type_as(q), latent)


def latent_inputs(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return x(2, 4, 5, 16, dtype=dtype), x(2, 4, 5, 4, dtype=dtype), x(2, 7, 16, dtype=dtype), x(2, 7, 4, dtype=dtype)


@pytest.mark.parametrize("dtype", [f32, f16, bf16])
@pytest.mark.parametrize("masked", [False, True])
def test_absorbed_projections_are_latent_attention(record, dtype, masked):
    mask = (x(5, 7, dtype=dtype),) if masked else ()
    recording = record(absorbed, *latent_inputs(dtype), *mask)
    assert recording.kinds() == ["latent_attention"]
    intent = recording.only("latent_attention")
    assert dict(intent.attrs) == {"causal": False, "has_mask": masked, "scale": 0.2}
    assert [r.shape for r in intent.inputs[2:4]] == [(2, 7, 16), (2, 7, 4)]
    recording.assert_same(close(dtype), close(dtype))


def test_values_that_are_not_the_latent_are_no_latent_attention(record):
    def other(q, rope, latent, key):
        scores = torch.matmul(q, latent.unsqueeze(1).mT) + torch.matmul(rope, key.unsqueeze(1).mT)
        return torch.matmul(scores.softmax(-1), (latent * 2).unsqueeze(1))

    recording = record(other, *latent_inputs(f32))
    assert "latent_attention" not in recording.kinds()
    recording.assert_same(1e-5, 1e-5)


def test_two_products_of_different_scales_are_no_latent_attention(record):
    def other(q, rope, latent, key):
        latent = latent.unsqueeze(1)
        scores = torch.matmul(q, latent.mT) * 0.5 + torch.matmul(rope, key.unsqueeze(1).mT)
        return torch.matmul(scores.softmax(-1), latent)

    recording = record(other, *latent_inputs(f32))
    assert "latent_attention" not in recording.kinds()
    recording.assert_same(1e-5, 1e-5)


# Pages

PAGE, PAGES = 4, 9


def paged(q: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: Tensor, *, first: int = 0) -> Tensor:
    """One query for each sequence, over pages in the order of its table."""
    count = table.shape[1]
    keys, values = (t[table].flatten(1, 2).transpose(1, 2) for t in (k, v))
    seen = torch.arange(first, first + count * PAGE)[None] < lengths[:, None]
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=seen[:, None, None, :], enable_gqa=True)


def pages(dtype: torch.dtype = f32) -> tuple[Tensor, ...]:
    table = torch.stack([torch.randperm(PAGES)[:3] for _ in range(2)])
    cache = x(PAGES, PAGE, 2, 8, dtype=dtype), x(PAGES, PAGE, 2, 8, dtype=dtype)
    return x(2, 6, 1, 8, dtype=dtype), *cache, table, torch.tensor([5, 12])


@pytest.mark.parametrize("dtype", [f32, f16, bf16])
def test_pages_taken_by_a_table_are_read_where_they_are(record, dtype):
    recording = record(paged, *pages(dtype))
    assert recording.kinds() == ["paged_attention"]
    intent = recording.only("paged_attention")
    assert (intent.attr("groups"), intent.attr("scale")) == (3, 8**-0.5)
    assert [r.shape for r in intent.inputs] == [(2, 6, 1, 8), (9, 4, 2, 8), (9, 4, 2, 8), (2, 3), (2,)]
    recording.assert_same(close(dtype), close(dtype))


def test_a_mask_of_other_places_keeps_the_pages_copied(record):
    recording = record(lambda *a: paged(*a, first=-1), *pages())
    assert "paged_attention" not in recording.kinds()
    recording.assert_same(1e-5, 1e-5)


def test_keys_and_values_of_two_tables_are_not_paged(record):
    def step(q, k, v, table, lengths):
        other = table.flip(0)
        keys, values = k[table].flatten(1, 2).transpose(1, 2), v[other].flatten(1, 2).transpose(1, 2)
        seen = torch.arange(12)[None] < lengths[:, None]
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=seen[:, None, None, :], enable_gqa=True)

    recording = record(step, *pages())
    assert "paged_attention" not in recording.kinds()
    recording.assert_same(1e-5, 1e-5)


def test_pages_that_are_kept_are_copied(record):
    def step(q, k, v, table, lengths):
        taken = k[table]
        values = v[table].flatten(1, 2).transpose(1, 2)
        seen = torch.arange(12)[None] < lengths[:, None]
        keys = taken.flatten(1, 2).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen[:, None, None, :], enable_gqa=True)
        return y, taken

    recording = record(step, *pages())
    assert "paged_attention" not in recording.kinds()
    recording.assert_same(1e-5, 1e-5)
