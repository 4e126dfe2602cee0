"""Which chips can be enabled, and why the others cannot."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from dsf import cli, hdl
from dsf.plugins import Registry
from dsf.survey import Chips, Line, survey


def _registry(**plugins: str) -> Registry:
    return Registry({name: EntryPoint(name, value, "dsf.chips") for name, value in plugins.items()})


def _line(chips: Chips, name: str) -> Line:
    return next(line for line in chips.lines if line.name == name)


def test_a_chip_without_a_plugin_runs_on_generic() -> None:
    """910B2: 24 cube cores x 4096 MAC x 2 x 1.8 GHz = 353.9 TFLOPS, from the vendor's own documents; 64 GiB of HBM."""
    chips = survey(_registry())
    assert chips.findings == ()
    assert _line(chips, "ascend-910b2") == Line(
        name="ascend-910b2",
        title="Huawei Ascend 910B2",
        vendor="ascend",
        runs_on="generic",
        device="npu",
        nbytes=64 * 2**30,
        dtype="float16",
        peak_flops=353_894_400_000_000,
        peak_origin="datasheet",
    )


@pytest.mark.parametrize(
    ("rate", "count", "peak"), [("datasheet", "fitted", "fitted"), ("measured", "derived", "derived")]
)
def test_a_computed_peak_has_its_weakest_origin(
    rate: str, count: str, peak: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A rate and a clock that are measured, times a core count that is only derived, is derived."""
    text = (Path(hdl.__file__).parent / "chips/acme-x1.json").read_text("utf-8")
    chip = json.loads(text.replace('"estimate"', f'"{rate}"')) | {"name": "toy"}
    (matrix,) = (engine for engine in chip["engines"].values() if engine["kind"] == "matrix")
    chip["cores"][matrix["core"][0]]["count"]["origin"] = count
    (tmp_path / "toy.json").write_text(json.dumps(chip))
    monkeypatch.setenv("DSF_HDL_PATH", str(tmp_path))
    assert _line(survey(_registry()), "toy").peak_origin == peak


def test_a_broken_plugin_is_named_with_its_cause_beside_its_chips_and_no_others() -> None:
    chips = survey(_registry(ascend="no_such_module"))
    assert {line.vendor for line in chips.findings} == {"ascend"}
    problem = _line(chips, "ascend-910b2").problem or ""
    assert "'ascend' (no_such_module) cannot be used: ModuleNotFoundError: No module named 'no_such_module'" in problem
    assert _line(chips, "acme-x1").status == "ready"


def test_a_malformed_file_is_listed_with_all_that_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "toy.json").write_text('{"hdl": "1.0", "name": "toy", "clocks": 3}')
    monkeypatch.setenv("DSF_HDL_PATH", str(tmp_path))
    chips = survey(_registry())
    (toy,) = chips.findings
    assert toy.name == "toy"
    assert "/clocks: found 3; expected an object" in (toy.problem or "")
    assert "/vendor: is missing" in (toy.problem or "")


def test_the_command_shows_what_is_wrong_below_the_table_and_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "toy.json").write_text("[3")
    monkeypatch.setenv("DSF_HDL_PATH", str(tmp_path))
    assert cli.call(["chips"]) == 1
    out, err = capsys.readouterr()
    table, problems = out.split("toy cannot be used: ")
    assert "32.77 TFLOPS bfloat16 (estimate)" in table
    assert "see below" in table
    assert "toy.json" in problems
    assert err == ""


def test_a_file_that_we_stumble_over_hides_no_other_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    load = hdl.load

    def stumble(chip: str, extra: tuple[str, ...] = ()) -> hdl.Chip:
        if chip == "acme-x1":
            raise OverflowError("int too large")
        return load(chip, extra)

    monkeypatch.setattr(hdl, "load", stumble)
    lines = {line.name: line for line in survey(_registry()).lines}
    assert lines["acme-x1"].status.endswith("acme-x1.json: OverflowError: int too large")
    assert lines["ascend-910b2"].nbytes is not None
