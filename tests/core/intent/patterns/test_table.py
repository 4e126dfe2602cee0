"""No row of the table is idle: without it, something that it recognises is left in pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from dsf.intent import PATTERNS, parse

f32, f16 = torch.float32, torch.float16


def x(*shape: int, dtype: torch.dtype = f32) -> Tensor:
    return torch.randn(shape).to(dtype)


def inverse_root(a: Tensor) -> Tensor:
    return torch.rsqrt(a.pow(2).mean(-1, keepdim=True) + 1e-5)


def turned(a: Tensor) -> Tensor:
    return torch.cat((-a[..., 4:], a[..., :4]), -1)


def paged(q, k, v, table, lengths):
    keys, values = (t[table].flatten(1, 2).transpose(1, 2) for t in (k, v))
    seen = torch.arange(8)[None] < lengths[:, None]
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=seen[:, None, None, :])


def into_rows(q, k, v):
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).contiguous()


def repeated(q, k, v):
    k, v = (t[:, :, None].expand(1, 2, 2, 5, 8).reshape(1, 4, 5, 8) for t in (k, v))
    return F.scaled_dot_product_attention(q, k, v)


def latent(q, rope, compressed, key):
    compressed = compressed.unsqueeze(1)
    return ((q @ compressed.mT + rope @ key.unsqueeze(1).mT) * 0.2).softmax(-1) @ compressed


def inside(a, w):
    b = a.float()
    return (b * inverse_root(b) * w).half()


def wide(a, c, s):
    b = a.float()
    return ((b * c) + (turned(b) * s)).half()


def halves(a, c, s):
    p, q = a.chunk(2, -1)
    return torch.cat((p * c - q * s, q * c + p * s), -1)


HEADS = (1, 2, 5, 8)
BYTES = torch.ones(8, 8, dtype=torch.int8)
SAMPLES: dict[str, tuple[str, Callable[..., Any], tuple[Any, ...]]] = {
    "paged attention": ("paged_attention", paged, (
        x(2, 2, 1, 8), x(5, 4, 2, 8), x(5, 4, 2, 8), torch.tensor([[0, 2], [1, 4]]), torch.tensor([3, 8]))),
    "attention into rows": ("attention", into_rows, (x(*HEADS), x(*HEADS), x(*HEADS))),
    "attention": ("attention", repeated, (x(1, 4, 5, 8), x(*HEADS), x(*HEADS))),
    "latent attention": ("latent_attention", latent, (x(2, 4, 5, 8), x(2, 4, 5, 4), x(2, 7, 8), x(2, 7, 4))),
    "attention, step by step": (
        "attention", lambda q, k, v: (q @ k.mT).softmax(-1) @ v, (x(*HEADS), x(*HEADS), x(*HEADS))),
    "rms norm, weight in float32": ("rms_norm", inside, (x(3, 8, dtype=f16), x(8))),
    "rms norm": ("rms_norm", lambda a, w: w * (a * inverse_root(a)), (x(3, 8), x(8))),
    "rms norm without weight": ("rms_norm", lambda a: a * inverse_root(a), (x(3, 8),)),
    "rotary in float32": ("rotary", wide, (x(3, 8, dtype=f16), x(3, 8), x(3, 8))),
    "rotary": ("rotary", lambda a, c, s: a * c + turned(a) * s, (x(3, 8), x(3, 8), x(3, 8))),
    "rotary, by halves": ("rotary", halves, (x(3, 8), x(3, 4), x(3, 4))),
    "gated activation": ("gated_activation", lambda g, u: F.silu(g) * (u + 1), (x(3, 4), x(3, 4))),
    "scaled product of bytes": (
        "scaled_linear", lambda a, w, r, c: torch._int_mm(a, w).float() * r * c,
        (torch.ones(20, 8, dtype=torch.int8), BYTES, x(20, 1), x(8))),
    "linear of quantised weights": (
        "quant_linear", lambda a, w, s: F.linear(a, w.float() * s), (x(3, 8), BYTES, x(8, 1))),
    "quantised": (
        "quantise", lambda a, s: torch.clamp(torch.round(a / s), -128, 127).to(torch.int8), (x(3, 8), x(3, 1))),
}  # fmt: skip


def test_every_row_has_a_sample():
    assert list(SAMPLES) == [row.name for row in PATTERNS]


@pytest.mark.parametrize("name", SAMPLES)
def test_no_row_is_idle(record, name):
    kind, function, inputs = SAMPLES[name]
    recording = record(function, *inputs)
    others = tuple(row for row in PATTERNS if row.name != name)
    found, without = (
        {intent.ops for intent in parse(recording.tape, rows) if intent.kind == kind} for rows in (PATTERNS, others)
    )
    assert found - without
