"""Rotary positions as the libraries write them: which style each is, with the same numbers, and what is none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

f32, f16, bf16, f64 = torch.float32, torch.float16, torch.bfloat16, torch.float64


def x(*shape: int, dtype: torch.dtype = f32) -> Tensor:
    return torch.randn(shape).to(dtype)


def rotate_half(a: Tensor) -> Tensor:
    half = a.shape[-1] // 2
    return torch.cat((-a[..., half:], a[..., :half]), dim=-1)


def neighbours(a: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """transformers GPT-J apply_rotary_pos_emb."""
    turned = torch.stack((-a[..., 1::2], a[..., ::2]), dim=-1).flatten(-2)
    return (a * cos) + (turned * sin)


def wide(a: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """transformers Qwen2-VL apply_rotary_pos_emb_vision."""
    b = a.float()
    return ((b * cos) + (rotate_half(b) * sin)).to(a.dtype)


def widened(a: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """transformers OLMo apply_rotary_pos_emb: the cosines are float32, what is rotated is not."""
    return ((a * cos) + (rotate_half(a) * sin)).to(a.dtype)


def by_halves(a: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """transformers gpt-oss _apply_rotary_emb."""
    first, second = a.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def gathered(a: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """transformers DeepSeek-V3 apply_rotary_pos_emb_interleave."""
    even, odd = a[..., 0::2], a[..., 1::2]
    return torch.cat((even * cos - odd * sin, odd * cos + even * sin), -1)


@pytest.mark.parametrize("dtype", [f32, f16, bf16, f64])
def test_neighbours_are_the_interleaved_style(record, dtype):
    recording = record(neighbours, x(2, 3, 5, 8, dtype=dtype), x(5, 8, dtype=dtype), x(5, 8, dtype=dtype))
    assert recording.kinds() == ["rotary"]
    assert recording.only("rotary").attr("style") == "interleaved"
    recording.assert_same()


@pytest.mark.parametrize("dtype", [f16, bf16])
@pytest.mark.parametrize("function", [wide, widened])
def test_a_rotation_in_float32_is_rounded_once(record, dtype, function):
    recording = record(function, x(5, 3, 8, dtype=dtype), x(5, 1, 8), x(5, 1, 8))
    assert recording.kinds() == ["rotary"]
    intent = recording.only("rotary")
    assert (intent.attr("compute"), intent.inputs[0].dtype, intent.attr("style")) == (f32, dtype, "half")
    recording.assert_same()


@pytest.mark.parametrize("dtype", [f32, bf16])
@pytest.mark.parametrize(("function", "style"), [(by_halves, "half"), (gathered, "gathered")])
def test_a_pair_may_share_its_cosine(record, dtype, function, style):
    recording = record(function, x(2, 3, 5, 8, dtype=dtype), x(5, 4, dtype=dtype), x(5, 4, dtype=dtype))
    assert recording.kinds() == ["rotary"]
    intent = recording.only("rotary")
    assert (intent.attr("style"), [r.shape[-1] for r in intent.inputs]) == (style, [8, 4, 4])
    recording.assert_same()


def test_the_rotated_part_of_a_head_is_read_where_it_lies(record):
    def partial(a, cos, sin):
        rotated, kept = a[..., :6], a[..., 6:]
        return torch.cat(((rotated * cos) + (rotate_half(rotated) * sin), kept), -1)

    recording = record(partial, x(2, 3, 5, 8), x(5, 6), x(5, 6))
    assert recording.kinds() == ["rotary", "concat"]
    assert recording.only("rotary").inputs[0].stride == (120, 40, 8, 1)
    recording.assert_same()


def turned(left: Tensor, right: Tensor, dim: int = -1) -> Tensor:
    return torch.stack((left, right), dim).flatten(-2)


@pytest.mark.parametrize(
    "near",
    [
        pytest.param(lambda a, c, s: a * c + turned(a[..., 1::2], a[..., ::2]) * s, id="no sign"),
        pytest.param(lambda a, c, s: a * c + turned(-a[..., ::2], a[..., 1::2]) * s, id="unturned"),
        pytest.param(lambda a, c, s: a * c + turned(-a[..., 1::2], a[..., ::2], -2) * s, id="apart"),
        pytest.param(lambda a, c, s: torch.add(a * c, turned(-a[..., 1::2], a[..., ::2]) * s, alpha=2), id="twice"),
    ],
)
def test_what_only_looks_like_neighbours_is_left_alone(record, near):
    recording = record(near, x(2, 8, 8), x(8, 8), x(8, 8))
    assert "rotary" not in recording.kinds()
    recording.assert_same(1e-6, 1e-6)


@pytest.mark.parametrize(
    "near",
    [
        pytest.param(lambda p, q, c, s: torch.cat((p * c + q * s, q * c + p * s), -1), id="a sum twice"),
        pytest.param(lambda p, q, c, s: torch.cat((p * c - q * s, q * c - p * s), -1), id="a difference twice"),
        pytest.param(lambda p, q, c, s: torch.cat((p * c - q * s, p * c + q * s), -1), id="the same products"),
        pytest.param(lambda p, q, c, s: torch.cat((p * c - q * s, q * s + p * c), -2), id="another dimension"),
        pytest.param(lambda p, q, c, s: torch.cat((p * c - q * s, q * c + p * c), -1), id="the cosine twice"),
        pytest.param(lambda p, q, c, s: torch.cat((q * c + p * s, p * c - q * s), -1), id="the other order"),
    ],
)
def test_what_only_looks_like_rotated_halves_is_left_alone(record, near):
    def step(a, c, s):
        return near(*a.chunk(2, -1), c, s)

    recording = record(step, x(2, 3, 8), x(3, 4), x(3, 4))
    assert "rotary" not in recording.kinds()
    recording.assert_same()


@pytest.mark.parametrize(("start", "step"), [(2, 1), (5, 1), (3, 2)])
def test_parts_that_are_neither_halves_nor_neighbours_are_no_rotation(record, start, step):
    def apart(a, c, s):
        p, q = a[..., 0 : 4 * step : step], a[..., start : start + 4 * step : step]
        return torch.cat((p * c - q * s, q * c + p * s), -1)

    recording = record(apart, x(3, 16), x(3, 4), x(3, 4))
    assert "rotary" not in recording.kinds()
    recording.assert_same()


def test_halves_of_two_tensors_are_no_rotation(record):
    recording = record(
        lambda p, q, c, s: torch.cat((p * c - q * s, q * c + p * s), -1), x(3, 4), x(3, 4), x(3, 4), x(3, 4)
    )
    assert "rotary" not in recording.kinds()
    recording.assert_same()


def test_a_wide_result_that_is_kept_stays_wide(record):
    def keep(a, cos, sin):
        b = a.float()
        total = (b * cos) + (rotate_half(b) * sin)
        return total, total.to(a.dtype)

    recording = record(keep, x(5, 8, dtype=f16), x(5, 8), x(5, 8))
    assert recording.only("rotary").outputs[0].dtype == f32
    recording.assert_same()


def test_a_rotation_overwritten_in_between_is_left_in_pieces(record):
    def overwrite(a, cos, sin):
        left = a * cos
        a.zero_()
        return left + rotate_half(a) * sin

    recording = record(overwrite, x(5, 8), x(5, 8), x(5, 8))
    assert "rotary" not in recording.kinds()
    recording.assert_same()
