"""Neighbours that become one intent: what is fused, with the same numbers, and what stays apart."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dsf.intent import check, parse
from dsf.intent.fuse import activation

f32, f16, bf16 = torch.float32, torch.float16, torch.bfloat16


def x(*shape: int, dtype: torch.dtype = f32) -> Tensor:
    return torch.randn(shape).to(dtype)


def nobody(intent) -> bool:
    return False


# Activations


def new_gelu(a):
    """transformers NewGELUActivation (GPT-2)."""
    return 0.5 * a * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (a + 0.044715 * torch.pow(a, 3.0))))


def bloom_gelu(a):
    """transformers bloom_gelu_forward."""
    return a * 0.5 * (1.0 + torch.tanh(0.79788456 * a * (1 + 0.044715 * a * a)))


def erf_gelu(a):
    return a * 0.5 * (1.0 + torch.erf(a / math.sqrt(2.0)))


WRITTEN = {
    "gelu_tanh": (new_gelu, bloom_gelu, lambda a: F.gelu(a, approximate="tanh")), "gelu": (erf_gelu, F.gelu),
    "silu": (lambda a: a * torch.sigmoid(a), lambda a: a / (1 + torch.exp(-a)), F.silu),
}  # fmt: skip


@pytest.mark.parametrize(("name", "function"), [(n, f) for n, functions in WRITTEN.items() for f in functions])
@pytest.mark.parametrize("dtype", [f32, f16, bf16])
def test_an_activation_is_known_however_it_is_written(record, name, function, dtype):
    recording = record(function, x(64, dtype=dtype))
    intent = recording.only("elementwise")
    assert intent.attr("expr") == (name, dtype, ("in", 0))
    tolerance = {f32: 2e-6, f16: 4e-3, bf16: 3e-2}[dtype]
    recording.assert_same(tolerance, tolerance)


@pytest.mark.parametrize(
    "near",
    [
        pytest.param(lambda a: a * torch.sigmoid(1.702 * a), id="quick gelu"),
        pytest.param(lambda a: 0.5 * a * (1.0 + torch.tanh(0.8 * (a + 0.044715 * a**3))), id="another scale"),
        pytest.param(lambda a: 0.5 * a * (1.0 + torch.tanh(0.7978845608 * (a + 0.0447 * a**3))), id="another cube"),
        pytest.param(lambda a: 0.5 * a * (1.0 + torch.tanh(0.7978845608 * (a + 0.044715 * a**2))), id="a square"),
        pytest.param(lambda a: a * 0.5 * (1.0 + torch.erf(a / 1.41)), id="another root"),
        pytest.param(lambda a: torch.clamp(a, max=7.0) * torch.sigmoid(torch.clamp(a, max=7.0)), id="clamped"),
        pytest.param(lambda a: torch.where(a > 50, a * 2, F.silu(a)), id="other values far out"),
    ],
)
def test_what_only_looks_like_an_activation_stays_an_expression(record, near):
    recording = record(near, x(64) * 4)
    found = [i.attr("expr")[0] for i in recording.parsed() if i.kind == "elementwise"]
    assert found
    assert not {"gelu", "gelu_tanh", "silu"} & set(found)
    recording.assert_same()


def test_an_expression_of_whole_numbers_or_two_inputs_is_no_activation():
    a, b = ("in", 0), ("in", 1)
    assert activation(("mul", torch.int64, a, ("neg", torch.int64, a))) is None
    assert activation(("mul", f32, a, ("sigmoid", f32, b))) is None
    assert activation(("max", f32, a, ("const", f32, 0.0))) == "relu"
    assert activation(("max", f32, a, ("const", f32, 0.1))) is None


@pytest.mark.parametrize("dtype", [f32, f16, bf16])
def test_a_gate_that_is_written_out_is_one(record, dtype):
    """transformers T5DenseGatedActDense with gelu_new."""
    recording = record(lambda g, u: new_gelu(g) * u, x(3, 8, dtype=dtype), x(3, 8, dtype=dtype))
    assert recording.kinds() == ["gated_activation"]
    assert recording.only("gated_activation").attr("act") == "gelu_tanh"
    tolerance = {f32: 2e-6, f16: 4e-3, bf16: 3e-2}[dtype]
    recording.assert_same(tolerance, tolerance)


# Epilogues


EPILOGUES = {
    "relu": (F.relu, "relu"), "silu": (F.silu, "silu"), "gelu": (F.gelu, "gelu"), "new gelu": (new_gelu, "gelu_tanh"),
    "sigmoid": (torch.sigmoid, "sigmoid"), "tanh": (torch.tanh, "tanh"),
}  # fmt: skip


@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("dtype", [f32, f16, bf16])
def test_an_activation_goes_into_the_product_before_it(record, name, dtype):
    function, found = EPILOGUES[name]
    weight, bias = x(16, 8, dtype=dtype) / 3, x(16, dtype=dtype)
    recording = record(lambda a, w, b: function(F.linear(a, w, b)), x(2, 3, 8, dtype=dtype), weight, bias)
    assert recording.kinds() == ["linear"]
    intent = recording.only("linear")
    assert (intent.attr("activation"), intent.attr("has_bias"), intent.attr("has_residual")) == (found, True, False)
    tolerance = {f32: 1e-5, f16: 8e-3, bf16: 5e-2}[dtype]
    recording.assert_same(tolerance, tolerance)


@pytest.mark.parametrize("dtype", [f32, f16, bf16])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_residual_goes_into_the_product_before_it(record, dtype, swapped):
    def step(a, w, r):
        y = F.silu(F.linear(a, w))
        return r + y if swapped else y + r

    recording = record(step, x(2, 3, 8, dtype=dtype), x(16, 8, dtype=dtype), x(2, 3, 16, dtype=dtype))
    assert recording.kinds() == ["linear"]
    intent = recording.only("linear")
    assert (intent.attr("activation"), intent.attr("has_residual")) == ("silu", True)
    tolerance = {f32: 1e-5, f16: 8e-3, bf16: 5e-2}[dtype]
    recording.assert_same(tolerance, tolerance)


def test_gpt2_products_take_in_residuals_of_another_shape(record):
    """transformers Conv1D: the product has two dimensions, the residual three."""

    def step(a, w, b, r):
        return torch.addmm(b, a.view(-1, 8), w).view(2, 3, 16) + r

    recording = record(step, x(2, 3, 8), x(8, 16), x(16), x(2, 3, 16))
    assert recording.kinds() == ["linear"]
    assert [r.shape for r in recording.only("linear").inputs] == [(6, 8), (8, 16), (16,), (6, 16)]
    recording.assert_same(1e-5, 1e-5)


def test_of_two_products_that_are_added_the_later_takes_the_earlier(record):
    recording = record(lambda a, v, w: F.linear(a, v) + F.linear(a, w), x(3, 8), x(4, 8), x(4, 8))
    assert [i.attr("has_residual") for i in recording.parsed()] == [False, True]
    recording.assert_same(1e-5, 1e-5)


NEAR = {
    "a product that is kept": lambda a, w, r: (lambda y: (y + r, y))(F.linear(a, w)),
    "a product that another reads": lambda a, w, r: (lambda y: (y + r, y.cumsum(0)))(F.linear(a, w)),
    "a product read twice": lambda a, w, r: (lambda y: F.relu(y) + y)(F.linear(a, w)),
    "a scaled residual": lambda a, w, r: torch.add(F.linear(a, w), r, alpha=2),
    "a difference": lambda a, w, r: F.linear(a, w) - r,
    "a wider sum": lambda a, w, r: F.linear(a, w) + r.double(),
    "the square": lambda a, w, r: F.linear(a, w).square(),
    "another activation": lambda a, w, r: F.leaky_relu(F.linear(a, w)),
    "in place": lambda a, w, r: r.add_(F.linear(a, w)),
    "a transposed residual": lambda a, w, r: F.linear(a, w).t() + r.t(),
}


@pytest.mark.parametrize("name", NEAR)
def test_what_only_looks_like_an_epilogue_stays_apart(record, name):
    recording = record(NEAR[name], x(3, 8), x(16, 8), x(3, 16))
    assert all(i.attrs == (("has_bias", False), ("transposed", True)) for i in recording.parsed() if i.kind == "linear")
    assert "elementwise" in recording.kinds()
    recording.assert_same(1e-5, 1e-5)


def test_an_input_of_the_product_changed_in_between_keeps_it_apart(record):
    def change(a, w, r):
        y = F.linear(a, w)
        a.zero_()
        return y + r

    recording = record(change, x(3, 8), x(16, 8), x(3, 16))
    assert recording.kinds() == ["linear", "fill", "elementwise"]
    recording.assert_same(1e-5, 1e-5)


# Norms of sums


def rms_norm(a: Tensor, weight: Tensor) -> Tensor:
    wide = a.to(f32)
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(a.dtype)


@pytest.mark.parametrize("dtype", [f32, f16, bf16])
def test_a_sum_and_its_norm_are_one_and_the_sum_stays_visible(record, dtype):
    def step(a, b, weight):
        total = a + b
        return rms_norm(total, weight) * 2, total + 1

    recording = record(step, *(x(2, 3, 8, dtype=dtype) for _ in range(2)), x(8, dtype=dtype))
    assert recording.kinds() == ["add_rms_norm", "elementwise", "elementwise"]
    intent = recording.only("add_rms_norm")
    assert [r.shape for r in (*intent.inputs, *intent.outputs)] == [(2, 3, 8), (2, 3, 8), (8,), (2, 3, 8), (2, 3, 8)]
    recording.assert_same()


@pytest.mark.parametrize("dtype", [f32, f16, bf16])
def test_a_layer_norm_takes_the_sum_before_it(record, dtype):
    def step(a, b, weight, bias):
        return F.layer_norm(a + b, (8,), weight, bias)

    recording = record(step, x(3, 8, dtype=dtype), x(3, 8, dtype=dtype), x(8, dtype=dtype), x(8, dtype=dtype))
    assert recording.kinds() == ["add_layer_norm"]
    recording.assert_same(2e-2 if dtype == bf16 else 4e-3 if dtype == f16 else 1e-5, 1e-2 if dtype == bf16 else 2e-3)


@pytest.mark.parametrize(
    "near",
    [
        pytest.param(lambda a, b, w: rms_norm(a - b, w), id="a difference"),
        pytest.param(lambda a, b, w: rms_norm(torch.add(a, b, alpha=2), w), id="a scaled term"),
        pytest.param(lambda a, b, w: rms_norm(a + 1, w), id="a number"),
        pytest.param(lambda a, b, w: rms_norm(a.add_(b), w), id="in place"),
        pytest.param(lambda a, b, w: rms_norm((a + b).t(), w), id="transposed"),
        pytest.param(lambda a, b, w: rms_norm(a + b.half(), w), id="two dtypes"),
    ],
)
def test_what_only_looks_like_a_norm_of_a_sum_stays_apart(record, near):
    recording = record(near, x(8, 8), x(8, 8), x(8))
    assert "add_rms_norm" not in recording.kinds()
    recording.assert_same(1e-6, 1e-6)


def test_a_sum_that_is_read_before_the_norm_is_made_in_time(record):
    def step(a, b, weight):
        total = a + b
        wide = total.to(f32)
        mean = wide.pow(2).mean(-1, keepdim=True)
        early = total.tanh().sum()
        return weight * (wide * torch.rsqrt(mean + 1e-5)).to(a.dtype), early

    recording = record(step, x(3, 8, dtype=f16), x(3, 8, dtype=f16), x(8, dtype=f16))
    assert "add_rms_norm" not in recording.kinds()
    recording.assert_same()


def test_a_term_overwritten_before_the_norm_is_added_in_time(record):
    def step(a, b, weight):
        total = a + b
        a.zero_()
        return rms_norm(total, weight)

    recording = record(step, x(3, 8), x(3, 8), x(8))
    assert recording.kinds() == ["elementwise", "fill", "rms_norm"]
    recording.assert_same()


def test_a_sum_overwritten_after_the_norm_has_its_old_value_in_it(record):
    def step(a, b, weight):
        total = a + b
        y = rms_norm(total, weight)
        total.zero_()
        return y, total

    recording = record(step, x(3, 8), x(3, 8), x(8))
    assert "add_rms_norm" not in recording.kinds()
    recording.assert_same()


# Whoever serves


def block(a, r, norm, up, down):
    h = rms_norm(a + r, norm)
    return h + F.linear(F.gelu(F.linear(h, up)), down)


def test_what_nobody_serves_stays_in_pieces(record):
    recording = record(block, x(3, 8), x(3, 8), x(8), x(16, 8), x(8, 16))
    whole, pieces = parse(recording.tape), parse(recording.tape, serves=nobody)
    assert [i.kind for i in whole] == ["add_rms_norm", "linear", "linear"]
    assert {len(i.ops) for i in pieces if i.kind in ("linear", "reduce")} == {1}
    assert not {"rms_norm", "add_rms_norm"} & {i.kind for i in pieces}
    check(pieces, recording.tape)
    for want, have in zip(recording.after(None), recording.after(pieces), strict=True):
        torch.testing.assert_close(have, want, rtol=1e-5, atol=1e-5)


def test_who_serves_one_kind_gets_that_and_no_other(record):
    recording = record(block, x(3, 8), x(3, 8), x(8), x(16, 8), x(8, 16))
    intents = parse(recording.tape, serves=lambda intent: intent.kind == "rms_norm")
    assert [i.kind for i in intents] == ["elementwise", "rms_norm", "linear", "elementwise", "linear", "elementwise"]
    check(intents, recording.tape)
