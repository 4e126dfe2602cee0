"""`dsf-cli intents`: the graph of a layer and the coverage, as a table or as JSON, with a status for scripts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dsf
from dsf import cli
from dsf.intent.text import dump, load
from dsf.models.wants import wants

pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def _no_chip() -> None:
    dsf.disable()


def test_a_covered_step_ends_with_0_and_shows_its_layer(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.call(["intents", "llama3-8b", "--layer", "3", "--seq-len", "16"]) == cli.FINE
    out, err = capsys.readouterr()
    assert "Meta-Llama-3-8B (8,030,261,248 parameters), prefill of 1 x 16" in out
    assert "layer 3 of 32, model.layers.3" in out
    assert "rms_norm" in out
    assert "%0[1,16,4096].bf16" in out
    assert "parts of a whole: 32 gated_ffn of 128 intents" in out
    assert "100.00% of 1,301 operations" in out
    assert out.endswith("opaque: none\n")
    assert err == ""


def test_a_step_with_opaque_work_ends_with_1_and_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine_of_test_intents.py").write_text(
        "import torch\n"
        "class Trace(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x.trace()\n"
        "def make():\n"
        "    return Trace(), (torch.eye(3),)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert cli.call(["intents", "mine_of_test_intents:make"]) == cli.FOUND
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.split(maxsplit=4) == [
        "aten.trace.default", "1", "0.000", "Trace", "no kind of intent means this operator"
    ]  # fmt: skip


def test_the_json_has_the_graph_and_the_coverage(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.call(["intents", "llama3-8b", "--decode", "--batch", "2", "--seq-len", "8", "--json"]) == cli.FINE
    data = json.loads(capsys.readouterr().out)
    assert (data["step"], data["batch"], data["length"], len(data["layers"])) == ("decode", 2, 8, 32)
    attention = next(row for row in data["graph"] if row["kind"] == "attention")
    assert [operand["shape"] for operand in attention["inputs"]] == [[2, 32, 1, 128], [2, 8, 9, 128], [2, 8, 9, 128]]
    assert attention["attributes"]["groups"] == 4
    linear = next(row for row in data["graph"] if row["kind"] == "linear")
    assert [operand["constant"] for operand in linear["inputs"]] == [False, True]
    assert [operand["contracted"] for operand in linear["inputs"]] == [2, 1]
    cache = next(row for row in data["graph"] if row["kind"] == "concat")
    assert [operand["grows"] for operand in cache["inputs"]] == [True, False]
    assert data["coverage"]["flops_share"] == 1.0


def test_the_text_reads_back_as_the_intents_of_that_layer(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.call(["intents", "llama3-8b", "--layer", "7", "--text"]) == cli.FINE
    text = capsys.readouterr().out
    assert text.startswith("# Meta-Llama-3-8B, prefill, layer model.layers.7\n")
    read = load(text)
    assert [intent.kind for intent in read] == [row.kind for row in wants("llama3-8b", layer=7).graph]
    assert read[0].scope.path == "model.layers.7.input_layernorm"
    assert dump(read) == text.partition("\n")[2]


def test_a_number_format_may_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.call(["intents", "gpt2", "--dtype", "float16", "--json"]) == cli.FINE
    assert json.loads(capsys.readouterr().out)["graph"][0]["inputs"][0]["dtype"] == "float16"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["gpt5"], "DSF-C015: 'gpt5' is no preset"),
        (["gpt2", "--layer", "12"], "DSF-C021: gpt2: layer 12 was asked for; its prefill has layers 0 to 11"),
        (["bert-base", "--decode"], "DSF-C020: bert-base: this model has no decode step; leave out --decode"),
        (["gpt2", "--dtype", "int8"], "DSF-C005: --dtype: 'int8' is not a floating-point dtype"),
        (["gpt2", "--seq-len", "0"], "0 is not in the range x>=1"),
        (["gpt2", "--seq-len", "2000"], "DSF-C022: gpt2: 2000 tokens; its positions end at 1024"),
    ],
)
def test_a_wrong_call_ends_with_2_and_a_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.call(["intents", *arguments]) == cli.WRONG_CALL
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
