"""`dsf-cli disasm`: what is listed can be read again, what breaks a rule is named, what is no program is refused."""

from __future__ import annotations

import json
import os
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from dsf import cli
from dsf.isa.assembly import parse
from dsf.isa.binary import decode, encode

SOFTMAX = ["--chip", "acme-x1", "--kernel", "softmax", "--shape", "100,64"]


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.call(["disasm", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


@pytest.fixture
def listing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The softmax of the invented chip, as listed."""
    path = tmp_path / "softmax.txt"
    path.write_text(said(capsys, *SOFTMAX), "utf-8")
    return path


def test_what_is_printed_is_read_again_and_says_the_same(listing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def program(text: str) -> list[str]:
        return [line for line in text.splitlines() if not line.startswith("# generic.softmax")]

    again = said(capsys, "--chip", "acme-x1", str(listing))
    assert program(again) == program(listing.read_text("utf-8"))
    time = r"\d+ ns without the host's launch \(origin: estimate\), bound by vec"
    assert re.search(rf"^# predicted: {time}; core [\d,]+ cycles on 7 of 8 cores$", again, re.MULTILINE)


def test_a_line_of_a_listing_is_never_broken(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "--chip", "acme-x1", "--kernel", "attention", "--shape", "2,4,2,40,40,32", "--cycles")
    assert max(map(len, text.splitlines())) > 140
    assert len(parse(text).phases) == 3


def test_cycles_and_runs_stand_behind_each_instruction_and_can_be_read_over(
    listing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counted = said(capsys, *SOFTMAX, "--cycles")
    assert parse(counted) == parse(listing.read_text("utf-8"))
    (line,) = re.findall(r"v\.exp sram.*\(16,64\).*  # (\d+) cycles x (\d+)$", counted, re.MULTILINE)
    value = json.loads(said(capsys, *SOFTMAX, "--cycles", "--json"))
    (row,) = [row for row in value["lines"] if row["text"].startswith("v.exp sram") and "(16,64)" in row["text"]]
    assert (str(row["cycles"]), str(row["runs"])) == line
    assert next(row for row in value["lines"] if row["cycles"] is None)["text"].startswith("program ")


def test_the_binary_form_holds_the_same_program(
    tmp_path: Path, listing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "softmax.dsf"
    out.write_bytes(b"of an earlier time")
    said(capsys, *SOFTMAX, "--binary", str(out))
    assert decode(out.read_bytes()) == parse(listing.read_text("utf-8"))
    assert parse(said(capsys, "--chip", "acme-x1", str(out))) == decode(out.read_bytes())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["softmax.dsf", "softmax.txt"]


def test_a_binary_that_cannot_be_written_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "taken"
    place.mkdir()
    assert cli.call(["disasm", *SOFTMAX, "--binary", str(place)]) == 2
    assert f"DSF-I025: {place} cannot be written: Is a directory" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


KINDS = {
    "matmul": "40,70,600",
    "linear": "40,70,600",
    "attention": "1,4,2,40,40,32",
    "rms_norm": "100,64",
    "layer_norm": "100,64",
    "softmax": "100,64",
    "gated_activation": "100,64",
    "sum": "100,64",
    "copy": "100,64",
}


@pytest.mark.parametrize("chip", ["acme-x1", *(["ascend-910b2"] if find_spec("dsf_ascend") else [])])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_listing_without_findings_on_every_chip(
    chip: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    value = json.loads(said(capsys, "--chip", chip, "--kernel", kind, "--shape", KINDS[kind], "--json"))
    assert value["findings"] == []
    assert value["time"]["emulated_femtoseconds"] > 0
    assert value["kernel"].split(": ", 1)[1].startswith(("nothing else", "quickest of", "tree: "))


def test_every_kind_is_in_the_help_and_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    from dsf.disassembly import SHAPES

    assert set(SHAPES) == set(KINDS)
    page = (Path(__file__).parents[3] / "docs/reference/cli.md").read_text("utf-8")
    assert cli.call(["disasm", "--help"]) == 0
    text = capsys.readouterr().out
    for kind, names in SHAPES.items():
        assert re.search(rf"\b{kind}\b", text)
        assert ",".join(names) in text
        assert f"`{kind}`" in page
        assert f"`{','.join(names)}`" in page


def test_the_shape_and_the_format_are_the_programs(capsys: pytest.CaptureFixture[str]) -> None:
    value = json.loads(said(capsys, *SOFTMAX, "--dtype", "float32", "--json"))
    assert [p["bytes"] for p in value["params"]] == [100 * 64 * 4] * 2
    first = said(capsys, "--chip", "acme-x1", "--kernel", "matmul", "--shape", "3,5,7", "--dtype", "float32")
    assert re.search(r"^   1 program \S+\(in \w+:84, in \w+:140, out \w+:60\)$", first, re.MULTILINE)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ((r"WaitFlag src=din, dst=vec, event=0x0", "v.add"), "DSF-I004: generic.softmax, line 6: v.add: 0 operands"),
        ((r"WaitFlag src=vec, dst=dout, event=0x0", "WaitFlag src=vec, dst=dout, event=0x1"), "DSF-X021: "),
        ((r"\(16,64\)float32", "(16,64)float8"), "DSF-I006: "),
        ((r"event=0x0", "event=0.5"), "DSF-I011: generic.softmax, line 5: SetFlag src=din, dst=vec, event=0.5: "),
        ((r"\n   5 .*\n   6 .*\n", "\n"), "DSF-X022: generic.softmax: line 5 (vec) reads what line 4 (din) writes in "),
        ((r"blocks i<(\d+)", "blocks i<-3"), "DSF-I009: generic.softmax, line 3: blocks i<-3"),
    ],
)
def test_a_rule_that_is_broken_is_a_finding_with_its_line(
    change: tuple[str, str], sentence: str, listing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = re.sub(*change, listing.read_text("utf-8"), count=1)
    listing.write_text(text, "utf-8")
    assert cli.call(["disasm", "--chip", "acme-x1", str(listing), "--cycles"]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    assert f"\n# {sentence}" in out
    assert "predicted" not in out


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "DSF-I021: {}: line 1, column 1: found the end of the line; expected a program"),
        (b"hello", "DSF-I021: {}: line 1, column 1: found 'hello'; expected 'program'"),
        (b"\xff\xfe", "DSF-I023: {}: byte 0: found ff; expected a listing in UTF-8, or a binary, which begins with "),
        (b"\x93DSF", "DSF-I022: {}: byte 4: found the end; expected 17 bytes at least"),
    ],
)
def test_a_file_that_is_no_program_ends_with_2_and_the_place(
    data: bytes, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd"
    path.write_bytes(data)
    assert cli.call(["disasm", "--chip", "acme-x1", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dsf-cli: " + sentence.format(path))


def test_a_file_that_may_never_end_or_say_anything_is_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/null")):
        assert cli.call(["disasm", "--chip", "acme-x1", str(path)]) == 2
        said = f"DSF-I023: {path} is no regular file; expected a listing or a binary, or - for standard input"
        assert said in capsys.readouterr().err


def test_a_file_longer_than_any_program_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "long"
    with path.open("wb") as file:
        file.truncate((64 << 20) + 1)
    assert cli.call(["disasm", "--chip", "acme-x1", str(path)]) == 2
    assert f"DSF-I023: {path} has more than 64 MiB; no program is that long" in capsys.readouterr().err


def test_a_dash_is_standard_input(
    listing: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with listing.open("r", encoding="utf-8") as file:
        monkeypatch.setattr("sys.stdin", file)
        piped = said(capsys, "--chip", "acme-x1", "-")
    assert piped == said(capsys, "--chip", "acme-x1", str(listing))


def test_a_finding_names_the_line_of_the_file_where_that_counts_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = "program t()\n  phase core\n    blocks i<1\n      v.nope\n"
    path = tmp_path / "odd"
    for text, end in (
        ("# a remark\n\n" + listed, " (line 4 is line 6 of the file)\n"),
        (listed.replace("    blocks", "# between\n    blocks"), " (line 4 is line 5 of the file)\n"),
        (listed, "did you mean v.ne?\n"),
    ):
        path.write_text(text, "utf-8")
        assert cli.call(["disasm", "--chip", "acme-x1", str(path)]) == 1
        out = capsys.readouterr().out
        assert "# DSF-I002: t, line 4: v.nope: " in out
        assert out.endswith(end)
        assert ("of the file" in out) == ("of the file" in end)


def test_the_prediction_says_what_it_rests_on_and_how_many_cores_get_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    time = json.loads(said(capsys, *SOFTMAX, "--json"))["time"]
    assert time["origin"] == "estimate"
    (phase,) = time["phases"]
    assert (phase["cores_used"], phase["cores"]) == (7, 8)
    wide = json.loads(said(capsys, *SOFTMAX[:-1], "1000,64", "--json"))["time"]["phases"]
    assert [(p["cores_used"], p["cores"]) for p in wide] == [(8, 8)]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "name one program: a FILE, or a --kernel with its --shape"),
        (["x.txt", "--kernel", "softmax"], "name one program: a FILE, or a --kernel with its --shape"),
        (["x.txt", "--shape", "3"], "--shape and --dtype say what a --kernel is for; a FILE has its own"),
        (["x.txt"], "DSF-I023: x.txt cannot be read: No such file or directory; expected a listing or a binary"),
        (["--kernel", "dance"], "DSF-K020: no listing of a 'dance'; expected one of matmul, linear, attention, "),
        (["--kernel", "matmul"], "DSF-K020: a matmul has the sizes m,n,k, all above zero; got "),
        (["--kernel", "matmul", "--shape", "3,0,4"], "a matmul has the sizes m,n,k, all above zero; got 3,0,4"),
        (["--kernel", "matmul", "--shape", "3x4"], "'3x4' is not whole numbers with commas between them"),
        (["--kernel", "attention", "--shape", "1,3,2,4,4,8"], "DSF-K020: 3 heads do not share 2 kv_heads evenly"),
        (
            ["--kernel", "copy", "--shape", "3,4", "--dtype", "f16"],
            "DSF-N003: no number format named 'f16'; acme-x1 has bfloat16, float16, float32, int8, ",
        ),
        (["--kernel", "softmax", "--shape", "3,4", "--dtype", "float64"], "DSF-F002: softmax("),
    ],
)
def test_a_wrong_call_ends_with_2_and_what_would_be_right(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.call(["disasm", "--chip", "acme-x1", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err


def test_binary_of_a_listing_is_its_encoding(listing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "x.dsf"
    said(capsys, "--chip", "acme-x1", str(listing), "--binary", str(out))
    assert out.read_bytes() == encode(parse(listing.read_text("utf-8")))
