"""The programs of small kernels as text, kept in tests/golden for review: `pytest --update-golden` writes them anew."""

from __future__ import annotations

import pytest
import torch

from dsf.isa.assembly import parse
from dsf.isa.binary import decode, encode

HALF = torch.float16


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
    "latent_attention": lambda b: (
        "latent_attention", [half(1, 16, 1, 64), half(1, 16, 1, 32), half(1, 40, 64), half(1, 40, 32)], (1, 16, 1, 64),
        {"causal": False, "has_mask": False, "scale": 0.125}),
    "paged_attention": lambda b: (
        "paged_attention", [half(2, 4, 1, 32), half(9, 16, 2, 32), half(9, 16, 2, 32), torch.arange(6).view(2, 3),
                            torch.tensor([40, 33])], (2, 4, 1, 32), {"groups": 2, "scale": 0.125}),
    "batch_matmul": lambda b: ("matmul", [half(3, 20, 40), half(3, 40, 24)], (3, 20, 24), {}),
    "rms_norm": lambda b: ("rms_norm", [half(9000, 64), half(64)], (9000, 64),
                           {"eps": 1e-5, "compute": torch.float32, "weight_after_cast": True}),
    "layer_norm": lambda b: ("layer_norm", [half(9000, 64), half(64), half(64)], (9000, 64),
                             {"axes": 1, "eps": 1e-5, "has_bias": True, "has_weight": True}),
    "gated_activation": lambda b: ("gated_activation", [half(70, 1536), half(70, 1536)], (70, 1536), {"act": "silu"}),
    "rotary": lambda b: ("rotary", [half(1, 4, 40, 64)] + [half(40, 64).expand(1, 4, 40, 64) for _ in range(2)],
                         (1, 4, 40, 64), {"style": "half"}),
    "softmax": lambda b: ("softmax", [half(700, 300)], (700, 300), {"dim": 1, "log": False}),
    "embedding": lambda b: ("embedding", [torch.arange(40), half(1000, 64)], (40, 64), {}),
    "index": lambda b: ("index", [half(1000, 64), torch.arange(40)], (40, 64), {"dims": (0,)}),
    "index_strangers": lambda b: ("index", [half(20, 3, 30), torch.arange(20), torch.arange(20)], (20, 3),
                                  {"dims": (0, 2)}),
    "gather": lambda b: ("gather", [half(40, 64), torch.zeros(40, 8, dtype=torch.int64)], (40, 8), {"dim": 1}),
    "scatter": lambda b: ("scatter", [half(40, 64), torch.zeros(40, 8, dtype=torch.int64), half(40, 8)], (40, 64),
                          {"dim": 1, "has_src": True, "reduce": "add", "value": None}),
    "index_put": lambda b: ("index_put", [half(100, 64), half(4, 64), torch.arange(4)], (100, 64),
                            {"accumulate": True, "dims": (0,)}),
    "kv_append": lambda b: ("kv_append", [half(1, 4, 40, 64), half(1, 4, 2, 64), torch.arange(2)], (1, 4, 40, 64),
                            {"dim": 2}),
    "sort": lambda b: ("sort", [half(700, 300)], (700, 300), {"descending": False, "dim": 1}, HALF, torch.int64),
    "sort_of_long_rows": lambda b: ("sort", [torch.arange(5_000)], (5_000,), {"descending": True, "dim": 0},
                                    torch.int64, torch.int64),
    "top_k": lambda b: ("top_k", [half(700, 128)], (700, 8), {"dim": 1, "k": 8, "largest": True}, HALF, torch.int64),
    "top_k_of_long_rows": lambda b: ("top_k", [half(2, 151_936)], (2, 50), {"dim": 1, "k": 50, "largest": True}, HALF,
                                     torch.int64),
    "histogram": lambda b: ("histogram", [torch.arange(300)], (8,), {"bins": 8, "high": 7, "low": 0}, torch.int64),
    "grouped_matmul": lambda b: ("grouped_linear", [half(40, 64), half(4, 48, 64), torch.arange(4)], (40, 48),
                                 {"transposed": True}),
    "add_rms_norm": lambda b: ("add_rms_norm", [half(9000, 64), half(9000, 64), half(64)], (9000, 64),
                               {"eps": 1e-5, "compute": torch.float32, "weight_after_cast": True}, HALF, HALF),
    "add_layer_norm": lambda b: ("add_layer_norm", [half(9000, 64), half(9000, 64), half(64), half(64)], (9000, 64),
                                 {"axes": 1, "eps": 1e-5, "has_bias": True, "has_weight": True}, HALF, HALF),
    "group_norm": lambda b: ("group_norm", [half(2, 32, 16, 16), half(32), half(32)], (2, 32, 16, 16),
                             {"eps": 1e-5, "groups": 8, "has_bias": True, "has_weight": True}),
    "quantise": lambda b: ("quantise", [half(700, 300), half(700, 1)], (700, 300), {"has_zero": False}, torch.int8),
    "rotary_interleaved": lambda b: ("rotary",
                                     [half(1, 4, 40, 64)] + [half(40, 64).expand(1, 4, 40, 64) for _ in range(2)],
                                     (1, 4, 40, 64), {"style": "interleaved"}),
    "fused_matmul": lambda b: ("linear", [half(40, 64), half(48, 64), half(48), half(40, 48)], (40, 48),
                               {"activation": "silu", "has_bias": True, "has_residual": True, "transposed": True}),
    "int8_matmul": lambda b: ("linear", [half(40, 64).char(), half(48, 64).char()], (40, 48),
                              {"has_bias": False, "transposed": True}, torch.int32),
    "quant_matmul": lambda b: ("scaled_linear", [half(40, 64).char(), half(96, 64).char(), half(40, 1), half(96)],
                               (40, 96), {"has_bias": False, "transposed": True}),
    "weight_quant_matmul": lambda b: ("quant_linear", [half(40, 64), half(96, 32).byte(), half(96, 2)], (40, 96),
                                      {"bits": 4, "group": 32, "has_bias": False, "has_zero": False}),
    "convolution": lambda b: ("convolution", [half(2, 16, 20, 20), half(24, 16, 2, 2), half(24)], (2, 24, 21, 21),
                              {"dilation": (1, 1), "groups": 1, "has_bias": True, "padding": (1, 1),
                               "stride": (1, 1)}),
    "pool": lambda b: ("pool", [half(2, 16, 20, 20)], (2, 16, 10, 10),
                       {"kernel": (2, 2), "op": "max", "padding": (0, 0), "stride": (2, 2)}),
    "concat": lambda b: ("concat", [half(1, 4, 40, 64), half(1, 4, 1, 64)], (1, 4, 41, 64), {"dim": 2}),
    "reduce": lambda b: ("reduce", [half(700, 300)], (700,), {"dims": (1,), "keepdim": False, "op": "sum"}),
    "arg_reduce": lambda b: ("arg_reduce", [half(700, 300)], (700,),
                             {"dim": 1, "has_values": False, "keepdim": False, "op": "argmax"}, torch.int64),
    "cumsum": lambda b: ("cumsum", [half(700, 300)], (700, 300), {"dim": 1}),
    "elementwise": lambda b: ("elementwise", [half(70, 300), half(70, 300)], (70, 300),
                              {"expr": ("add", HALF, ("mul", HALF, ("in", 0), ("in", 1)), ("const", HALF, 2.0))}),
    "copy": lambda b: ("copy", [half(300, 70).t()], (70, 300), {}),
    "fill": lambda b: ("fill", [], (70, 300), {"value": 2.0}),
    "iota": lambda b: ("iota", [], (700,), {"start": 0, "step": 1}, torch.int64),
}  # fmt: skip


def intent(bench, name: str):
    """The intent of that name, one output of the shape for each dtype, halves where none is named."""
    kind, inputs, shape, attrs, *dtypes = WANTED[name](bench)
    return bench.intent(kind, inputs, [bench.out(shape, dtype) for dtype in dtypes or [HALF]], **attrs)


@pytest.mark.parametrize("name", WANTED)
def test_the_listing_is_the_reviewed_one_and_reads_back(bench, golden, name):
    _, program = bench.chosen(intent(bench, name))
    golden(f"{bench.chip.name}-{name}", program.listing())
    assert parse(program.listing()) == program
    assert decode(encode(program)) == program


def test_every_kernel_that_a_chip_offers_has_a_listing(bench):
    served = {bench.chosen(intent(bench, name))[0].kind for name in WANTED}
    assert {kernel.kind for kernel in bench.kernels} <= served
