"""Linear layers around a product: activations, residuals, int8 and int4, each as its meaning says."""

from __future__ import annotations

import pytest
import torch

from dsf.intent.meaning import meaning

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
formats = pytest.mark.parametrize("dtype", FLOATS, ids=str)
SIZES = [(5, 64, 100), (7, 33, 40), (130, 96, 2050), (1, 7, 5), (20, 300, 64)]


def means_it(run) -> None:
    """The program is its reference and the intent's meaning, both to within what the kernel states."""
    run.agrees()
    (wanted,) = meaning(run.intent, *run.inputs)
    assert run.kernel.rounding.excess(run.output, wanted) is None


def int8(*shape: int) -> torch.Tensor:
    return torch.randint(-128, 128, shape).char()


@formats
@pytest.mark.parametrize("act", [None, "relu", "silu", "gelu", "gelu_tanh", "sigmoid", "tanh"])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_each_step_rounds_its_own_result(bench, bias, residual, act, dtype):
    x, w, rest = torch.randn(3, 7, 50).to(dtype), torch.randn(33, 50).to(dtype) / 7, torch.randn(3, 7, 33).to(dtype)
    inputs = [x, w, *([torch.randn(33).to(dtype)] if bias else []), *([rest] if residual else [])]
    attrs = {"has_bias": bias, "transposed": True, "activation": act, "has_residual": residual}
    means_it(bench.oracle("linear", inputs, [bench.out((3, 7, 33), dtype)], **attrs))
    x[0, 1], x[0, 2] = torch.nan, torch.inf
    means_it(bench.run("linear", inputs, [bench.out((3, 7, 33), dtype)], **attrs))


def test_the_residual_may_be_where_the_result_goes(bench):
    """As in `x += layer(h)`: the product waits beside it."""
    x, w, total = torch.randn(9, 16).half(), torch.randn(24, 16).half(), torch.randn(9, 24).half()
    attrs = {"has_bias": False, "transposed": True, "activation": None, "has_residual": True}
    means_it(bench.oracle("linear", [x, w, total], [total], **attrs))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_int8_are_whole(bench, transposed, sizes):
    """Columns that are no multiple of 32 among them, which Ascend's cube does not multiply."""
    m, n, k = sizes
    x, w = int8(m, k), int8(n, k) if transposed else int8(k, n)
    run = bench.oracle("linear", [x, w], [bench.out((m, n), torch.int32)], has_bias=False, transposed=transposed)
    means_it(run)
    assert torch.equal(run.output, (x.double() @ (w.T if transposed else w).double()).int())


@formats
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_int8_is_scaled_by_row_and_column(bench, bias, sizes, dtype):
    m, n, k = sizes
    inputs = [
        int8(m, k),
        int8(n, k),
        torch.rand(m, 1),
        torch.rand(n) / 1000,
        *([torch.randn(n).to(dtype)] if bias else []),
    ]
    means_it(bench.oracle("scaled_linear", inputs, [bench.out((m, n), dtype)], has_bias=bias, transposed=True))


def test_scales_are_those_of_every_leading_dimension(bench):
    inputs = [int8(2, 3, 40), int8(40, 64), torch.rand(2, 3, 1).half(), torch.rand(64).half()]
    run = bench.oracle(
        "scaled_linear", inputs, [bench.out((2, 3, 64), torch.float16)], has_bias=False, transposed=False
    )
    means_it(run)


@formats
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("sizes", [(5, 64, 128, 32), (7, 33, 40, 8), (1, 7, 64, 64), (130, 96, 256, 128)], ids=str)
def test_weights_are_made_of_whole_numbers_group_by_group(bench, sizes, zero, bits, dtype):
    m, n, k, group = sizes
    w = torch.randint(0, 256, (n, k // 2)).byte() if bits == 4 else int8(n, k)
    inputs = [torch.randn(m, k).to(dtype), w, torch.rand(n, k // group).to(dtype) / 10]
    inputs += [torch.randint(0, 16, (n, k // group)).to(dtype)] if zero else []
    inputs += [torch.randn(n).to(dtype)] if m % 2 else []
    attrs = {"bits": bits, "group": group, "has_zero": zero, "has_bias": bool(m % 2)}
    means_it(bench.oracle("quant_linear", inputs, [bench.out((m, n), dtype)], **attrs))
