"""Weights from a file: dense, in the asked dtype, without a network, and with transformers left as it was."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path, PurePosixPath

import gguf
import pytest
import torch
from transformers import modeling_gguf_pytorch_utils as loader

from dsf import errors, models
from dsf.models.load import move


class _Watched:
    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []

    def __call__(self, stage: str, done: int, total: int) -> None:
        self.calls.append((stage, done, total))


@pytest.fixture(scope="module")
def watched() -> _Watched:
    return _Watched()


@pytest.fixture(scope="module")
def smollm2(watched: _Watched) -> models.Loaded:
    return models.load(models.find("smollm2"), torch.float16, watched)


def test_weights_are_dense_in_the_asked_dtype(smollm2: models.Loaded) -> None:
    """134,515,008 parameters, the embedding counted once: 49,152 x 576 + 30 layers + the last norm."""
    layer = 2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536 + 2 * 576
    assert 49_152 * 576 + 30 * layer + 576 == 134_515_008
    parameters = list(smollm2.model.parameters())
    assert sum(p.numel() for p in parameters) == 134_515_008
    assert {p.dtype for p in parameters} == {torch.float16}
    assert not getattr(smollm2.model, "is_quantized", False)
    assert smollm2.model.lm_head.weight is smollm2.model.model.embed_tokens.weight


def test_the_tokenizer_speaks_the_models_chat_template(smollm2: models.Loaded) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    text = smollm2.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text.endswith("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n")


def test_every_weight_is_counted_while_it_is_read(smollm2: models.Loaded, watched: _Watched) -> None:
    """272 tensors: 9 for each of 30 layers, the embedding and the last norm."""
    assert smollm2.model.config.num_hidden_layers == 30
    assert watched.calls[:2] == [("tokenizer", 0, 1), ("tokenizer", 1, 1)]
    assert watched.calls[2:] == [("weights", done, 272) for done in range(1, 273)]


def test_transformers_is_left_as_it_was(smollm2: models.Loaded) -> None:
    assert smollm2 is not None
    assert gguf.GGUFReader.__module__ == "gguf.gguf_reader"
    assert gguf.get_tensor_name_map.__module__ == "gguf.tensor_mapping"
    assert loader.tqdm.__module__.startswith("tqdm.")


def test_a_file_that_is_no_model_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf"
    broken.write_bytes(b"not a model" * 100)

    class File(PurePosixPath):
        def locate(self) -> Path:
            return broken

    monkeypatch.setattr(metadata, "files", lambda name: [File(broken.name)])
    with pytest.raises(errors.ModelError, match=r"^DSF-C004: model 'smollm2': SmolLM2-.*\.gguf cannot be read"):
        models.load(models.find("smollm2"), torch.float16, _Watched())
    assert gguf.GGUFReader.__module__ == "gguf.gguf_reader"


def test_moving_reaches_every_parameter_and_says_how_far_it_is() -> None:
    class Inner(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = torch.nn.Linear(2, 2)
            self.own = torch.nn.Parameter(torch.zeros(2))

    watched, model = _Watched(), torch.nn.Sequential(Inner(), torch.nn.Linear(2, 2))
    move(model, "meta", watched)
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert watched.calls == [("to the device", 1, 2), ("to the device", 2, 2)]
