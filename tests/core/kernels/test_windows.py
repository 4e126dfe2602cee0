"""Convolutions and pooling in one to three dimensions are torch's: groups, dilation, padding, ragged ends, NaN."""

from __future__ import annotations

import pytest
import torch

from dsf.intent.meaning import meaning

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
formats = pytest.mark.parametrize("dtype", FLOATS, ids=str)

CONVOLUTIONS = {  # x, w, stride, padding, dilation, groups
    "same size": ((2, 6, 9, 8), (4, 6, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    "groups, dilated": ((2, 6, 9, 8), (4, 3, 3, 2), (2, 1), (1, 0), (2, 1), 2),
    "one dimension, wide padding": ((1, 3, 16), (5, 3, 4), (2,), (3,), (1,), 1),
    "three dimensions": ((1, 4, 5, 6, 7), (8, 2, 2, 3, 3), (1, 2, 1), (1, 1, 2), (1, 1, 1), 2),
    "each channel alone": ((2, 8, 9, 8), (8, 1, 3, 3), (1, 1), (1, 1), (1, 1), 8),
    "one place": ((2, 8, 9, 8), (5, 8, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    "one place, strided": ((2, 8, 9, 8), (5, 8, 1, 1), (2, 2), (0, 0), (1, 1), 1),
    "patches": ((1, 3, 64, 64), (8, 3, 16, 16), (16, 16), (0, 0), (1, 1), 1),
    "a stem": ((1, 3, 60, 64), (8, 3, 7, 7), (4, 4), (3, 3), (1, 1), 1),
    "padding alone is seen": ((1, 1, 2, 2), (1, 1, 2, 2), (3, 3), (3, 3), (1, 1), 1),
}
TRANSPOSED = {  # and what is added to the size of the result
    "doubled": ((2, 6, 5, 4), (6, 4, 3, 3), (2, 2), (1, 1), (1, 1), 1, (1, 1)),
    "groups, dilated": ((2, 6, 5, 4), (6, 2, 3, 2), (3, 2), (0, 1), (2, 1), 2, (0, 0)),
    "one dimension": ((1, 6, 7), (6, 2, 4), (2,), (1,), (1,), 1, (0,)),
}


def convolved(bench, dtype, x, w, bias, case, extra=None):
    _, _, stride, padding, dilation, groups = case[:6]
    attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "has_bias": bias is not None}
    shape = torch.convolution(x.float(), w.float(), None, stride, padding, dilation, extra is not None,
                              extra or [0] * len(stride), groups).shape  # fmt: skip
    if extra is not None:
        attrs |= {"transposed": True, "output_padding": extra}
    inputs = [x, w] if bias is None else [x, w, bias]
    run = bench.oracle("convolution", inputs, [bench.out(shape, dtype)], **attrs)
    run.agrees()
    (wanted,) = meaning(run.intent, *inputs)
    assert run.kernel.rounding.excess(run.output, wanted) is None


@formats
@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("bias", [False, True])
def test_a_convolution_is_torchs(bench, name, bias, dtype):
    case = CONVOLUTIONS[name]
    x, w = torch.randn(case[0]).to(dtype), torch.randn(case[1]).to(dtype)
    convolved(bench, dtype, x, w, torch.randn(case[1][0]).to(dtype) if bias else None, case)


@formats
@pytest.mark.parametrize("name", TRANSPOSED)
@pytest.mark.parametrize("bias", [False, True])
def test_a_transposed_convolution_is_torchs(bench, name, bias, dtype):
    case = TRANSPOSED[name]
    x, w = torch.randn(case[0]).to(dtype), torch.randn(case[1]).to(dtype)
    outputs = case[1][1] * case[5]
    convolved(bench, dtype, x, w, torch.randn(outputs).to(dtype) if bias else None, case, case[6])


@formats
def test_operands_lie_as_they_lie(bench, dtype):
    """Channels last among them."""
    case = CONVOLUTIONS["same size"]
    x, w = (torch.randn(shape).to(dtype).transpose(2, 3) for shape in case[:2])
    convolved(bench, dtype, x, w, None, case)
    last = torch.randn(case[0]).to(dtype).to(memory_format=torch.channels_last)
    convolved(bench, dtype, last, w, None, case)


POOLS = {  # shape, window, stride, padding, dilation, ceil, count_padding
    "halved": ((2, 3, 9, 8), (2, 2), (2, 2), (0, 0), None, False, True),
    "ragged": ((2, 3, 9, 8), (3, 3), (2, 1), (1, 1), None, True, True),
    "ragged, what is there": ((2, 3, 9, 8), (3, 3), (2, 2), (1, 1), None, True, False),
    "one dimension": ((3, 17), (4,), (3,), (2,), None, False, False),
    "three dimensions": ((2, 2, 5, 6, 7), (2, 3, 2), (1, 2, 2), (1, 1, 0), None, True, True),
    "a long window": ((2, 3, 30, 8), (20, 8), (1, 1), (0, 0), None, False, True),
    "dilated": ((2, 3, 12, 12), (3, 3), (1, 1), (1, 1), (2, 2), False, True),
}


@formats
@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("op", ["max", "mean"])
def test_a_pool_is_torchs(bench, op, name, dtype):
    shape, kernel, stride, padding, dilation, ceil, count_padding = POOLS[name]
    if op == "mean" and dilation is not None:
        count_padding, dilation = False, None
    attrs = {"op": op, "kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation, "ceil": ceil,
             "count_padding": count_padding}  # fmt: skip
    x = torch.randn(shape).to(dtype)
    wide = bench.intent("pool", [x], [bench.out((), torch.float32)], **attrs)
    out = bench.out(meaning(wide, x)[0].shape, dtype)
    bench.oracle("pool", [x], [out], **attrs).agrees()
    x.view(-1)[3], x.view(-1)[50:52] = torch.nan, torch.inf
    bench.run("pool", [x], [out], **attrs).agrees()
