"""The intents of every family mean what its operations compute: each segment is run both ways, from the same bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from tests.families.conftest import (
    ENCODING,
    FAMILIES,
    GENERATING,
    Readings,
    answer,
    greedy,
    inputs,
    placed,
    tiny,
)


@pytest.mark.parametrize("name", GENERATING)
def test_a_prompt_and_two_tokens_mean_what_was_recorded(name: str, readings: Callable[..., Readings]) -> None:
    model = tiny(name)
    arguments = inputs(model)
    wanted, tokens = greedy(model, arguments, 3)
    session = readings()
    found, said = greedy(model.to("npu"), placed(arguments, "npu"), 3)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert said == tokens
    assert session.compared > 20
    assert [i for i in session.intents if i.kind == "opaque"] == []


@pytest.mark.parametrize("name", ENCODING)
def test_a_forward_means_what_was_recorded(name: str, readings: Callable[..., Readings]) -> None:
    model = tiny(name)
    arguments = inputs(model)
    with torch.no_grad():
        wanted = answer(model(**arguments))
        session = readings()
        found = answer(model.to("npu")(**placed(arguments, "npu"))).cpu()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert [i for i in session.intents if i.kind == "opaque"] == []


@pytest.mark.parametrize("name", FAMILIES)
def test_the_same_in_bfloat16_within_its_roundings(name: str, readings: Callable[..., Readings]) -> None:
    """An intent may round less often than the operations it stands for: a few units of the last place, 2**-8."""
    model = tiny(name, torch.bfloat16)
    arguments = {key: v.bfloat16() if v.is_floating_point() else v for key, v in inputs(model).items()}
    session = readings(rtol=2**-5, atol=2**-5)
    with torch.no_grad():
        assert answer(model.to("npu")(**placed(arguments, "npu"))).cpu().isfinite().all()
    assert session.compared
    assert Counter(i.kind for i in session.intents)["opaque"] == 0
