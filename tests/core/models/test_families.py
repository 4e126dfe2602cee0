"""A few families of tests/families, which has them all and takes minutes: one dense, one with experts, one encoder."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.families.conftest import Readings, answer, chips, greedy, inputs, placed, readings, recorded, tiny

from dsf.intent.coverage import coverage

__all__ = ["chips", "readings"]  # fixtures


@pytest.mark.parametrize("name", ["llama3-8b", "deepseek-v3"])
def test_a_prompt_and_a_token_mean_what_was_recorded(name: str, readings: Callable[..., Readings]) -> None:
    model = tiny(name)
    arguments = inputs(model)
    wanted, tokens = greedy(model, arguments, 2)
    session = readings()
    found, said = greedy(model.to("npu"), placed(arguments, "npu"), 2)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert said == tokens
    assert session.compared > 20


@pytest.mark.parametrize("name", ["qwen3-8b", "mixtral-8x7b"])
def test_the_logits_and_the_tokens_of_a_chip_are_the_cpus(name: str, chips: Callable[..., str]) -> None:
    model = tiny(name)
    arguments = inputs(model)
    wanted, tokens = greedy(model, arguments, 2)
    here = chips("acme-x1", "operator")
    found, said = greedy(model.to(here), placed(arguments, here), 2)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert said == tokens


def test_an_encoder_gives_the_cpus_numbers(chips: Callable[..., str]) -> None:
    model = tiny("bert-base")
    arguments = inputs(model)
    with torch.no_grad():
        wanted = answer(model(**arguments))
        here = chips("acme-x1", "isa")
        found = answer(model.to(here)(**placed(arguments, here))).cpu()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["llama3-8b", "deepseek-v3", "vit-base"])
def test_the_steps_of_a_model_are_covered(name: str) -> None:
    for step in recorded(name):
        found = coverage((len(part.segment.ops), part.intents) for part in step.parts)
        assert found.flops_share >= 0.98, found.opaque
        assert found.operations_share >= 0.95, found.opaque
