"""What a chip could not beat, from its peak and its bandwidth alone."""

from __future__ import annotations

import pytest
import torch

from dsf.kernels.roofline import roofline


def linear(bench, m, n, k, dtype=torch.float16):
    x, w = torch.empty(m, k, dtype=dtype), torch.empty(n, k, dtype=dtype)
    return bench.intent("linear", [x, w], [torch.empty(m, n, dtype=dtype)], has_bias=False, transposed=True)


def test_a_large_product_is_bound_by_the_peak(bench):
    found = roofline(bench.chip, linear(bench, 2048, 2048, 2048))
    assert found.bound == "compute"
    assert found.fs == found.compute_fs == 2 * 2048**3 * 10**15 // bench.chip.peak_flops("float16")


def test_a_single_row_is_bound_by_the_bytes_of_the_weight(bench):
    found = roofline(bench.chip, linear(bench, 1, 2048, 1024))
    assert found.bound == "memory"
    assert found.nbytes == 2 * (2048 * 1024 + 1024 + 2048)
    assert found.fs == found.nbytes * 10**15 // bench.chip.main_memory.bandwidth


def attention(bench, queries, keys, **attrs):
    q, kv = torch.empty(1, 4, queries, 64).half(), torch.empty(1, 2, keys, 64).half()
    given = {"causal": False, "groups": 2, "has_mask": False, "scale": 0.125} | attrs
    return bench.intent("attention", [q, kv, kv], [torch.empty(1, 4, queries, 64).half()], **given)


def test_of_causal_attention_only_what_is_seen_counts(bench):
    """10 of 16 scores of four queries; with a window of two, 7."""
    whole = roofline(bench.chip, attention(bench, 4, 4)).flops
    assert roofline(bench.chip, attention(bench, 4, 4, causal=True)).flops == whole * 10 // 16
    assert roofline(bench.chip, attention(bench, 4, 4, causal=True, window=2)).flops == whole * 7 // 16


def test_a_repeated_operand_is_moved_once(bench):
    x = torch.empty(1, 512).half().expand(64, 512)
    intent = bench.intent("copy", [x], [torch.empty(64, 512).half()])
    assert roofline(bench.chip, intent).nbytes == 2 * (512 + 64 * 512)


def test_of_a_table_only_the_rows_that_are_taken_count(bench):
    ids, table = torch.empty(3, dtype=torch.int64), torch.empty(1000, 64).half()
    intent = bench.intent("embedding", [ids, table], [torch.empty(3, 64).half()])
    assert roofline(bench.chip, intent).nbytes == 2 * 3 * 64 * 2


def test_a_format_that_no_matrix_engine_has_is_bound_by_memory_alone(bench):
    found = roofline(bench.chip, linear(bench, 64, 64, 64, torch.float64))
    assert (found.compute_fs, found.bound) == (0, "memory")


@pytest.mark.parametrize("shape", [(1, 2048, 4096), (512, 1024, 2048), (2048, 4096, 4096)])
def test_no_predicted_time_beats_it(bench, shape):
    intent = linear(bench, *shape)
    _, program = bench.chosen(intent)
    assert bench.timing(program).duration_fs >= roofline(bench.chip, intent).fs
