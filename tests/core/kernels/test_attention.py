"""Attention as two products around a softmax, on every chip.

Bounds, by rounding point. Scores: D terms in float32, scaled: an absolute error e = (D + 2) * u32 * scale * sum of
|q||k|, plus one unit where a mask is added. A weight p moves by 2 * e of itself at most (its own power and the sum's),
and the softmax adds (KV + 12 + twice the spread of the scores) * u32; it is rounded to q's format: u(q) of itself, half
a subnormal step at least. The product with v: each weight's error times |v|, KV * u32 of the sum of magnitudes, and one
rounding.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import sdpa_flop_count

from dsf.intent.flops import flops

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
U32 = 2.0**-24

formats = pytest.mark.parametrize("dtype", FLOATS, ids=str)


def expected(q, k, v, mask, causal, scale, dtype):
    """The attention in float64, and its bound. Rows that a mask hides whole are 0, as torch's are."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    scores = scale * (q @ k.transpose(-1, -2))
    error = (q.shape[-1] + 2) * U32 * abs(scale) * (q.abs() @ k.abs().transpose(-1, -2))
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -torch.inf)
    elif mask is not None:
        scores = scores + mask.double()
        error = error + U32 * scores.abs().nan_to_num(0, 0, 0)
    if causal:
        keep = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~keep, -torch.inf)
    highest = scores.amax(-1, keepdim=True)
    spread = (scores - highest).abs().nan_to_num(0, 0, 0)
    weights = torch.softmax(scores, -1).masked_fill(highest == -torch.inf, 0)
    kv, narrow = scores.shape[-1], torch.finfo(dtype)
    slip = 2 * error.amax(-1, keepdim=True) + (kv + 12 + 2 * spread) * U32
    slip = weights * (slip + 1.01 * narrow.eps / 2) + narrow.tiny * narrow.eps
    wanted = weights @ v
    sums = slip @ v.abs() + kv * U32 * (weights @ v.abs())
    return wanted, sums + 1.01 * narrow.eps / 2 * (wanted.abs() + sums) + narrow.tiny * narrow.eps


def attend(bench, q, k, v, mask=None, causal=False, scale=None, method="run", out=None, **options):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    inputs = [q, k, v] if mask is None else [q, k, v, mask]
    out = bench.out((*q.shape[:3], v.shape[3]), q.dtype) if out is None else out
    run = getattr(bench, method)(
        "attention", inputs, [out], causal=causal, groups=q.shape[1] // k.shape[1], has_mask=mask is not None,
        scale=scale, **options,
    )  # fmt: skip
    run.within(*expected(q, k, v, mask, causal, scale, q.dtype))
    run.agrees()
    return run


def heads(batch, heads, kv_heads, queries, keys, width, value_width, dtype):
    return (
        torch.randn(batch, heads, queries, width).to(dtype),
        torch.randn(batch, kv_heads, keys, width).to(dtype),
        torch.randn(batch, kv_heads, keys, value_width).to(dtype),
    )


SIZES = [  # batch, heads, kv heads, queries, keys, width, value width
    (1, 1, 1, 1, 1, 1, 1),
    (1, 3, 3, 5, 5, 16, 16),
    (2, 9, 3, 7, 7, 64, 64),
    (1, 9, 3, 1, 37, 64, 64),
    (2, 4, 1, 1, 131, 32, 32),
    (1, 2, 2, 3, 50, 24, 40),
    (1, 4, 2, 33, 33, 17, 17),
    (1, 2, 1, 130, 130, 64, 64),
]


@formats
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_attention_is_right_to_within_its_roundings(bench, size, dtype):
    attend(bench, *heads(*size, dtype))


@formats
@pytest.mark.parametrize(
    "size", [s for s in SIZES if s[3] == s[4]] + [(2, 4, 2, 1, 1, 8, 8), (1, 4, 2, 1, 9, 8, 8)], ids=str
)
def test_a_causal_query_sees_no_later_key(bench, size, dtype):
    """Top left: query i sees keys 0 to i, also where there are more keys than queries, as torch has it."""
    q, k, v = heads(*size, dtype)
    run = attend(bench, q, k, v, causal=True)
    seen = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True, enable_gqa=True)
    assert torch.allclose(run.output.float(), seen, 0.02, 0.02)


@formats
@pytest.mark.parametrize("kind", [torch.bool, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("lie", ["own", "one for all heads", "one for all queries"])
def test_masks_hide_or_shift_scores(bench, lie, kind, dtype):
    q, k, v = heads(2, 4, 2, 6, 19, 16, 16, dtype)
    shape = {"own": (2, 4, 6, 19), "one for all heads": (2, 1, 6, 19), "one for all queries": (2, 1, 1, 19)}[lie]
    mask = torch.rand(shape) > 0.4 if kind == torch.bool else torch.randn(shape).to(kind) * 2
    attend(bench, q, k, v, mask.expand(2, 4, 6, 19))


@formats
def test_the_mask_of_a_library_hides_by_the_least_number(bench, dtype):
    """transformers fills with finfo.min; such a key has weight 0."""
    q, k, v = heads(1, 2, 2, 6, 6, 16, 16, dtype)
    mask = torch.full((6, 6), torch.finfo(dtype).min).triu(1).to(dtype).expand(1, 2, 6, 6)
    attend(bench, q, k, v, mask)


@formats
def test_a_query_that_may_see_nothing_gets_zeros(bench, dtype):
    """As torch's scaled_dot_product_attention on a CPU does, for either kind of mask."""
    q, k, v = heads(1, 2, 1, 4, 5, 16, 16, dtype)
    keep = torch.ones(1, 1, 4, 5, dtype=torch.bool)
    keep[..., 2, :] = False
    shift = torch.zeros(1, 1, 4, 5).masked_fill(~keep, -torch.inf)
    for mask in (keep, shift):
        run = attend(bench, q, k, v, mask.expand(1, 2, 4, 5))
        assert torch.equal(run.output[:, :, 2], torch.zeros(1, 2, 16, dtype=dtype))
        torch_says = F.scaled_dot_product_attention(
            q.float(), k.float().expand(1, 2, 5, 16), v.float().expand(1, 2, 5, 16), mask
        )
        assert torch.equal(torch_says[:, :, 2], torch.zeros(1, 2, 16))


def test_a_query_whose_every_key_is_filled_with_the_least_number_sees_all_alike(bench):
    """Not hidden, only very small: the scores vanish beside -3.4e38, and what is left is the mean of the values."""
    q, k, v = heads(1, 1, 1, 2, 8, 16, 16, torch.float32)
    mask = torch.full((1, 1, 2, 8), torch.finfo(torch.float32).min)
    outputs = [bench.out(q.shape, q.dtype)]
    run = bench.run("attention", [q, k, v, mask], outputs, causal=False, groups=1, has_mask=True, scale=0.25)
    assert torch.allclose(run.output, v.mean(2, keepdim=True).expand_as(run.output), 0, 1e-6)
    run.agrees()


@formats
def test_heads_are_read_where_projections_and_caches_leave_them(bench, dtype):
    """[batch, seq, heads, width] transposed; a key-value cache longer than what is in it; the result likewise."""
    q = torch.randn(2, 5, 4, 16).to(dtype).transpose(1, 2)
    k, v = (torch.randn(2, 2, 40, 16).to(dtype)[:, :, :11] for _ in range(2))
    attend(bench, q, k, v, out=bench.out((2, 5, 4, 16), dtype).transpose(1, 2))
    attend(bench, q[:, :, :1], k, v)


def test_one_cache_may_serve_all_sequences(bench):
    q, k, v = heads(3, 4, 2, 5, 7, 16, 16, torch.float16)
    attend(bench, q, k[:1].expand_as(k), v[:1].expand_as(v))


@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0, -0.5])
def test_any_scale_is_taken(bench, scale):
    attend(bench, *heads(1, 2, 2, 3, 5, 16, 16, torch.float32), scale=scale)


def test_a_causal_mask_counts_on_past_the_longest_instruction(bench):
    """Keys from 8160 on are in a second piece of the row of indices; queries 0 and 1 see none of them."""
    attend(bench, *heads(1, 1, 1, 2, 9000, 16, 16, torch.float16), causal=True)


def test_scores_far_apart_do_not_overflow(bench):
    """Scores of some thousands: the largest is taken off before the exponential."""
    q, k, v = heads(1, 1, 1, 3, 5, 16, 16, torch.float32)
    attend(bench, q * 40, k * 40, v)


@formats
@pytest.mark.parametrize("case", ["plain", "causal", "mask", "decode"])
def test_planes_and_oracle_agree_on_attention(bench, case, dtype):
    q, k, v = heads(1, 4, 2, 1 if case == "decode" else 7, 7, 16, 16, dtype)
    mask = (torch.rand(1, 1, 7, 7) > 0.3).expand(1, 4, 7, 7) if case == "mask" else None
    attend(bench, q, k, v, mask, causal=case == "causal", method="oracle")


def test_planes_and_oracle_agree_in_float64_slabs(bench):
    q, k, v = heads(1, 4, 2, 7, 7, 16, 16, torch.float16)
    attend(bench, q, k, v, causal=True, method="oracle", exact=True)


# Matrix FLOPs; tiles of 16 x 16 x 16 in the 16-bit formats.


@pytest.mark.parametrize(
    ("size", "macs"),
    [
        ((1, 9, 3, 48, 48, 64, 64), 9 * (48 * 48 * 64 + 48 * 64 * 48)),
        ((1, 9, 3, 7, 7, 64, 64), 9 * (16 * 16 * 64 + 16 * 64 * 16)),
        ((2, 9, 3, 1, 37, 64, 64), 2 * 3 * (16 * 48 * 64 + 16 * 64 * 48)),  # three heads of a group are three rows
        ((1, 4, 4, 1, 37, 64, 64), 4 * (16 * 48 * 64 + 16 * 64 * 48)),
        ((1, 2, 1, 5, 37, 24, 40), 2 * (16 * 48 * 32 + 16 * 48 * 48)),
    ],
    ids=str,
)
def test_attention_is_padded_to_whole_tiles_and_no_further(bench, size, macs):
    q, k, v = heads(*size, torch.float16)
    out = bench.out((*q.shape[:3], v.shape[3]), q.dtype)
    group = q.shape[1] // k.shape[1]
    intent = bench.intent("attention", [q, k, v], [out], causal=False, groups=group, has_mask=False, scale=1.0)
    assert bench.timing(bench.chosen(intent)[1]).macs == macs
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    assert flops(intent) == sdpa_flop_count(q.shape, k.shape, v.shape)


def test_attention_over_whole_tiles_is_not_padded(bench):
    """A causal mask halves nothing: what is hidden is computed as well, and counted by torch as well."""
    q, k, v = heads(1, 2, 2, 64, 64, 32, 32, torch.float16)
    intent = bench.intent(
        "attention", [q, k, v], [bench.out(q.shape, q.dtype)], causal=True, groups=1, has_mask=False, scale=1.0
    )
    assert 2 * bench.timing(bench.chosen(intent)[1]).macs == flops(intent) == sdpa_flop_count(q.shape, k.shape, v.shape)
