"""Training: three steps of AdamW on a tiny Llama, forward, backward and optimizer, equal the CPU's and are parsed."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from tests.families.conftest import Readings, tiny
from torch import nn

from dsf import device
from dsf.intent.coverage import coverage
from dsf.models.capture import recording

STEPS = 3


def train(model: nn.Module, where: str, steps: int = STEPS) -> list[float]:
    """The losses of *steps* steps on one batch."""
    model.to(where).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.randint(0, 128, (2, 9), generator=torch.Generator().manual_seed(1)).to(where)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def assert_equal(ours: nn.Module, cpu: nn.Module) -> None:
    """Within a sixtieth of what three steps can move a weight: AdamW makes of the smallest gradient a whole step."""
    for a, b in zip(cpu.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(b.detach().cpu(), a.detach(), rtol=1e-3, atol=5e-4)


@pytest.mark.parametrize("name", ["llama3-8b", "gpt2"])
def test_three_steps_on_a_chip_are_the_cpus(name: str, chips: Callable[..., str]) -> None:
    cpu, ours = tiny(name), tiny(name)
    for model in (cpu, ours):
        for layer in model.modules():
            if isinstance(layer, nn.Dropout):
                layer.p = 0.0
    wanted = train(cpu, "cpu")
    here = chips("acme-x1", "operator")
    assert train(ours, here) == pytest.approx(wanted, rel=1e-4)
    assert wanted[-1] < wanted[0]
    assert_equal(ours, cpu)


def test_every_intent_of_a_training_step_means_what_was_recorded(readings: Callable[..., Readings]) -> None:
    cpu = tiny("llama3-8b")
    ours = copy.deepcopy(cpu)
    wanted = train(cpu, "cpu")
    session = readings(rtol=1e-4, atol=1e-5)
    assert train(ours, "npu") == pytest.approx(wanted, rel=1e-4)
    assert_equal(ours, cpu)
    assert session.compared > 300


def test_forward_and_backward_both_parse_and_the_products_are_named() -> None:
    """Backward has two products for each of the forward's, so three times its work in linear layers."""
    with recording() as recorder:
        here = recorder.chip.device
        model = tiny("llama3-8b").to(here).train()
        tokens = torch.zeros(2, 9, dtype=torch.long).to(here)
        recorder.taken("upload")
        loss = model(input_ids=tokens, labels=tokens).loss
        forward = recorder.taken("forward")
        loss.backward()
        backward = recorder.taken("backward")
        device.flush()
    covered = [coverage((len(part.segment.ops), part.intents) for part in step.parts) for step in (forward, backward)]
    for found in covered:
        assert found.flops_share >= 0.98, found.opaque
        assert found.operations_share >= 0.95, found.opaque
    work = [sum(r.flops for r in found.kinds if r.kind in ("linear", "matmul")) for found in covered]
    assert work[1] == pytest.approx(2 * work[0], rel=0.2)
    assert (
        Counter(i.kind for i in backward.intents)["linear"] + Counter(i.kind for i in backward.intents)["matmul"] > 30
    )
