"""The programs of small kernels as text, kept in tests/golden for review: `pytest --update-golden` writes them anew."""

from __future__ import annotations

import pytest
import torch

from dsf.isa.assembly import parse
from dsf.isa.binary import decode, encode


def half(*shape: int) -> torch.Tensor:
    return torch.randn(shape).half()


WANTED = {
    "matmul": lambda b: ("linear", [half(40, 600), half(70, 600), half(70)], (40, 70),
                         {"has_bias": True, "transposed": True}),
    "attention": lambda b: ("attention", [half(1, 4, 40, 32), half(1, 2, 40, 32), half(1, 2, 40, 32)], (1, 4, 40, 32),
                            {"causal": True, "groups": 2, "has_mask": False, "scale": 0.125}),
    "decode_attention": lambda b: ("attention", [half(1, 4, 1, 32), half(1, 2, 40, 32), half(1, 2, 40, 32)],
                                   (1, 4, 1, 32),
                                   {"causal": False, "groups": 2, "has_mask": False, "scale": 0.125}),
    "rms_norm": lambda b: ("rms_norm", [half(9000, 64), half(64)], (9000, 64),
                           {"eps": 1e-5, "compute": torch.float32, "weight_after_cast": True}),
}  # fmt: skip


@pytest.mark.parametrize("name", WANTED)
def test_the_listing_is_the_reviewed_one_and_reads_back(bench, golden, name):
    kind, inputs, shape, attrs = WANTED[name](bench)
    _, program = bench.chosen(bench.intent(kind, inputs, [bench.out(shape, torch.float16)], **attrs))
    golden(f"{bench.chip.name}-{name}", program.listing())
    assert parse(program.listing()) == program
    assert decode(encode(program)) == program
