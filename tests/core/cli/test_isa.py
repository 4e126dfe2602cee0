"""`dsf-cli isa`: every row of the table is in the manual, with all that the table and the HDL say of it."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec

import pytest

from dsf import cli, hdl
from dsf.isa import Isa
from dsf.plugins import registry

CHIPS = ("acme-x1", "ascend-910b2")


def table_of(chip: str) -> Isa:
    known = registry()
    return known.view(known.chip(chip)).isa()


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.call(["isa", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


@pytest.mark.parametrize("chip", CHIPS)
def test_every_instruction_has_its_place_under_its_engine(chip: str, capsys: pytest.CaptureFixture[str]) -> None:
    chapters = re.split(r"^(?:engine (\w+) |in the queue of (any) engine)", said(capsys, chip), flags=re.MULTILINE)[1:]
    listed = {
        name: chapters[n] or ""
        for n in range(0, len(chapters), 3)
        for name in re.findall(r"^(\w[\w.]*) \w+(?:, \w+)*$", chapters[n + 2], re.MULTILINE)
    }
    assert listed == {row.name: row.engine for row in table_of(chip).rows.values()}


@pytest.mark.parametrize("chip", CHIPS)
def test_every_instruction_says_what_it_does_how_long_that_takes_and_where_we_know_it_from(
    chip: str, capsys: pytest.CaptureFixture[str]
) -> None:
    value = json.loads(said(capsys, chip, "--json"))
    entries = [entry for chapter in value["chapters"] for entry in chapter["entries"]] + value["anywhere"]
    rows = table_of(chip).rows
    assert sorted(entry["name"] for entry in entries) == sorted(rows)
    for entry in entries:
        row = rows[entry["name"]]
        assert entry["meaning"], row.name
        assert entry["cycles"], row.name
        assert entry["source"], row.name
        assert [(o["name"], o["mode"], o["spaces"], o["dtypes"]) for o in entry["operands"]] == [
            (name, role.mode, list(role.spaces), list(role.dtypes)) for name, role in row.operands
        ]
        assert bool(entry["constraints"]) == bool(row.rules), row.name


def test_an_engine_is_described_as_the_hdl_does(capsys: pytest.CaptureFixture[str]) -> None:
    chip = hdl.load("acme-x1")
    out = said(capsys, "acme-x1")
    assert "engine vec (vector), one in each core of 8 core, at 1 GHz (estimate), start-up 8 cycles" in out
    assert chip.cores["core"].count == 8
    rates = chip.engines["vec"].rates["exp"]
    (line,) = [line for line in out.splitlines() if line.startswith("exp ")]
    assert line.split()[:3] == ["exp", "default", str(rates["default"])]


def test_one_instruction_is_shown_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    row = table_of("acme-x1")["matmul"]
    lines = said(capsys, "acme-x1", "matmul").splitlines()
    assert lines[:5] == [
        "matmul c, a, b, accumulate",
        f"    {row.summary}",
        "    c: read and written in acc, as float32",
        f"    a, b: read from sram, as {' '.join(row.operands[1][1].dtypes)}",
        "    accumulate: scalar, int",
    ]
    assert lines[5].startswith("    cycles: Start-up plus one matrix tile per cycle")
    assert "    rule: c (m, n), a (m, k), b (k, n), and a bias (n) where there is one." in lines
    assert lines[-1] == "    engine: mxu; serves matmul; source: derived from the HDL"


def test_the_flags_take_the_same_time_always(capsys: pytest.CaptureFixture[str]) -> None:
    assert "    cycles: 0, always" in said(capsys, "acme-x1", "SetFlag").splitlines()


def test_one_instruction_as_json_is_the_same_as_in_the_whole(capsys: pytest.CaptureFixture[str]) -> None:
    whole = json.loads(said(capsys, "acme-x1", "--json"))
    (alone,) = [e for c in whole["chapters"] for e in c["entries"] if e["name"] == "v.exp"]
    assert json.loads(said(capsys, "acme-x1", "v.exp", "--json")) == alone
    assert (alone["opclass"], alone["engine"]) == ("exp", "vec")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["acme-x1", "V.EXP"], "DSF-I002: generic(acme-x1): no instruction named 'V.EXP'; did you mean v.exp or "),
        (["acme-x1", "qqqqqq"], "no instruction named 'qqqqqq'; `dsf-cli isa acme-x1` lists all "),
        (["acme"], "DSF-H001: no chip named 'acme'"),
        ([], "Missing argument 'CHIP'"),
    ],
)
def test_what_is_unknown_ends_with_2_and_what_would_be_known(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.call(["isa", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err


@pytest.mark.skipif(not find_spec("dsf_ascend"), reason="asks for an instruction of the vendor's package")
def test_a_sentence_goes_on_further_in_than_it_begins(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, "ascend-910b2", "LoadData3D.L0A").splitlines()
    begins = r"    (?:cycles|rule|engine|\w+(?:, \w+)*): |    [a-z]"
    assert any(line.startswith("      ") for line in lines)
    assert all(re.match(begins, line) or re.match(r"      \S", line) for line in lines[1:])
    words = " ".join(line.strip() for line in lines)
    assert "no loop changes what the instruction itself holds." in words
