"""Which kernel serves what of a model, why, how near to the roofline, and what goes to the host."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch

from dsf import cli, hdl
from dsf.models.explain import explain
from dsf.plugins import registry

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def found():
    return explain("smollm2", registry().view(hdl.load("acme-x1")), length=48, dtype=torch.bfloat16)


def test_shares_are_of_the_whole(found):
    assert sum(line.share for line in found.lines) == pytest.approx(1)
    assert sum(kind.share for kind in found.kinds()) == pytest.approx(1)
    assert sum(found.libraries().values()) == pytest.approx(1)
    assert found.fs == sum(line.fs * line.times for line in found.lines)


def test_equal_intents_of_all_layers_are_one_line(found):
    """SmolLM2 has 30 layers, each with q, o; k, v; gate, up; down; a sum may be taken into the product before it."""
    times = Counter()
    for line in found.lines:
        if line.intent.kind == "linear":
            times[line.intent.inputs[1].shape] += line.times
    assert times == {(576, 576): 60, (192, 576): 60, (1536, 576): 60, (576, 1536): 30, (49152, 576): 1}
    assert len([line for line in found.lines if line.intent.kind == "linear"]) < 9


def test_the_slowest_part_comes_first(found):
    spent = [line.fs * line.times for line in found.lines]
    assert spent == sorted(spent, reverse=True)


def test_the_chosen_and_the_others_are_all_the_candidates(found):
    line = next(line for line in found.lines if line.intent.kind == "linear")
    assert line.kernel.startswith("generic.matmul ")
    assert line.reason.startswith(("tree: leaf", "quickest of"))
    assert len(line.others) > 3
    assert line.kernel not in {other.title for other in line.others}
    assert all(other.fs or other.refusal for other in line.others)
    assert [o.fs for o in line.others if o.fs] == sorted(o.fs for o in line.others if o.fs)


def test_nothing_is_quicker_than_the_roofline(found):
    for line in found.lines:
        if line.intent.kind in ("linear", "attention"):
            assert 0 < line.of_roofline <= 1, line.what


def test_a_chip_without_a_vendors_plugin_has_no_native_share(found):
    assert found.native == 0
    assert set(found.libraries()) == {"generic", "compiled"}


def test_what_the_host_does_is_listed_with_the_reason():
    found = explain("smollm2", registry().view(hdl.load("acme-x1")), length=8, dtype=torch.float64)
    assert found.fallbacks
    assert all("the HDL computes" in line.reason for line in found.fallbacks)
    assert found.libraries()["host"] > 0.5


def test_the_command_line_tells_the_same(found, capsys):
    called = ["explain", "smollm2", "--chip", "acme-x1", "--seq-len", "48"]
    assert cli.call([*called, "--json"]) == cli.FINE
    value = json.loads(capsys.readouterr().out)
    assert value == json.loads(json.dumps(found.to_json()))
    assert cli.call(called) == cli.FINE
    told = capsys.readouterr().out
    assert "generic.matmul" in told
    assert "of the time in the vendor's own kernels" in told


def test_a_decode_step_is_one_token_against_its_cache(capsys):
    assert cli.call(["explain", "smollm2", "--chip", "acme-x1", "--seq-len", "20", "--decode", "--json"]) == cli.FINE
    value = json.loads(capsys.readouterr().out)
    assert value["step"] == "decode"
    assert any("[1, 9, 1, 64]" in line["intent"] for line in value["intents"] if line["kind"] == "attention")
