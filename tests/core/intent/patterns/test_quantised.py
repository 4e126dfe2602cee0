"""Quantised weights and activations in plain torch: what they become, with the same numbers, and what is none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

f32, f16, bf16 = torch.float32, torch.float16, torch.bfloat16
BYTES = torch.randint(-128, 128, (6, 32), dtype=torch.int8, generator=torch.Generator().manual_seed(1))
NIBBLES = torch.randint(0, 256, (6, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))


def x(*shape: int, dtype: torch.dtype = f32) -> Tensor:
    return torch.randn(shape).to(dtype)


def unpacked(packed: Tensor) -> Tensor:
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)


def per_channel(a: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return F.linear(a, w.to(a.dtype) * scale)


def per_group(a: Tensor, w: Tensor, scale: Tensor, zero: Tensor, bias: Tensor) -> Tensor:
    numbers = unpacked(w).to(a.dtype).view(6, 4, 8)
    return F.linear(a, ((numbers - zero) * scale).view(6, 32), bias)


def tolerance(dtype: torch.dtype) -> float:
    return {f32: 1e-5, f16: 2e-3, bf16: 2e-2}[dtype]


@pytest.mark.parametrize("dtype", [f32, f16, bf16])
def test_bytes_with_a_scale_per_channel(record, dtype):
    recording = record(per_channel, x(3, 32, dtype=dtype), BYTES, x(6, 1, dtype=dtype) / 64)
    intent = recording.only("quant_linear")
    assert recording.kinds() == ["quant_linear"]
    assert dict(intent.attrs) == {"bits": 8, "group": 32, "has_bias": False, "has_zero": False}
    recording.assert_same(tolerance(dtype), tolerance(dtype))


@pytest.mark.parametrize("dtype", [f32, f16, bf16])
def test_packed_nibbles_with_a_scale_and_a_zero_per_group(record, dtype):
    zero = torch.randint(0, 16, (6, 4, 1)).to(dtype)
    scale, bias = x(6, 4, 1, dtype=dtype) / 16, x(6, dtype=dtype)
    recording = record(per_group, x(2, 3, 32, dtype=dtype), NIBBLES, scale, zero, bias)
    intent = recording.only("quant_linear")
    assert recording.kinds() == ["quant_linear"]
    assert dict(intent.attrs) == {"bits": 4, "group": 8, "has_bias": True, "has_zero": True}
    assert [r.shape for r in intent.inputs[1:]] == [(6, 16), (6, 4), (6, 4), (6,)]
    recording.assert_same(tolerance(dtype), tolerance(dtype))


def test_scales_and_zeros_may_be_widened_on_the_way(record):
    def step(a, w, scale, zero):
        return F.linear(a, (w.to(f32) - zero.to(f32)) * scale.to(f32))

    zero = torch.randint(-8, 8, (6, 1), dtype=torch.int8)
    recording = record(step, x(3, 32), BYTES, x(6, 1, dtype=f16), zero)
    assert recording.kinds() == ["quant_linear"]
    assert [r.dtype for r in recording.only("quant_linear").inputs] == [f32, torch.int8, f16, torch.int8]
    recording.assert_same(1e-5, 1e-4)


def test_a_product_with_the_transposed_weight_is_the_same(record):
    recording = record(lambda a, w, s: a @ (w.to(f32) * s).t(), x(3, 32), BYTES, x(6, 1))
    assert recording.kinds() == ["quant_linear"]
    recording.assert_same(1e-5, 1e-4)


NEAR: dict[str, Callable[..., Tensor]] = {
    "a scale per input": lambda a, w, s: F.linear(a, w.to(f32) * s.view(1, 6).repeat(1, 6)[:, :32]),
    "one scale": lambda a, w, s: F.linear(a, w.to(f32) * s[:1]),
    "a zero added": lambda a, w, s: F.linear(a, (w.to(f32) + s) * s),
    "a scaled zero": lambda a, w, s: F.linear(a, torch.sub(w.to(f32), s, alpha=2) * s),
    "a zero after the scale": lambda a, w, s: F.linear(a, w.to(f32) * s - s),
    "floats": lambda a, w, s: F.linear(a, (w.to(f32) + 0.5).to(f16).to(f32) * s),
    "shifted by five": lambda a, w, s: F.linear(
        a, torch.stack((w[:, :16].view(torch.uint8) & 15, w[:, :16].view(torch.uint8) >> 5), -1).flatten(-2).to(f32) * s
    ),
    "the high one first": lambda a, w, s: F.linear(
        a, torch.stack((w[:, :16].view(torch.uint8) >> 4, w[:, :16].view(torch.uint8) & 15), -1).flatten(-2).to(f32) * s
    ),
    "halves apart": lambda a, w, s: F.linear(
        a, torch.cat((w[:, :16].view(torch.uint8) & 15, w[:, :16].view(torch.uint8) >> 4), -1).to(f32) * s
    ),
}


@pytest.mark.parametrize("name", NEAR)
def test_what_only_looks_dequantised_is_left_in_pieces(record, name):
    recording = record(NEAR[name], x(3, 32), BYTES, x(6, 1))
    assert "quant_linear" not in recording.kinds()
    recording.assert_same(1e-5, 1e-4)


def test_a_widened_weight_that_is_kept_stays_in_pieces(record):
    def keep(a, w, s):
        wide = w.to(f32) * s
        return F.linear(a, wide), wide

    recording = record(keep, x(3, 32), BYTES, x(6, 1))
    assert "quant_linear" not in recording.kinds()
    recording.assert_same(1e-5, 1e-4)


def test_a_weight_changed_in_between_stays_in_pieces(record):
    def change(a, w, s):
        wide = w.to(f32) * s
        w.zero_()
        return F.linear(a, wide)

    recording = record(change, x(3, 32), BYTES.clone(), x(6, 1))
    assert "quant_linear" not in recording.kinds()
    recording.assert_same(1e-5, 1e-4)


# Activations


def quantised(a: Tensor, scale: Tensor) -> Tensor:
    return torch.clamp(torch.round(a.float() / scale), -128, 127).to(torch.int8)


@pytest.mark.parametrize("dtype", [f32, f16, bf16])
def test_rounding_and_saturating_is_quantise(record, dtype):
    recording = record(quantised, x(5, 8, dtype=dtype) * 9, x(5, 1).abs() / 8)
    assert recording.kinds() == ["quantise"]
    assert recording.only("quantise").inputs[0].dtype == dtype
    recording.assert_same()


def test_a_zero_point_shifts_into_unsigned_bytes(record):
    def step(a, scale, zero):
        return torch.clamp(torch.round(a / scale) + zero, 0, 255).to(torch.uint8)

    recording = record(step, x(5, 8), x(5, 1).abs() / 64, torch.full((5, 1), 128.0))
    assert recording.kinds() == ["quantise"]
    assert recording.only("quantise").attr("has_zero")
    recording.assert_same()


@pytest.mark.parametrize(
    "near",
    [
        pytest.param(lambda a, s: torch.clamp(torch.round(a / s), -127, 127).to(torch.int8), id="a narrower range"),
        pytest.param(lambda a, s: torch.clamp(torch.floor(a / s), -128, 127).to(torch.int8), id="floor"),
        pytest.param(lambda a, s: torch.clamp(torch.round(a * s), -128, 127).to(torch.int8), id="a product"),
        pytest.param(lambda a, s: torch.clamp(torch.round(a / s), -128, 127).to(torch.int32), id="wider numbers"),
        pytest.param(lambda a, s: torch.clamp(torch.round(a.half() / s.half()).float(), -128, 127).to(torch.int8),
                     id="a ratio in float16"),
    ],
)  # fmt: skip
def test_what_only_looks_quantised_is_pointwise(record, near):
    recording = record(near, x(5, 8), x(5, 1).abs() + 0.01)
    assert "quantise" not in recording.kinds()
    recording.assert_same()


# Both


def w8a8(a: Tensor, w: Tensor, w_scale: Tensor, bias: Tensor) -> Tensor:
    """Dynamic, per token and per channel [Dettmers 2022, arXiv 2208.07339, without outliers]."""
    scale = a.float().abs().amax(-1, keepdim=True) / 127
    y = torch._int_mm(quantised(a, scale), w.t()).float() * scale * w_scale + bias
    return y.to(a.dtype)


@pytest.mark.parametrize("dtype", [f32, f16, bf16])
def test_dynamic_w8a8_is_quantise_and_a_scaled_linear(record, dtype):
    w = torch.randint(-128, 128, (16, 32), dtype=torch.int8)
    recording = record(w8a8, x(20, 32, dtype=dtype), w, x(16).abs() / 127, x(16))
    assert recording.kinds() == ["elementwise", "reduce", "elementwise", "quantise", "scaled_linear"]
    assert dict(recording.only("scaled_linear").attrs) == {"has_bias": True, "transposed": True}
    recording.assert_same(1e-6, 1e-6)


def test_the_order_of_the_scales_does_not_matter(record):
    def step(a, w, x_scale, w_scale):
        return torch._int_mm(a, w) * w_scale * x_scale

    a, w = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((20, 32), (32, 16)))
    recording = record(step, a, w, x(20, 1), x(16))
    assert recording.kinds() == ["scaled_linear"]
    recording.assert_same(1e-6, 1e-6)


@pytest.mark.parametrize(
    "near",
    [
        pytest.param(lambda y, r, c: y.float() * r, id="one scale"),
        pytest.param(lambda y, r, c: y.float() * r * c[0], id="a scale for all"),
        pytest.param(lambda y, r, c: (y.float() * r).half() * c.half(), id="rounded in between"),
        pytest.param(lambda y, r, c: y.float() * r + c, id="a sum"),
        pytest.param(lambda y, r, c: (y + 1).float() * r * c, id="something in between"),
    ],
)
def test_what_only_looks_like_scales_is_pointwise(record, near):
    a, w = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((20, 32), (32, 16)))
    recording = record(lambda a, w, r, c: near(torch._int_mm(a, w), r, c), a, w, x(20, 1), x(16))
    assert "scaled_linear" not in recording.kinds()
    recording.assert_same(1e-6, 1e-6)
