"""Every family answers on a chip as on the CPU, in float32, and chooses the same tokens."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import pytest
import torch
from tests.families.conftest import ENCODING, GENERATING, answer, greedy, inputs, placed, tiny

import dsf

CHIPS = ["acme-x1", *(["ascend-910b2"] if find_spec("dsf_ascend") else [])]
STEPS = 3


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("fidelity", ["operator", "isa"])
@pytest.mark.parametrize("name", GENERATING)
def test_the_logits_and_the_tokens_are_the_cpus(name: str, fidelity: str, chip: str, chips: Callable[..., str]) -> None:
    model = tiny(name)
    arguments = inputs(model)
    wanted, tokens = greedy(model, arguments, STEPS)
    here = chips(chip, fidelity)
    found, said = greedy(model.to(here), placed(arguments, here), STEPS)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert said == tokens
    assert dsf.report().launches > 0


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("fidelity", ["operator", "isa"])
@pytest.mark.parametrize("name", ENCODING)
def test_a_forward_gives_the_cpus_numbers(name: str, fidelity: str, chip: str, chips: Callable[..., str]) -> None:
    model = tiny(name)
    arguments = inputs(model)
    with torch.no_grad():
        wanted = answer(model(**arguments))
        here = chips(chip, fidelity)
        found = answer(model.to(here)(**placed(arguments, here))).cpu()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
