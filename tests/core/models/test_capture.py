"""A step is recorded without numbers, weights or a chip, and wants what it wants of a chip."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dsf
from dsf import device, errors, pipeline
from dsf.models.build import inputs_for, on_meta, tiny
from dsf.models.capture import capture, recording
from dsf.models.presets import preset


@pytest.fixture(autouse=True)
def _no_chip() -> Any:
    dsf.disable()
    yield
    dsf.disable()


@pytest.fixture
def npu(described: Callable[..., Path]) -> str:
    """The path of a chip whose device is `npu`, the one name that this process may have."""
    return str(described({"/device": "npu"}))


def kinds(step: Any, kind: str) -> int:
    return sum(intent.kind == kind for intent in step.intents)


def test_a_full_size_model_is_recorded_in_prefill_and_decode() -> None:
    prefill, decode = capture(on_meta(preset("llama3-8b"), torch.bfloat16), length=64, decode=True)
    assert (prefill.name, decode.name) == ("prefill", "decode")
    for step in (prefill, decode):
        assert kinds(step, "attention") == 32
        assert kinds(step, "rms_norm") + kinds(step, "add_rms_norm") == 65
        assert kinds(step, "linear") == 32 * 7 + 1
    reads = next(i for i in prefill.intents if i.kind == "attention").inputs[1].shape
    later = next(i for i in decode.intents if i.kind == "attention").inputs[1].shape
    assert (reads, later) == ((1, 8, 64, 128), (1, 8, 65, 128))


def test_equal_layers_are_parsed_once() -> None:
    """All but the first and the last of 32: these stand beside something else."""
    (step,) = capture(on_meta(preset("llama3-8b"), torch.bfloat16), length=5)
    layers = [part.intents for part in step.parts if part.segment.ops[0].scope.path.startswith("model.layers.")]
    assert len(layers) == 32
    assert len({id(intents) for intents in layers[1:-1]}) == 1


@pytest.mark.parametrize("name", ["llama3-8b", "t5-small", "bert-base", "mixtral-8x7b"])
def test_a_chip_that_serves_every_whole_hears_the_same_intents(
    npu: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline.Session, "_serves", lambda session, intent: True)
    model = tiny(preset(name), torch.float32)
    inputs = inputs_for(model, 2, 5)
    (step,) = capture(tiny(preset(name), torch.float32), inputs)
    session = dsf.enable(npu, fidelity="timing")
    here = session.chip.device
    more = {"use_cache": True} if name != "bert-base" else {}
    with torch.no_grad(), session.listening() as flushes:
        model.to(here)
        arguments = {key: value.to(here) for key, value in inputs.items()}
        out = model(**arguments, **more)
        device.flush()
    assert out is not None
    assert [str(intent) for flush in flushes for intent in flush] == [str(intent) for intent in step.intents]


def test_weights_without_memory_are_weights_all_the_same() -> None:
    (step,) = capture(on_meta(preset("gpt2"), torch.float32), length=5)
    part = step.parts[1]
    buffers = part.segment.tape.buffers
    linear = next(intent for intent in part.intents if intent.kind == "linear")
    assert [buffers[region.buffer].constant for region in linear.inputs[:3]] == [False, True, True]


def test_inputs_of_the_users_own_are_taken_by_name() -> None:
    (step,) = capture(nn.Linear(4, 8), {"input": torch.zeros(3, 4)})
    (linear,) = step.intents
    assert (step.name, linear.kind, linear.outputs[0].shape) == ("forward", "linear", (3, 8))


def test_no_chip_may_be_enabled_meanwhile(npu: str) -> None:
    dsf.enable(npu, fidelity="timing")
    with pytest.raises(errors.DeviceError, match=r"^DSF-D006: .*call dsf\.disable"):
        capture(nn.Linear(4, 8), {"input": torch.zeros(3, 4)})
    assert dsf.current() is not None


def test_the_recorder_is_gone_afterwards_even_if_the_model_fails() -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("no")

    with pytest.raises(ValueError, match=r"^no$"):
        capture(Broken(), {"x": torch.zeros(1)})
    assert device.current() is None


def test_reads_of_the_host_are_zeros_and_end_a_tape() -> None:
    with recording() as recorder:
        x = torch.ones(3, device=recorder.chip.device)
        y = x + 1
        assert y.tolist() == [0, 0, 0]
        x.add_(y)
        step = recorder.taken("mine")
    assert step.flushes == 2
    assert [i.kind for i in step.intents] == ["fill", "elementwise", "elementwise"]
