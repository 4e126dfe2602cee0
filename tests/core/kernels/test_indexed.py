"""Movement by index: what is picked and put is torch's, however the index lies; strays have the machine's words."""

from __future__ import annotations

import pytest
import torch

from dsf import errors

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.int64, torch.int8, torch.bool)
formats = pytest.mark.parametrize("dtype", DTYPES, ids=str)
summed = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int64], ids=str)


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = (torch.randn(shape) * 3).to(dtype)
    if dtype.is_floating_point and x.numel() > 2:
        x.view(-1)[:2] = torch.tensor([torch.nan, torch.inf]).to(dtype)
    return x


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values)


TAKEN = {  # dimensions, the index of each
    "rows": ((0,), (ints(0, -1, 6, 2, 2),)),
    "a matrix of int32 in the middle": ((1,), (torch.tensor([[0, -5], [3, 4]], dtype=torch.int32),)),
    "numbers of a row": ((2,), (ints(0, 4, -1),)),
    "neighbours": ((0, 1), (ints(0, 1), ints(-1, 2))),
    "strangers": ((0, 2), (ints(0, 1)[:, None], ints(-1, 2, 3)[None])),
    "all": ((0, 1, 2), (ints(0, 1, 5), ints(1, 1, 1), ints(4, 0, -1))),
    "one row": ((0,), (torch.tensor(3),)),
    "one number of each": ((2,), (torch.tensor(3),)),
    "nothing": ((1,), (torch.zeros(0, dtype=torch.int64),)),
}
takes = pytest.mark.parametrize("taken", TAKEN)


def subscript(
    x: torch.Tensor, dims: tuple[int, ...], ids: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor | slice, ...]:
    place = dict(zip(dims, ids, strict=True))
    return tuple(place[d].long() if d in place else slice(None) for d in range(x.dim()))


@formats
@takes
@pytest.mark.parametrize("turned", [False, True])
def test_an_index_takes_what_torch_takes(bench, taken, turned, dtype):
    dims, ids = TAKEN[taken]
    x = numbers(7, 5, 33, dtype=dtype)
    if turned:
        x, ids = x.transpose(0, 2), tuple(i % 5 for i in ids)
    wanted = x[subscript(x, dims, ids)]
    ids = torch.broadcast_tensors(*ids)
    run = bench.oracle("index", [x, *ids], [bench.out(wanted.shape, dtype)], dims=dims)
    run.equals(wanted)
    run.agrees()


@pytest.mark.parametrize("stray", [-6, 5, 1 << 40])
@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1)], ids=str)
def test_an_index_that_names_nothing_is_the_machines_error(bench, dims, stray):
    x = torch.randn(5, 5)
    ids = [ints(1, stray)] * len(dims)
    out = bench.out((2,) if len(dims) == 2 else (2, 5) if dims == (0,) else (5, 2), x.dtype)
    kernel, program = bench.chosen(bench.intent("index", [x, *ids], [out], dims=dims))
    with pytest.raises(errors.RowError, match=r"DSF-X030.*outside a table of"):
        kernel.reference(bench.intent("index", [x, *ids], [out], dims=dims), x, *ids)
    assert program is not None
    with pytest.raises(errors.RowError, match=r"DSF-X030.*outside a table of"):
        bench.execute(program, [x, *ids], [out])


@formats
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_gather_is_torchs_for_an_index_smaller_than_what_it_walks(bench, dim, dtype):
    x, shape = numbers(6, 5, 9, dtype=dtype), [4, 3, 7]
    shape[dim] = 11
    ids = torch.randint(0, x.shape[dim], shape)
    run = bench.oracle("gather", [x, ids], [bench.out(shape, dtype)], dim=dim)
    run.equals(torch.gather(x, dim, ids))


def test_gather_moves_rows_where_one_index_stands_for_each(bench):
    """As it does for hidden states: the index is expanded along the row."""
    x, ids = numbers(6, 5, 64), torch.randint(0, 5, (6, 3, 1)).expand(6, 3, 64)
    run = bench.oracle("gather", [x, ids], [bench.out((6, 3, 64), x.dtype)], dim=1)
    run.equals(torch.gather(x, 1, ids))
    assert not any("take" in str(ins) for ins, _ in run.program.instructions())


def test_gather_takes_a_number_from_a_row_that_no_memory_holds(bench):
    x, ids = torch.randn(3, 300_000), torch.randint(0, 300_000, (3, 1))
    run = bench.run("gather", [x, ids], [bench.out((3, 1), x.dtype)], dim=1)
    run.equals(torch.gather(x, 1, ids))


@summed
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize(("reduce", "value"), [(None, None), ("add", None), (None, 2)], ids=str)
def test_scatter_is_torchs(bench, dim, reduce, value, dtype):
    x, src = numbers(6, 5, 9, dtype=dtype), (torch.randn(4, 3, 7) * 3).to(dtype)
    ids = torch.randint(0, x.shape[dim], (4, 3, 7))
    inputs = [x, ids] if value is not None else [x, ids, src]
    attrs = {"dim": dim, "has_src": value is None, "reduce": reduce, "value": value}
    bench.oracle("scatter", inputs, [bench.out(x.shape, dtype)], **attrs).agrees()


@pytest.mark.parametrize("reduce", [None, "add"])
@pytest.mark.parametrize("rows", [5, 40_000])
def test_scatter_puts_rows_one_after_the_other(bench, reduce, rows):
    """Equal places: the last one wins, or all are added; on lines that fit on chip and on longer ones."""
    x, src = torch.randn(rows, 9), torch.randn(6, 9)
    ids = torch.tensor([1, 1, 3, 1, 0, 3])[:, None].expand(6, 9)
    attrs = {"dim": 0, "has_src": True, "reduce": reduce, "value": None}
    bench.run("scatter", [x, ids, src], [bench.out(x.shape, x.dtype)], **attrs).agrees()


@summed
@takes
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("spread", [False, True])
def test_index_put_is_torchs_with_equal_places(bench, taken, accumulate, spread, dtype):
    dims, ids = TAKEN[taken]
    x, ids = numbers(7, 5, 9, dtype=dtype), torch.broadcast_tensors(*(i % 2 for i in ids))
    src = (torch.randn(x[subscript(x, dims, ids)].shape) * 3).to(dtype)
    if spread and src.numel():
        src = src.flatten()[:1].expand(src.shape)
    run = bench.oracle("index_put", [x, src, *ids], [bench.out(x.shape, dtype)], dims=dims, accumulate=accumulate)
    run.agrees()


@formats
@pytest.mark.parametrize("dim", [1, 2])
def test_a_cache_is_appended_in_place_without_touching_the_rest(bench, dim, dtype):
    cache, shape = numbers(2, 50, 50, 16, dtype=dtype), [2, 50, 50, 16]
    shape[dim] = 3
    new, position = numbers(*shape, dtype=dtype), ints(7, 49, 9)
    wanted = cache.index_copy(dim, position, new)
    run = bench.oracle("kv_append", [cache, new, position], [cache], dim=dim)
    run.equals(wanted)
    moved = sum(o.nbytes * n for ins, n in run.program.instructions() for o in ins.operands[1:2])
    assert moved <= 3 * new.nbytes
    bench.run("kv_append", [cache, new, position], [bench.out(cache.shape, dtype)], dim=dim).equals(wanted)
