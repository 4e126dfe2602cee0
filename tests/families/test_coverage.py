"""At full size every transformer is named: at least 98 % of its matrix FLOPs and 95 % of its operations."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from tests.families.conftest import recorded

from dsf.intent.coverage import Coverage, coverage
from dsf.models.build import on_meta
from dsf.models.capture import capture
from dsf.models.presets import names, preset

FLOPS, OPERATIONS = 0.98, 0.95


def said(found: Coverage) -> str:
    return ", ".join(f"{row.count} x {row.target} ({row.why})" for row in found.opaque)


@pytest.mark.parametrize("name", names())
def test_the_steps_of_a_model_are_covered(name: str) -> None:
    for step in recorded(name):
        found = coverage((len(part.segment.ops), part.intents) for part in step.parts)
        assert found.flops > 0
        assert found.flops_share >= FLOPS, said(found)
        assert found.operations_share >= OPERATIONS, said(found)


ACTIVE = {"llama3-8b": 7.505e9, "mixtral-8x7b": 12.75e9, "qwen3-30b-a3b": 3.04e9, "deepseek-v3": 36.6e9}
"""Parameters that a token meets in a product: all but the embedding, and of the experts those that are chosen."""


@pytest.mark.parametrize("name", ACTIVE)
def test_the_work_of_a_token_is_twice_its_active_parameters(name: str) -> None:
    """Beside attention's own products, which at four tokens are nothing."""
    (step,) = capture(on_meta(preset(name), torch.bfloat16), length=4)
    found = coverage((len(part.segment.ops), part.intents) for part in step.parts)
    assert found.flops / 4 == pytest.approx(2 * ACTIVE[name], rel=0.02)


MEASURED = """
import json, resource
from dsf.models.wants import wants
found = wants("deepseek-v3", length=512, layer=3)
print(json.dumps([found.parameters, found.coverage.flops, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
"""


def test_the_largest_model_needs_less_than_a_gibibyte() -> None:
    """671 billion parameters, a prefill of 512 tokens."""
    done = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, check=True)
    parameters, flops, nbytes = json.loads(done.stdout)
    assert parameters == 671_026_404_352
    assert flops > 37e12
    assert nbytes < 2**30
