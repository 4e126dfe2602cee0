"""Sorting, the first k and counting: torch's order for equal numbers, NaN and infinities, on rows of any length."""

from __future__ import annotations

import pytest
import torch

from dsf.kernels.sorting import edges

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.int64, torch.int32, torch.bool)
formats = pytest.mark.parametrize("dtype", DTYPES, ids=str)
SHAPES = [((5, 33), 1), ((33, 5), 0), ((3, 7, 2), 1), ((1,), 0), ((0, 4), 1), ((3, 128), 1)]
LONG = [40_000, 3 * 6000 + 1, 100_003]


def numbers(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Many equal ones, NaN, both infinities and both zeros."""
    x = (torch.randn(shape) * 3).to(dtype)
    if dtype.is_floating_point and x.numel() > 16:
        odd = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 0.0, torch.nan, torch.inf], dtype=dtype)
        x.view(-1)[3 : 3 + 7] = odd
    return x


def places(bench, x: torch.Tensor, dim: int, k: int) -> list[torch.Tensor]:
    shape = (*x.shape[:dim], k, *x.shape[dim + 1 :])
    return [bench.out(shape, x.dtype), bench.out(shape, torch.int64)]


@formats
@pytest.mark.parametrize(("shape", "dim"), SHAPES, ids=str)
@pytest.mark.parametrize("descending", [False, True])
def test_sorting_is_torchs_stable_one(bench, shape, dim, descending, dtype):
    x = numbers(shape, dtype)
    run = bench.oracle("sort", [x], places(bench, x, dim, x.shape[dim]), dim=dim, descending=descending)
    run.agrees()


def test_a_single_number_is_sorted(bench):
    x = torch.tensor(3.0)
    outs = [bench.out((), x.dtype), bench.out((), torch.int64)]
    bench.oracle("sort", [x], outs, dim=0, descending=True).agrees()


@formats
@pytest.mark.parametrize(("shape", "dim"), [s for s in SHAPES if 0 not in s[0]], ids=str)
@pytest.mark.parametrize("largest", [False, True])
def test_the_first_k_are_the_first_of_the_sorted(bench, shape, dim, largest, dtype):
    x = numbers(shape, dtype)
    for k in {0, 1, min(3, shape[dim]), shape[dim]}:
        run = bench.oracle("top_k", [x], places(bench, x, dim, k), dim=dim, k=k, largest=largest)
        run.agrees()


@pytest.mark.parametrize("n", LONG)
@pytest.mark.parametrize("descending", [False, True])
def test_a_row_that_no_memory_holds_is_sorted_in_rounds(bench, n, descending):
    x = torch.randint(-5000, 5000, (2, n))
    bench.run("sort", [x], places(bench, x, 1, n), dim=1, descending=descending).agrees()


@pytest.mark.parametrize("n", [257, 1000, 6401])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("spread", [5, 1 << 25, 1 << 62])
@pytest.mark.parametrize("descending", [False, True])
def test_whole_numbers_of_any_size_are_sorted_exactly(bench, descending, spread, dtype, n):
    """Beyond what a float32 tells apart, and the extremes."""
    limits = torch.iinfo(dtype)
    x = torch.randint(-min(spread, limits.max), min(spread, limits.max), (n, 2), dtype=dtype)[:, 1]
    x[:4] = torch.tensor([limits.min, limits.max, 0, -1], dtype=dtype)
    run = bench.oracle if n < 500 else bench.run
    run("sort", [x], places(bench, x, 0, n), dim=0, descending=descending).agrees()


@pytest.mark.parametrize("descending", [False, True])
def test_a_long_row_of_scores_is_sorted(bench, descending):
    x = numbers((2, 30_001), torch.float16)
    bench.run("sort", [x], places(bench, x, 1, x.shape[1]), dim=1, descending=descending).agrees()


@pytest.mark.parametrize("n", LONG)
@pytest.mark.parametrize("k", [1, 50, 9000])
def test_the_first_k_of_a_long_row_are_those_of_its_pieces(bench, n, k):
    x = numbers((2, n), torch.float16)
    bench.run("top_k", [x], places(bench, x, 1, k), dim=1, k=k, largest=True).agrees()


PARTS = [(1000, 8, 0, 7), (5000, 128, 0, 127), (77, 10, -3, 4), (300, 7, 0.5, 9.25), (1, 1, 0, 1), (40, 256, -1, 1)]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("n", "bins", "low", "high"), PARTS, ids=str)
def test_what_is_counted_in_each_part_is_torchs(bench, n, bins, low, high, dtype):
    """The numbers at the edges, those next to them, NaN and what lies outside among them."""
    if dtype != torch.float32 and not dtype.is_floating_point and low != int(low):
        low = 0
    x = (torch.randn(n) * high).to(dtype)
    if dtype.is_floating_point and n > 3 * bins + 3:
        edge = torch.tensor(edges(low, high, bins, dtype)).to(dtype)
        x[: bins + 1], x[-1] = edge, torch.nan
        x[bins + 1 : 2 * bins + 2] = torch.nextafter(edge, torch.tensor(-1e4, dtype=dtype))
    run = bench.oracle("histogram", [x], [bench.out((bins,), dtype)], bins=bins, low=low, high=high)
    run.agrees()


def test_numbers_are_counted_as_they_lie(bench):
    x = torch.randint(0, 9, (7, 30, 2)).transpose(0, 2)[..., ::2]
    bench.run("histogram", [x], [bench.out((9,), x.dtype)], bins=9, low=0, high=8).agrees()
