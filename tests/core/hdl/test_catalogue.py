"""Which chips there are: yours before a plugin's before the shipped ones, each under its own name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dsf import errors, hdl

Write = Callable[..., Path]
SHIPPED = (
    "acme-x1", "ascend-910b1", "ascend-910b2", "ascend-910b2c", "ascend-910b3", "ascend-910b4", "ascend-910b4-1",
    "ascend-910c", "ascend-910c-9362", "ascend-910c-9372", "ascend-910c-9392",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DSF_HDL_PATH", raising=False)


def test_the_shipped_chips_are_listed_by_name() -> None:
    assert hdl.names() == SHIPPED
    entry = {entry.name: entry for entry in hdl.catalogue()}["ascend-910b3"]
    assert (entry.vendor, entry.title, entry.origin) == ("ascend", "Huawei Ascend 910B3", "shipped")
    assert (entry.base, entry.problem, Path(entry.path).name) == ("ascend-910b2", None, "ascend-910b2.json")


@pytest.mark.parametrize(
    ("asked", "hint"),
    [("toy2", ""), ("ascend-910b", "; did you mean 'ascend-910b4'?"), ("acme", "; did you mean 'acme-x1'?"), ("", "")],
)
def test_an_unknown_chip_is_answered_with_the_known_ones(asked: str, hint: str) -> None:
    with pytest.raises(errors.HdlError) as error:
        hdl.load(asked)
    assert str(error.value) == f"DSF-H001: no chip named '{asked}'; known chips: {', '.join(SHIPPED)}{hint}"


def test_a_path_is_read_whatever_the_catalogue_says(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write({"/title": "Mine"})
    assert hdl.load(path).title == hdl.load(str(path)).title == "Mine"
    monkeypatch.chdir(path.parent)
    assert hdl.load("chip.json").title == "Mine"


def test_the_folders_and_files_of_the_variable_stand_before_the_shipped_ones(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, file = tmp_path / "mine", write({"/name": "toy-1", "/vendor": "toy"})
    folder.mkdir()
    write({"/title": "Mine"}, "mine/x.json")
    monkeypatch.setenv("DSF_HDL_PATH", os.pathsep.join([str(folder), "", str(file)]))
    assert hdl.names() == (*sorted([*SHIPPED, "toy-1"]),)
    assert hdl.load("acme-x1").title == "Mine"
    assert {e.name: e.origin for e in hdl.catalogue() if e.origin != "shipped"} == {
        "acme-x1": "DSF_HDL_PATH",
        "toy-1": "DSF_HDL_PATH",
    }


def test_the_chips_of_a_plugin_stand_between_yours_and_the_shipped_ones(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, title in (("plugin", "The plugin's"), ("mine", "Mine")):
        (tmp_path / folder).mkdir()
        write({"/title": title}, f"{folder}/acme.json")
    extra = [tmp_path / "plugin"]
    assert hdl.load("acme-x1", extra).title == "The plugin's"
    assert {e.name: e.origin for e in hdl.catalogue(extra)}["acme-x1"] == "plugin"
    monkeypatch.setenv("DSF_HDL_PATH", str(tmp_path / "mine"))
    assert hdl.load("acme-x1", extra).title == "Mine"
    assert hdl.load("acme-x1").title == "Mine"


def test_a_place_that_does_not_exist_is_an_error_and_not_silently_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSF_HDL_PATH", "/no/such/place")
    sentence = "^DSF-H004: DSF_HDL_PATH: '/no/such/place' does not exist; expected folders or JSON files$"
    with pytest.raises(errors.HdlError, match=sentence):
        hdl.names()


def test_a_broken_file_is_listed_with_its_problem_and_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.json").write_text("{", "utf-8")
    monkeypatch.setenv("DSF_HDL_PATH", str(tmp_path))
    assert hdl.names() == SHIPPED
    entry = next(entry for entry in hdl.catalogue() if entry.name == "broken")
    assert entry.problem is not None
    assert entry.problem.startswith(f"{tmp_path}/broken.json: no JSON at line 1, column 2")
    with pytest.raises(errors.HdlError, match=r"^DSF-H002: .*broken\.json: no JSON at line 1"):
        hdl.load("broken")


def test_a_variant_of_a_malformed_file_reports_the_file(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write({
        "/name": "toy-1", "/clocks/core/value": "fast", "/variants": {"toy-2": {"title": "Toy 2", "set": {}}}
    })  # fmt: skip
    monkeypatch.setenv("DSF_HDL_PATH", str(path))
    with pytest.raises(errors.HdlError, match=r"chip.json: /clocks/core/value: 'fast' is not a frequency"):
        hdl.load("toy-2")


def test_a_variant_that_sets_nonsense_is_named(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    variants = {"toy-2": {"title": "Toy 2", "set": {"/clocks/core": {"value": "2 kg", "origin": "estimate"}}}}
    path = write({"/name": "toy-1", "/variants": variants})
    monkeypatch.setenv("DSF_HDL_PATH", str(path))
    assert hdl.load("toy-1").name == "toy-1"
    with pytest.raises(errors.HdlError) as error:
        hdl.load("toy-2")
    first, *lines = error.value.sentence.split("\n")
    assert first == f"{path}: variant toy-2: 2 problems"
    assert lines[0] == "  /clocks/core/source: is missing; it is required"
    assert lines[1].startswith("  /clocks/core/value: '2 kg': 'kg' is no unit of a frequency")


def test_a_variant_that_is_like_another_differs_from_it_in_what_it_sets(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hertz(value: str) -> dict[str, str]:
        return {"value": value, "origin": "estimate", "source": "acme"}

    def bytes_of(value: str) -> dict[str, str]:
        return {"value": value, "origin": "estimate", "source": "acme"}

    variants = {
        "toy-2": {"title": "Toy 2", "set": {"/clocks/core": hertz("2 GHz"), "/memories/acc/size": bytes_of("1 KiB")}},
        "toy-3": {"title": "Toy 3", "like": "toy-2", "set": {"/clocks/core": hertz("3 GHz")}},
    }
    monkeypatch.setenv("DSF_HDL_PATH", str(write({"/name": "toy-1", "/variants": variants})))
    found = {name: hdl.load(name) for name in ("toy-1", "toy-2", "toy-3")}
    assert {n: c.clocks["core"] // 10**9 for n, c in found.items()} == {"toy-1": 1, "toy-2": 2, "toy-3": 3}
    assert {n: c.memories["acc"].nbytes >> 10 for n, c in found.items()} == {"toy-1": 256, "toy-2": 1, "toy-3": 1}
    assert found["toy-3"].title == "Toy 3"


def test_a_file_is_read_again_when_it_changes_and_not_otherwise(write: Write) -> None:
    path = write({"/title": "First"})
    first = hdl.load(path)
    assert hdl.load(path) is first
    write({"/title": "Second one"})
    assert hdl.load(path).title == "Second one"


def test_the_catalogue_needs_no_torch() -> None:
    """`dsf-cli chips` and a malformed file are answered before anything heavy is imported."""
    code = "import sys; from dsf import hdl; hdl.load('acme-x1'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_environment())
    assert done.stdout == "False\n"


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
