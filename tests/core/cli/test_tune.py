"""`dsf-cli tune`: what it says, what it writes, and what it refuses."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from dsf import cli

needs_sklearn = pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn is in the extra 'tune'")


@needs_sklearn
def test_trees_are_written_and_their_regret_is_told(tmp_path, capsys):
    out = tmp_path / "acme-x1.json"
    called = ["tune", "acme-x1", "--kinds", "linear,softmax", "--scale", "0.01", "--out", str(out)]
    assert cli.call(called) == cli.FINE
    told = capsys.readouterr().out
    assert "linear" in told
    assert "one candidate, so nothing to choose: softmax" in told
    written = json.loads(out.read_text())
    assert (written["chip"], written["origin"], list(written["trees"])) == ("acme-x1", "derived", ["linear"])


@needs_sklearn
def test_as_json_it_is_one_value(capsys):
    assert cli.call(["tune", "acme-x1", "--kinds", "linear", "--scale", "0.01", "--json"]) == cli.FINE
    value = json.loads(capsys.readouterr().out)
    assert value["regret"][0]["kind"] == "linear"
    assert 0 <= value["regret"][0]["mean"] <= value["regret"][0]["worst"]


@needs_sklearn
def test_an_unknown_kind_is_a_wrong_call(capsys):
    assert cli.call(["tune", "acme-x1", "--kinds", "magic"]) == cli.WRONG_CALL
    assert "no workloads of the kind 'magic'" in capsys.readouterr().err


def test_without_scikit_learn_it_is_a_wrong_call(monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.tree", None)
    assert cli.call(["tune", "acme-x1"]) == cli.WRONG_CALL
    assert "pip install 'dsf-core[tune]'" in capsys.readouterr().err
