"""A model by any of its four names, and a sentence for each name that is none."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import dsf
from dsf import errors
from dsf.models.named import named
from dsf.models.presets import preset
from dsf.models.wants import wants


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of the user's in the current folder."""
    monkeypatch.chdir(tmp_path)
    dsf.disable()
    return tmp_path / "mine_of_test_named.py"


def test_a_folder_with_a_configuration_is_a_model_without_memory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(preset("llama3-8b").config), "utf-8")
    found = named(str(tmp_path))
    assert (found.title, found.source) == (tmp_path.name, str(tmp_path))
    assert {p.device.type for p in found.model.parameters()} == {"meta"}
    assert {p.dtype for p in found.model.parameters()} == {torch.bfloat16}
    assert sum(p.numel() for p in found.model.parameters()) == 8_030_261_248


def test_a_preset_has_the_dtype_of_its_configuration_unless_another_is_asked() -> None:
    assert next(named("llama3-8b").model.parameters()).dtype == torch.bfloat16
    assert next(named("llama3-8b", torch.float16).model.parameters()).dtype == torch.float16
    assert next(named("gpt2").model.parameters()).dtype == torch.float32


def test_a_function_gives_a_module_and_its_inputs_in_order(code: Path) -> None:
    code.write_text(
        "import torch\ndef make():\n    return torch.nn.Bilinear(3, 4, 5), (torch.zeros(2, 3), torch.zeros(2, 4))\n"
    )
    found = named("mine_of_test_named:make")
    assert found.inputs is not None
    assert {name: tuple(value.shape) for name, value in found.inputs.items()} == {"input1": (2, 3), "input2": (2, 4)}
    assert not found.model.training
    assert wants("mine_of_test_named:make").graph[-1].outputs[0].region.shape == (2, 5)


@pytest.mark.parametrize(
    ("source", "name", "sentence"),
    [
        (
            "",
            "gpt5",
            r"^DSF-C015: 'gpt5' is no preset \(.*llama3-8b.*\), no folder .* no \.gguf file and no module:func",
        ),
        ("", "nothing_here:make", "^DSF-C016: nothing_here:make: module 'nothing_here' cannot be imported"),
        ("x = 3", "mine_of_test_named:make", "^DSF-C016: .*module 'mine_of_test_named' has no function 'make'$"),
        ("make = 3 +", "mine_of_test_named:make", "^DSF-C016: .*cannot be imported .SyntaxError: "),
        ("make = lambda: {}['x']", "mine_of_test_named:make", "^DSF-C023: mine_of_test_named:make fails .KeyError"),
        (
            "make = lambda: 3",
            "mine_of_test_named:make",
            "^DSF-C017: .*returned a int; expected a torch.nn.Module, or a",
        ),
        (
            "import torch\nmake = lambda: torch.nn.Linear(2, 2)",
            "mine_of_test_named:make",
            "^DSF-C018: .*returned a Linear without inputs",
        ),
        (
            "import torch\nmake = lambda: (torch.nn.Linear(2, 2), (torch.zeros(3),))",
            "mine_of_test_named:make",
            "^DSF-C019: .*its forward cannot be recorded .*DSF calls it with its own inputs$",
        ),
        (
            "import torch\nmake = lambda: (torch.nn.Linear(2, 2), (torch.zeros(2),))",
            "mine_of_test_named:make",
            "^DSF-C020: .*has no decode step; leave out --decode$",
        ),
    ],
)
def test_each_mistake_has_its_sentence(code: Path, source: str, name: str, sentence: str) -> None:
    import sys

    code.write_text(source)
    sys.modules.pop("mine_of_test_named", None)
    with pytest.raises(errors.ModelError, match=sentence):
        wants(name, decode="C020" in sentence)


def test_a_folder_without_a_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.ModelError, match=rf"^DSF-C012: {re.escape(str(tmp_path))}: no model of Hugging Face's"):
        named(str(tmp_path))


def test_a_damaged_gguf_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"not a model")
    with pytest.raises(
        errors.ModelError, match=rf"^DSF-C013: {re.escape(str(file))}: not a GGUF file that can be read"
    ):
        named(str(file))


def test_an_unknown_architecture_names_the_release_and_what_to_do(tmp_path: Path) -> None:
    config = {**preset("llama3-8b").config, "architectures": ["Llama9ForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(errors.ModelError, match=r"^DSF-C014: transformers 5\..* has no class 'Llama9ForCausalLM'"):
        named(str(tmp_path))


def test_a_layer_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(errors.ModelError, match=r"^DSF-C021: gpt2: layer 12 .* layers 0 to 11 \(transformer\.h\.0 to "):
        wants("gpt2", layer=12)


def test_the_graph_of_a_layer_says_what_feeds_what() -> None:
    found = wants("llama3-8b", length=16, layer=5)
    assert found.layer == "model.layers.5"
    norm, q = found.graph[:2]
    assert (norm.kind, q.kind) == ("rms_norm", "linear")
    assert (q.inputs[0].value, q.inputs[0].region) == (norm.outputs[0].value, norm.outputs[0].region)
    assert [str(operand) for operand in q.inputs] == ["%2[1,16,4096].bf16", "%3*[4096,4096].bf16"]
    assert str(q.outputs[0]) == "%4[1,16,4096].bf16"
    assert (q.scope, q.module, q.targets) == ("model.layers.5.self_attn.q_proj", "Linear", ("aten.linear.default",))
    assert [row.group for row in found.graph if row.group] == [
        "gated_ffn gate", "gated_ffn up", "gated_ffn activation", "gated_ffn down",
    ]  # fmt: skip


def test_a_model_without_a_table_of_positions_is_read_beyond_its_training() -> None:
    """Llama 3 was trained up to 8192; its rotary positions go on."""
    assert wants("llama3-8b", length=9000).graph[0].inputs[0].region.shape == (1, 9000, 4096)


def test_the_layers_of_an_encoder_and_a_decoder_are_counted_on() -> None:
    found = wants("t5-small", layer=6)
    assert len(found.layers) == 12
    assert found.layer == "decoder.block.0"
