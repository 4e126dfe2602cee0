"""Attention over caches of other kinds: latent rows that all heads share, and pages that a table names."""

from __future__ import annotations

import pytest
import torch

from dsf.intent.flops import flops
from dsf.intent.meaning import meaning

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
formats = pytest.mark.parametrize("dtype", FLOATS, ids=str)
LATENT = [  # batch, heads, queries, keys, latent width, rope width
    (1, 1, 1, 1, 16, 16),
    (1, 16, 1, 70, 64, 16),
    (2, 3, 5, 5, 40, 8),
    (1, 2, 33, 33, 128, 64),
]
PAGED = [  # batch, heads, kv heads, queries, pages, page, pages of a sequence, width
    (1, 2, 1, 1, 3, 16, 2, 32),
    (3, 4, 2, 1, 9, 8, 4, 16),
    (2, 2, 2, 5, 7, 16, 3, 64),
    (1, 3, 1, 1, 1, 1, 1, 16),
]


def close(run, dtype, size):
    """Within a few roundings of the meaning, computed in float64."""
    wide = [t.double() if t.is_floating_point() else t for t in run.inputs]
    intent = run.intent
    wanted = meaning(intent, *wide)[0].double()
    run.within(wanted, max(8 * torch.finfo(dtype).eps, 1e-5) * size)
    run.agrees()


def latent(bench, size, dtype, method="run", causal=False, mask=None, **options):
    batch, heads, queries, keys, width, rope = size
    inputs = [torch.randn(batch, heads, queries, width), torch.randn(batch, heads, queries, rope),
              torch.randn(batch, keys, width), torch.randn(batch, keys, rope)]  # fmt: skip
    inputs = [t.to(dtype) for t in inputs] + ([] if mask is None else [mask])
    out = bench.out((batch, heads, queries, width), dtype)
    scale = (width + rope) ** -0.5
    return getattr(bench, method)("latent_attention", inputs, [out], causal=causal, has_mask=mask is not None,
                                  scale=scale, **options)  # fmt: skip


@formats
@pytest.mark.parametrize("size", LATENT, ids=str)
def test_latent_attention_is_what_it_means(bench, size, dtype):
    run = latent(bench, size, dtype, "oracle")
    close(run, dtype, run.inputs[2].abs().max().item())


def test_latent_attention_may_be_causal_or_masked(bench):
    size = (2, 3, 7, 7, 32, 16)
    for options in ({"causal": True}, {"mask": torch.rand(2, 3, 7, 7) > 0.3}, {"mask": torch.randn(2, 3, 7, 7).half()}):
        run = latent(bench, size, torch.float16, **options)
        close(run, torch.float16, run.inputs[2].abs().max().item())


def test_latent_attention_counts_both_products_of_its_scores(bench):
    run = latent(bench, (1, 16, 16, 64, 64, 16), torch.float16)
    assert flops(run.intent) == 2 * 16 * 16 * 64 * (64 + 16 + 64) == 2 * run.time.macs


def paged(bench, size, dtype, method="run", lengths=None, whole=torch.int32, table=None):
    batch, heads, kv_heads, queries, pages, page, own, width = size
    q = torch.randn(batch, heads, queries, width).to(dtype)
    k, v = (torch.randn(pages, page, kv_heads, width).to(dtype) for _ in range(2))
    table = torch.stack([torch.randperm(pages)[:own] for _ in range(batch)]) if table is None else table
    lengths = torch.randint(queries, own * page + 1, (batch,)) if lengths is None else torch.tensor(lengths)
    out = bench.out(q.shape, dtype)
    return getattr(bench, method)("paged_attention", [q, k, v, table.to(whole), lengths.to(whole)], [out],
                                  groups=heads // kv_heads, scale=width**-0.5)  # fmt: skip


@pytest.mark.parametrize("whole", [torch.int32, torch.int64], ids=str)
@formats
@pytest.mark.parametrize("size", PAGED, ids=str)
def test_paged_attention_is_what_it_means(bench, size, dtype, whole):
    run = paged(bench, size, dtype, "oracle", whole=whole)
    close(run, dtype, run.inputs[2].abs().max().item())


def test_what_lies_behind_a_sequences_end_is_not_seen(bench):
    """Not even where the table names no page there."""
    size = (2, 2, 1, 1, 4, 8, 3, 16)
    seen = paged(bench, size, torch.float16, lengths=[8, 5], table=torch.tensor([[2, 0, 0], [1, 0, 0]]))
    inputs = [t.clone() for t in seen.inputs]
    inputs[3] = torch.tensor([[2, -1, 99], [1, 77, -5]], dtype=torch.int32)
    again = bench.run("paged_attention", inputs, [bench.out(seen.output.shape, torch.float16)], groups=2, scale=0.25,
                      kernel=seen.kernel)  # fmt: skip
    assert torch.equal(again.output, seen.output)


def test_a_sequence_of_no_tokens_gives_zeros(bench):
    run = paged(bench, (2, 2, 1, 1, 4, 8, 3, 16), torch.float16, lengths=[0, 9])
    assert torch.equal(run.output[0], torch.zeros_like(run.output[0]))
    assert run.output[1].abs().sum() > 0
