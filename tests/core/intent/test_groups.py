"""Blocks of a model: feed-forward and experts, by role."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dsf.intent import parse

f32, bf16 = torch.float32, torch.bfloat16


def x(*shape: int, dtype: torch.dtype = f32) -> Tensor:
    return torch.randn(shape).to(dtype)


def roles(intents) -> list[tuple[str, str, str]]:
    return [(i.kind, i.group.kind, i.group.role) for i in intents if i.group]


def plain(a, up, down):
    return F.linear(F.gelu(F.linear(a, up)), down)


def test_a_feed_forward_block_is_up_and_down(record):
    recording = record(plain, x(3, 8), x(16, 8), x(8, 16))
    assert roles(recording.parsed()) == [("linear", "ffn", "up"), ("linear", "ffn", "down")]
    apart = parse(recording.tape, serves=lambda intent: False)
    assert roles(apart) == [("linear", "ffn", "up"), ("elementwise", "ffn", "activation"), ("linear", "ffn", "down")]
    assert len({i.group.anchor for i in apart}) == 1


def test_two_linears_without_an_activation_are_no_block(record):
    recording = record(lambda a, up, down: F.linear(F.linear(a, up) * 2, down), x(3, 8), x(16, 8), x(8, 16))
    assert roles(recording.parsed()) == []


def test_an_activation_that_is_another_weight_is_no_block(record):
    recording = record(lambda a, up, down: F.linear(down, F.gelu(F.linear(a, up))), x(3, 8), x(16, 8), x(8, 16))
    assert roles(recording.parsed()) == []


TOKENS, EXPERTS, PER_TOKEN = 6, 4, 2


def experts(a, router, gate_up, down, *shared):
    """transformers grouped_mm_experts_forward, as Mixtral and Qwen 3 route to it."""
    scores = torch.softmax(F.linear(a, router).float(), -1)
    weights, chosen = torch.topk(scores, PER_TOKEN, dim=-1)
    weights = weights / weights.sum(-1, keepdim=True)
    expert, order = torch.sort(chosen.reshape(-1))
    sent = a[order // PER_TOKEN]
    ends = torch.cumsum(torch.histc(expert.float(), bins=EXPERTS, min=0, max=EXPERTS - 1), 0, dtype=torch.int32)
    gate, up = torch._grouped_mm(sent, gate_up.mT, offs=ends).chunk(2, -1)
    part = torch._grouped_mm(F.silu(gate) * up, down.mT, offs=ends)
    part = part * weights.reshape(-1)[order].unsqueeze(-1)
    back = torch.empty_like(order)
    back[order] = torch.arange(order.numel())
    y = part[back].view(TOKENS, PER_TOKEN, -1).sum(1).to(a.dtype)
    return y + F.linear(F.silu(F.linear(a, shared[0])) * F.linear(a, shared[1]), shared[2]) if shared else y


def weights(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (
        x(TOKENS, 16, dtype=dtype), x(EXPERTS, 16, dtype=dtype), x(EXPERTS, 32, 16, dtype=dtype) / 4,
        x(EXPERTS, 16, 16, dtype=dtype) / 4,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [f32, bf16])
def test_experts_are_one_block_by_role(record, dtype):
    recording = record(experts, *weights(dtype))
    found = roles(recording.parsed())
    assert {kind for _, kind, _ in found} == {"moe"}
    by_role = {role: [kind for kind, _, r in found if r == role] for _, _, role in found}
    assert by_role["router"] == ["linear"]
    assert by_role["top_k"][-1] == "top_k"
    assert "softmax" in by_role["top_k"]
    assert {"sort", "index", "histogram", "cumsum"} <= set(by_role["dispatch"])
    assert (by_role["gate_up"], by_role["activation"], by_role["down"]) == (
        ["grouped_linear"], ["gated_activation"], ["grouped_linear"]
    )  # fmt: skip
    assert {"index", "index_put", "reduce"} <= set(by_role["combine"])
    recording.assert_same(1e-2 if dtype == bf16 else 1e-5, 1e-2 if dtype == bf16 else 1e-5)


def test_an_expert_for_every_token_is_shared(record):
    shared = x(8, 16), x(8, 16), x(16, 8)
    recording = record(experts, *weights(f32), *shared)
    found = [(kind, role) for kind, block, role in roles(recording.parsed()) if role == "shared" and block == "moe"]
    assert sorted(found) == [("gated_activation", "shared"), *[("linear", "shared")] * 3]


def test_products_of_other_experts_are_no_block(record):
    """The second product has ends of its own: other rows go to other experts."""

    def step(a, up, down, ends, other):
        return torch._grouped_mm(F.silu(torch._grouped_mm(a, up, offs=ends)), down, offs=other)

    ends, other = (torch.tensor(e, dtype=torch.int32) for e in ([2, 6], [4, 6]))
    recording = record(step, x(6, 16, dtype=bf16), x(2, 16, 16, dtype=bf16), x(2, 16, 16, dtype=bf16), ends, other)
    assert roles(recording.parsed()) == []
