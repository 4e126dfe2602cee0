"""Products of rows with their expert's matrix: whatever the ends say, which only the device knows."""

from __future__ import annotations

import pytest
import torch

from dsf.kernels.experts import Groups

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
SIZES = [(10, 4, 16, 32), (100, 3, 40, 24), (7, 8, 33, 17), (300, 5, 64, 48), (1, 1, 5, 3), (8, 64, 32, 40)]
ENDS = {
    "all rows": lambda rows, e: torch.cat([torch.sort(torch.randint(0, rows + 1, (e - 1,)))[0], torch.tensor([rows])]),
    "some rows": lambda rows, e: torch.sort(torch.randint(0, rows + 1, (e,)))[0],
    "nobody's": lambda rows, e: torch.zeros(e, dtype=torch.int64),
    "one expert's": lambda rows, e: torch.where(torch.arange(e) < e // 2, 0, rows),
    "going back": lambda rows, e: torch.randint(0, rows + 1, (e,)),
    "beyond the rows": lambda rows, e: torch.arange(1, e + 1) * (rows // e + 1),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("ends", ENDS)
def test_every_row_meets_its_experts_matrix(bench, ends, sizes, dtype):
    rows, experts, depth, width = sizes
    transposed, whole = rows % 2 == 0, torch.int32 if experts % 2 else torch.int64
    x = torch.randn(rows, depth).to(dtype)
    w = torch.randn((experts, width, depth) if transposed else (experts, depth, width)).to(dtype)
    run = bench.run if rows * experts > 100 else bench.oracle
    found = run("grouped_linear", [x, w, ENDS[ends](rows, experts).to(whole)], [bench.out((rows, width), dtype)],
                transposed=transposed)  # fmt: skip
    found.agrees()


def test_operands_lie_as_they_lie(bench):
    x, w = torch.randn(20, 80).half()[:, :40], torch.randn(6, 40, 24).half()[::2].transpose(1, 2)
    out = torch.zeros(20, 50).half()[:, 3:27]
    run = bench.run("grouped_linear", [x, w, torch.tensor([3, 3, 19])], [out], transposed=True)
    run.agrees()


def test_a_row_of_nan_or_infinity_stays_its_own(bench):
    x, w = torch.randn(40, 16).half(), torch.randn(4, 16, 32).half()
    x[3], x[17] = torch.nan, torch.inf
    bench.run("grouped_linear", [x, w, torch.tensor([10, 10, 30, 35])], [bench.out((40, 32), x.dtype)],
              transposed=False).agrees()  # fmt: skip


@pytest.mark.parametrize("rows", [1, 7, 64, 100, 4096, 32_768])
@pytest.mark.parametrize("experts", [1, 8, 128, 256])
def test_there_are_tiles_for_the_worst_division_and_no_more(rows, experts):
    """The worst: every expert but one has a single row more than whole tiles."""
    g = Groups(rows, experts, 1, 1)
    some = min(experts, rows)
    lengths = [1] * (some - 1)
    lengths.append(rows - sum(lengths))
    assert g.tiles >= sum(-(-n // g.height) for n in lengths)
    assert g.tiles <= rows // g.height + experts
