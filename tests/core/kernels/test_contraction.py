"""Linear layers and products of matrices, as every chip computes them: summed in float32 and rounded once.

Bounds. Products of 16-bit numbers are exact in float32; products of float32 numbers and every sum add u32 = 2^-24. K
terms and a bias, in whatever order: (K + 2) * u32 of the sum of magnitudes. The stored result adds half a unit of its
last place.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from dsf.intent.flops import flops

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
U32 = 2.0**-24

formats = pytest.mark.parametrize("dtype", FLOATS, ids=str)


def bound(magnitudes: torch.Tensor, depth: int, wanted: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    sums = (depth + 2) * U32 * magnitudes
    narrow = torch.finfo(dtype)
    return sums + 1.01 * narrow.eps / 2 * (wanted.abs() + sums) + narrow.tiny * narrow.eps


def linear(bench, x, w, bias=None, transposed=True, out=None, exact=False, method="run"):
    """The run of a linear layer, within its bound of the product in float64."""
    inputs = [x, w] if bias is None else [x, w, bias]
    columns = w.shape[0] if transposed else w.shape[1]
    out = bench.out((*x.shape[:-1], columns), x.dtype) if out is None else out
    run = getattr(bench, method)("linear", inputs, [out], has_bias=bias is not None, transposed=transposed, exact=exact)
    weight = (w.t() if transposed else w).double()
    wanted, magnitudes = x.double() @ weight, x.double().abs() @ weight.abs()
    if bias is not None:
        wanted, magnitudes = wanted + bias.double(), magnitudes + bias.double().abs()
    run.within(wanted, bound(magnitudes, x.shape[-1], wanted, out.dtype))
    run.agrees()
    if out.dtype != torch.float32:
        assert run.ulps(wanted) <= 1
    return run


def operands(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(m, k).to(dtype), (torch.randn(n, k) / k**0.5).to(dtype), torch.randn(n).to(dtype)


SIZES = [
    (1, 1, 1),
    (1, 16, 16),
    (1, 576, 64),
    (16, 16, 16),
    (17, 1, 5),
    (37, 53, 70),
    (128, 64, 96),
    (3, 131, 257),
    (130, 258, 33),
]


@formats
@pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_linear_layer_is_summed_in_float32_and_rounded_once(bench, size, has_bias, dtype):
    x, w, b = operands(*size, dtype)
    linear(bench, x, w, b if has_bias else None)


@pytest.mark.parametrize("transposed", [True, False], ids=["N K", "K N"])
@formats
def test_a_weight_is_read_from_either_order(bench, transposed, dtype):
    x, w, b = operands(37, 53, 70, dtype)
    linear(bench, x, w if transposed else w.t().contiguous(), b, transposed)
    linear(bench, x, w.t().contiguous().t() if transposed else w.t(), b, transposed)


LIES = {
    "padded rows": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    "transposed": lambda x: x.t().contiguous().t(),
    "repeated rows": lambda x: x[:1].expand_as(x),
    "every other row": lambda x: torch.stack([x, x], 1)[:, 0],
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("which", ["x", "w"])
def test_operands_are_read_as_they_lie(bench, lie, which):
    x, w, b = operands(37, 53, 70, torch.float16)
    linear(bench, LIES[lie](x) if which == "x" else x, LIES[lie](w) if which == "w" else w, b)


@pytest.mark.parametrize(
    "place", [lambda b: torch.stack([b, b], 1)[:, 0], lambda b: b[:1].expand_as(b)], ids=["apart", "one"]
)
def test_a_bias_is_read_as_it_lies(bench, place):
    x, w, b = operands(37, 300, 70, torch.float16)
    linear(bench, x, w, place(b))


def test_leading_dimensions_are_rows_where_they_lie_evenly_and_batches_where_not(bench):
    x, w, _ = operands(6 * 5, 24, 40, torch.float16)
    linear(bench, x.view(6, 5, 40), w)
    linear(bench, x.view(6, 5, 40)[:, 1:4], w)
    linear(bench, x.view(6, 5, 40).transpose(0, 1), w)
    linear(bench, x.view(2, 3, 5, 40)[:, 1:, 2:], w)
    linear(bench, x[0], w)


def test_the_last_position_alone_is_multiplied(bench):
    """What a language model's head computes: x[:, -1:] of [batch, seq, width]."""
    x, w, _ = operands(2 * 7, 33, 40, torch.float16)
    linear(bench, x.view(2, 7, 40)[:, -1:], w)


def test_a_result_goes_where_its_window_lies(bench):
    x, w, b = operands(37, 53, 70, torch.float16)
    linear(bench, x, w, b, out=bench.out((37, 53), torch.float16, (100, 1)))


@pytest.mark.parametrize("out", FLOATS, ids=str)
def test_a_result_may_have_another_format(bench, out):
    x, w, _ = operands(17, 19, 23, torch.float16)
    linear(bench, x, w, out=bench.out((17, 19), out))


SHAPES = [
    ((1, 1), (1, 1)),
    ((5, 7, 9), (5, 9, 3)),
    ((2, 3, 5, 7), (2, 3, 7, 4)),
    ((17, 33), (33, 18)),
    ((4, 1, 64), (4, 64, 31)),
]


def matmul(bench, a, b, method="run"):
    wanted = a.double() @ b.double()
    run = getattr(bench, method)("matmul", [a, b], [bench.out(wanted.shape, a.dtype)])
    run.within(wanted, bound(a.double().abs() @ b.double().abs(), a.shape[-1], wanted, a.dtype))
    run.agrees()
    return run


@formats
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_a_product_is_summed_in_float32_and_rounded_once(bench, shapes, dtype):
    matmul(bench, *(torch.randn(s).to(dtype) for s in shapes))


def test_batches_may_repeat_be_permuted_or_skip(bench):
    a, b = torch.randn(4, 3, 5, 8).half(), torch.randn(4, 3, 8, 6).half()
    matmul(bench, a[:1].expand(4, 3, 5, 8), b)
    matmul(bench, a, b[:, :1].expand(4, 3, 8, 6))
    matmul(bench, a.transpose(0, 1).contiguous().transpose(0, 1), b)
    matmul(bench, a, b.transpose(2, 3).contiguous().transpose(2, 3))
    matmul(bench, torch.randn(4, 5, 3, 8).half().transpose(1, 2), b)
    matmul(bench, torch.randn(8, 3, 5, 8).half()[::2], b)


@formats
def test_planes_and_oracle_agree_on_products(bench, dtype):
    """In the fast mode and in the one that is the definition: float64 slabs, rounded to the accumulator."""
    x, w, b = operands(37, 53, 70, dtype)
    linear(bench, x, w, b, method="oracle")
    linear(bench, x, w, None, method="oracle", exact=True)
    linear(bench, torch.randn(1, 600).to(dtype), torch.randn(40, 600).to(dtype), method="oracle")
    matmul(bench, torch.randn(2, 3, 5, 70).to(dtype), torch.randn(2, 3, 70, 9).to(dtype), method="oracle")


def test_infinities_and_nan_reach_the_results_they_meet(bench):
    x, w, _ = operands(3, 4, 20, torch.float16)
    x[0, 3], x[1, 5] = torch.inf, torch.nan
    run = bench.run("linear", [x, w], [bench.out((3, 4), x.dtype)], has_bias=False, transposed=True)
    assert run.output[0].isinf().all()
    assert run.output[1].isnan().all()
    assert run.output[2].isfinite().all()


def test_a_sum_beyond_the_format_is_infinite(bench):
    """300 * 300 * 16 is beyond 65504."""
    x = torch.full((1, 16), 300.0).half()
    run = bench.run("linear", [x, x], [bench.out((1, 1), x.dtype)], has_bias=False, transposed=True)
    assert run.output.item() == torch.inf


# Matrix FLOPs. Tiles are [m, k, n]: 16 x 16 x 16 for the 16-bit formats and 16 x 8 x 16 for float32, on both chips.

PADDED = [  # m, n, k, padded multiply-adds for 16 bits, and for float32
    ((1, 1, 1), 16 * 16 * 16, 16 * 16 * 8),
    ((1, 576, 64), 16 * 576 * 64, 16 * 576 * 64),
    ((37, 53, 70), 48 * 64 * 80, 48 * 64 * 72),
    ((130, 258, 33), 144 * 272 * 48, 144 * 272 * 40),
    ((17, 600, 1000), 32 * 608 * 1008, 32 * 608 * 1000),
]


@pytest.mark.parametrize(("size", "half", "single"), PADDED, ids=str)
def test_products_are_padded_to_whole_tiles_and_no_further(bench, size, half, single):
    for dtype, wanted in ((torch.float16, half), (torch.bfloat16, half), (torch.float32, single)):
        x, w, b = operands(*size, dtype)
        for bias in (None, b):
            inputs = [x, w] if bias is None else [x, w, bias]
            outputs = [bench.out((x.shape[0], w.shape[0]), dtype)]
            intent = bench.intent("linear", inputs, outputs, has_bias=bias is not None, transposed=True)
            _, program = bench.chosen(intent)
            assert bench.timing(program).macs == wanted


@pytest.mark.parametrize("size", [(16, 16, 16), (128, 576, 64), (256, 48, 1536), (64, 4096, 32)], ids=str)
@formats
def test_whole_tiles_are_not_padded(bench, size, dtype):
    """Twice the multiply-adds of the program are torch's FLOPs of the operator."""
    x, w, _ = operands(*size, dtype)
    intent = bench.intent(
        "linear", [x, w], [bench.out((x.shape[0], w.shape[0]), dtype)], has_bias=False, transposed=True
    )
    with FlopCounterMode(display=False) as counter:
        F.linear(x, w)
    assert 2 * bench.timing(bench.chosen(intent)[1]).macs == flops(intent) == counter.get_total_flops()


def test_each_batch_is_padded_alone(bench):
    """Six products of 5 x 7 x 70: padded to 16 x 16 x 80 each."""
    a, b = torch.randn(2, 3, 5, 70).half(), torch.randn(2, 3, 70, 7).half()
    intent = bench.intent("matmul", [a, b], [bench.out((2, 3, 5, 7), a.dtype)])
    with FlopCounterMode(display=False) as counter:
        torch.bmm(a.view(6, 5, 70), b.view(6, 70, 7))
    assert bench.timing(bench.chosen(intent)[1]).macs == 6 * 16 * 16 * 80
    assert flops(intent) == counter.get_total_flops() == 2 * 6 * 5 * 7 * 70
