"""Every pattern row: what it recognises, that its meaning is the operations', and what it must leave alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

f32, f16, bf16 = torch.float32, torch.float16, torch.bfloat16


def x(*shape: int, dtype: torch.dtype = f32) -> Tensor:
    return torch.randn(shape).to(dtype)


# RMS norm


def rms_norm(a: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    wide = a.to(f32)
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(a.dtype)


def rms_norm_inside(a: Tensor, weight: Tensor) -> Tensor:
    wide = a.to(f32)
    return ((wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)) * weight.to(f32)).type_as(a)


@pytest.mark.parametrize("dtype", [f32, f16, bf16])
def test_the_rms_norm_of_llama_is_one_intent_to_the_last_bit(record, dtype):
    recording = record(rms_norm, x(2, 3, 8, dtype=dtype), x(8, dtype=dtype))
    intent = recording.only("rms_norm")
    assert recording.kinds() == ["rms_norm"]
    assert dict(intent.attrs) == {"compute": f32, "eps": 1e-5, "weight_after_cast": True}
    assert [r.shape for r in intent.inputs] == [(2, 3, 8), (8,)]
    recording.assert_same()


def test_the_order_of_factors_does_not_matter(record):
    def other_way_round(a, weight):
        return (torch.rsqrt((a * a).mean((-1,), keepdim=True) + 1e-5) * a) * weight

    recording = record(other_way_round, x(3, 8), x(8))
    assert recording.kinds() == ["rms_norm"]
    recording.assert_same()


def test_a_weight_inside_the_cast_is_told_apart(record):
    recording = record(rms_norm_inside, x(3, 8, dtype=f16), x(8))
    assert recording.only("rms_norm").attr("weight_after_cast") is False
    recording.assert_same()


def weighted(recording) -> list:
    """Its norms that took a weight in. (What is left of one whose weight does not fit is a norm without.)"""
    return [i for i in recording.parsed() if i.kind == "rms_norm" and i.attr("has_weight")]


def mean_square(a: Tensor) -> Tensor:
    return a.pow(2).mean(-1, keepdim=True)


@pytest.mark.parametrize(
    "near",
    [
        pytest.param(lambda a, w: w * (a * (torch.rsqrt(mean_square(a)) + 1e-5)), id="eps outside"),
        pytest.param(lambda a, w: w * (a * torch.rsqrt(a.pow(2).mean(0, keepdim=True) + 1e-5)), id="another axis"),
        pytest.param(lambda a, w: w * (a * torch.rsqrt(a.pow(2).mean((0, 1), keepdim=True) + 1e-5)), id="two axes"),
        pytest.param(lambda a, w: w * (a * torch.rsqrt(a.pow(3).mean(-1, keepdim=True) + 1e-5)), id="a cube"),
        pytest.param(lambda a, w: w * (a * torch.rsqrt(a.pow(2).sum(-1, keepdim=True) + 1e-5)), id="a sum"),
        pytest.param(lambda a, w: w * (a * torch.sqrt(mean_square(a) + 1e-5)), id="a root"),
        pytest.param(lambda a, w: w * ((a + 1) * torch.rsqrt(mean_square(a) + 1e-5)), id="another factor"),
        pytest.param(lambda a, w: w[:, None] * (a * torch.rsqrt(mean_square(a) + 1e-5)), id="a weight per row"),
        pytest.param(lambda a, w: (w * a) * (a * torch.rsqrt(mean_square(a) + 1e-5)), id="a full-size weight"),
        pytest.param(lambda a, w: w * (a * torch.rsqrt(a.pow(2).mean(-1) + 1e-5)), id="the mean of another row"),
        pytest.param(lambda a, w: w[None, None] * (a * torch.rsqrt(mean_square(a) + 1e-5)), id="a weight of more axes"),
        pytest.param(lambda a, w: w * (a * torch.rsqrt(mean_square(a) + 1e-5)).to(f16), id="a weight of another dtype"),
        pytest.param(lambda a, w: w * (a * torch.rsqrt(torch.add(mean_square(a), 1e-5, alpha=3))), id="a scaled eps"),
    ],
)
def test_what_only_looks_like_an_rms_norm_is_not_one(record, near):
    recording = record(near, x(8, 8).abs() + 0.1, x(8))
    assert not weighted(recording)
    recording.assert_same(1e-6, 1e-6)


def test_a_second_reader_of_the_variance_keeps_it_visible(record):
    def peek(a, weight):
        variance = a.pow(2).mean(-1, keepdim=True)
        return weight * (a * torch.rsqrt(variance + 1e-5)), variance + 1

    recording = record(peek, x(3, 8), x(8))
    assert "rms_norm" not in recording.kinds()
    recording.assert_same()


def test_a_variance_that_outlives_the_tape_keeps_it_visible(record):
    def keep(a, weight):
        variance = a.pow(2).mean(-1, keepdim=True)
        return weight * (a * torch.rsqrt(variance + 1e-5)), variance

    recording = record(keep, x(3, 8), x(8))
    assert "rms_norm" not in recording.kinds()
    recording.assert_same()


def test_a_norm_that_widens_its_input_takes_it_wide(record):
    """Input and output of a norm have one dtype; a cast that is never undone stays an operation of its own."""

    def widen(a, weight):
        wide = a.to(f32)
        return weight * (wide * torch.rsqrt(mean_square(wide) + 1e-5))

    recording = record(widen, x(3, 8, dtype=f16), x(8))
    assert recording.kinds() == ["elementwise", "rms_norm"]
    recording.assert_same()


def test_a_shared_cast_stays_outside_the_norm(record):
    """The float32 copy of x has another reader: the norm takes it as its input instead of hiding it."""

    def shared(a, weight):
        wide = a.to(f32)
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return weight * normed, wide * 2

    recording = record(shared, x(3, 8, dtype=f16), x(8))
    assert sorted(recording.kinds()) == ["elementwise", "elementwise", "rms_norm"]
    recording.assert_same()


def test_an_input_overwritten_before_the_anchor_ends_the_match(record):
    def overwrite(a, weight):
        normed = a * torch.rsqrt(a.pow(2).mean(-1, keepdim=True) + 1e-5)
        a.zero_()
        return weight * normed

    recording = record(overwrite, x(3, 8), x(8))
    assert not weighted(recording)
    recording.assert_same()


def test_a_weight_overwritten_before_the_anchor_is_read_in_time(record):
    def overwrite(a, weight):
        normed = a * torch.rsqrt(a.pow(2).mean(-1, keepdim=True) + 1e-5)
        weight.fill_(2)
        return weight * normed

    recording = record(overwrite, x(3, 8), x(8))
    assert recording.kinds() == ["fill", "rms_norm"]
    recording.assert_same()


def test_an_intermediate_changed_in_place_ends_the_match(record):
    def tamper(a, weight):
        variance = a.pow(2).mean(-1, keepdim=True)
        variance.mul_(2)
        return weight * (a * torch.rsqrt(variance + 1e-5))

    recording = record(tamper, x(3, 8), x(8))
    assert "rms_norm" not in recording.kinds()
    recording.assert_same()


# Rotary


def rotate_half(a: Tensor) -> Tensor:
    half = a.shape[-1] // 2
    return torch.cat((-a[..., half:], a[..., :half]), -1)


def rotary(a: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return a * cos.unsqueeze(1) + rotate_half(a) * sin.unsqueeze(1)


@pytest.mark.parametrize("dtype", [f32, f16])
def test_rotary_of_strided_heads_is_one_intent(record, dtype):
    heads = x(2, 5, 24, dtype=dtype).view(2, 5, 3, 8).transpose(1, 2)
    recording = record(rotary, heads, x(1, 5, 8, dtype=dtype), x(1, 5, 8, dtype=dtype))
    intent = recording.only("rotary")
    assert recording.kinds() == ["rotary"]
    assert [r.shape for r in intent.inputs] == [(2, 3, 5, 8)] * 3
    assert [r.stride for r in intent.inputs] == [(120, 8, 24, 1), (0, 0, 8, 1), (0, 0, 8, 1)]
    recording.assert_same()


@pytest.mark.parametrize(
    "near",
    [
        pytest.param(lambda a, c, s: a * c + torch.cat((-a[..., :4], a[..., 4:]), -1) * s, id="halves not exchanged"),
        pytest.param(lambda a, c, s: a * c + torch.cat((a[..., 4:], -a[..., :4]), -1) * s, id="the other half negated"),
        pytest.param(lambda a, c, s: a * c + torch.cat((-a[..., 6:], a[..., :6]), -1) * s, id="unequal halves"),
        pytest.param(lambda a, c, s: a * c + torch.cat((-a[..., 4:], a[..., 4:]), -1) * s, id="one half twice"),
        pytest.param(lambda a, c, s: a * c + torch.cat((-a[..., :4], a[..., :4]), -1) * s, id="the other half twice"),
        pytest.param(
            lambda a, c, s: a * c + torch.cat((-a[..., 4:], a[..., :2], a[..., 2:4]), -1) * s, id="three parts"
        ),
        pytest.param(lambda a, c, s: a * c - rotate_half(a) * s, id="subtracted"),
        pytest.param(lambda a, c, s: torch.add(a * c, rotate_half(a) * s, alpha=2), id="a factor"),
        pytest.param(lambda a, c, s: a * c + rotate_half(a + 1) * s, id="another tensor"),
        pytest.param(lambda a, c, s: a * c + torch.cat((-a[:, 4:], a[:, :4]), 1) * s, id="another axis"),
    ],
)
def test_what_only_looks_like_rotary_is_not(record, near):
    recording = record(near, x(2, 8, 8), x(8), x(8))
    assert "rotary" not in recording.kinds()
    recording.assert_same(1e-6, 1e-6)


# Gated feed-forward


def swiglu(a: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(F.silu(F.linear(a, gate)) * F.linear(a, up), down)


def test_a_gated_ffn_is_three_linears_and_an_activation_in_one_group(record):
    recording = record(swiglu, x(3, 8), x(16, 8), x(16, 8), x(8, 16))
    assert recording.kinds() == ["linear", "linear", "gated_activation", "linear"]
    groups = [intent.group for intent in recording.parsed()]
    assert [g.role for g in groups] == ["gate", "up", "activation", "down"]
    assert {(g.kind, g.anchor) for g in groups} == {("gated_ffn", 3)}
    recording.assert_same(1e-6, 1e-6)


def test_gate_and_up_from_one_matrix_are_seen(record):
    def fused(a, both, down):
        gate, up = F.linear(a, both).chunk(2, -1)
        return F.linear(up * F.gelu(gate, approximate="tanh"), down)

    recording = record(fused, x(3, 8), x(32, 8), x(8, 16))
    assert [i.group.role for i in recording.parsed()] == ["gate_up", "activation", "down"]
    assert recording.only("gated_activation").attr("act") == "gelu_tanh"
    recording.assert_same(1e-6, 1e-6)


@pytest.mark.parametrize("dtype", [f32, f16])
def test_the_activation_is_rounded_before_the_product(record, dtype):
    recording = record(lambda g, u: F.silu(g) * u, x(5, 9, dtype=dtype), x(5, 9, dtype=dtype))
    assert recording.kinds() == ["gated_activation"]
    recording.assert_same()


def test_linears_of_different_inputs_are_no_gated_ffn(record):
    def two_inputs(a, b, gate, up, down):
        return F.linear(F.silu(F.linear(a, gate)) * F.linear(b, up), down)

    recording = record(two_inputs, x(3, 8), x(3, 8), x(16, 8), x(16, 8), x(8, 16))
    assert [i.group for i in recording.parsed()] == [None] * 4


@pytest.mark.parametrize(
    "near",
    [
        pytest.param(lambda g, u: F.silu(g) * u[:, :1], id="a gate per row"),
        pytest.param(lambda g, u: F.silu(g) + u, id="a sum"),
        pytest.param(lambda g, u: F.silu(g) * 3.0, id="a number"),
        pytest.param(lambda g, u: torch.tanh(g) * u, id="another function"),
        pytest.param(lambda g, u: F.silu(g).t() * u, id="a transposed gate"),
        pytest.param(lambda g, u: F.silu(g) * u.to(torch.float64), id="another dtype"),
    ],
)
def test_what_only_looks_gated_is_pointwise(record, near):
    recording = record(near, x(4, 4), x(4, 4))
    assert set(recording.kinds()) == {"elementwise"}
    recording.assert_same()


def test_an_activation_that_somebody_else_reads_is_not_hidden(record):
    def twice(g, u):
        activated = F.silu(g)
        return activated * u, activated + 1

    recording = record(twice, x(4, 6), x(4, 6))
    assert "gated_activation" not in recording.kinds()
    recording.assert_same()


# Attention


def repeat_kv(a: Tensor, n: int) -> Tensor:
    batch, heads, length, width = a.shape
    return a[:, :, None].expand(batch, heads, n, length, width).reshape(batch, heads * n, length, width)


def test_repeated_keys_and_values_are_read_where_they_were(record):
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, repeat_kv(k, 3), repeat_kv(v, 3), is_causal=True)

    keys = x(2, 5, 2, 8).transpose(1, 2)
    recording = record(attend, x(2, 6, 5, 8), keys, x(2, 2, 5, 8))
    intent = recording.only("attention")
    assert recording.kinds() == ["attention"]
    assert intent.attr("groups") == 3
    assert [r.shape for r in intent.inputs] == [(2, 6, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8)]
    assert intent.inputs[1].stride == (80, 8, 16, 1)
    recording.assert_same(1e-5, 1e-6)


def test_keys_repeated_in_another_order_stay_copies(record):
    """repeat(1, 3, 1, 1) gives heads 0 1 0 1 0 1, not 0 0 0 1 1 1: it is no grouping."""

    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k.repeat(1, 3, 1, 1), v.repeat(1, 3, 1, 1))

    recording = record(attend, x(2, 6, 5, 8), x(2, 2, 5, 8), x(2, 2, 5, 8))
    assert recording.only("attention").attr("groups") == 1
    recording.assert_same(1e-5, 1e-6)


def test_heads_that_only_have_the_shape_of_repeated_ones_stay_copies(record):
    """Five dimensions, but the third holds other values instead of repeating one."""

    def attend(q, k, v):
        keys, values = (t.transpose(0, 1).contiguous().view(2, 6, 5, 8) for t in (k, v))
        return F.scaled_dot_product_attention(q, keys, values)

    recording = record(attend, x(2, 6, 5, 8), x(2, 2, 3, 5, 8), x(2, 2, 3, 5, 8))
    assert recording.only("attention").attr("groups") == 1
    recording.assert_same(1e-5, 1e-6)


def test_repeated_keys_that_are_kept_stay_copies(record):
    def attend(q, k, v):
        keys = repeat_kv(k, 3)
        return F.scaled_dot_product_attention(q, keys, repeat_kv(v, 3)), keys

    recording = record(attend, x(2, 6, 5, 8), x(2, 2, 5, 8), x(2, 2, 5, 8))
    assert recording.only("attention").attr("groups") == 1
    recording.assert_same(1e-5, 1e-6)


def test_attention_writes_rows_at_once_if_they_are_all_that_is_wanted(record):
    def attend(q, k, v):
        with sdpa_kernel(SDPBackend.MATH):  # the one whose result is contiguous
            return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).contiguous()

    recording = record(attend, x(2, 3, 5, 8), x(2, 3, 5, 8), x(2, 3, 5, 8))
    assert [op.target for op in recording.tape.ops][1:] == ["aten.clone.default"]
    assert recording.kinds() == ["attention"]
    assert recording.only("attention").outputs[0].stride == (120, 8, 24, 1)
    recording.assert_same(1e-5, 1e-6)


def test_attention_that_is_kept_as_heads_is_copied_to_rows(record):
    def attend(q, k, v):
        with sdpa_kernel(SDPBackend.MATH):
            heads = F.scaled_dot_product_attention(q, k, v)
        return heads, heads.transpose(1, 2).contiguous()

    recording = record(attend, x(2, 3, 5, 8), x(2, 3, 5, 8), x(2, 3, 5, 8))
    assert recording.kinds() == ["attention", "copy"]
    recording.assert_same(1e-5, 1e-6)


def eager(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    scores = torch.matmul(q, repeat_kv(k, q.shape[1] // k.shape[1]).transpose(2, 3)) * scale
    if mask is not None:
        scores = scores + mask
    weights = F.softmax(scores, dim=-1, dtype=f32).to(q.dtype)
    return torch.matmul(weights, repeat_kv(v, q.shape[1] // v.shape[1]))


@pytest.mark.parametrize("dtype", [f32, f16])
@pytest.mark.parametrize("heads", [2, 6])
@pytest.mark.parametrize("masked", [True, False])
def test_attention_step_by_step_is_attention(record, dtype, heads, masked):
    mask = torch.full((5, 5), -1e4).triu(1).to(dtype)[None, None] if masked else None
    inputs = x(1, heads, 5, 8, dtype=dtype), x(1, 2, 5, 8, dtype=dtype), x(1, 2, 5, 8, dtype=dtype)
    recording = record(eager, *inputs, mask, 0.3)
    intent = recording.only("attention")
    assert recording.kinds() == ["attention"]
    assert dict(intent.attrs) == {"causal": False, "groups": heads // 2, "has_mask": masked, "scale": 0.3}
    tolerance = 1e-5 if dtype == f32 else 4e-3  # the fused form does not round the scores to 16 bits
    recording.assert_same(tolerance, tolerance)


@pytest.mark.parametrize(
    "near",
    [
        pytest.param(lambda q, k, v: torch.softmax(q @ k.mT * 0.3, -2) @ v, id="softmax over queries"),
        pytest.param(lambda q, k, v: torch.softmax((q @ k.mT * 0.3).tanh(), -1) @ v, id="capped scores"),
        pytest.param(lambda q, k, v: torch.softmax(q @ k.mT * q.mean(), -1) @ v, id="a scale that is a tensor"),
        pytest.param(lambda q, k, v: v @ torch.softmax(q @ k.mT * 0.3, -1), id="the weights on the right"),
    ],
)
def test_what_only_looks_like_attention_is_left_in_pieces(record, near):
    recording = record(near, x(1, 2, 8, 8), x(1, 2, 8, 8), x(1, 2, 8, 8))
    assert "attention" not in recording.kinds()
    recording.assert_same(1e-6, 1e-6)
