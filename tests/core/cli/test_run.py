"""`dsf-cli run` hands what it was asked on to `dsf.enable`, whole."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

import dsf
from dsf import cli, errors

ASK = import_module("dsf.models.ask")  # the package has a function of that name


@pytest.fixture
def enabled_with(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `dsf.enable` was called with; it goes no further."""
    calls: list[dict[str, Any]] = []

    def enable(chip: str | None, **options: Any) -> None:
        calls.append({"chip": chip, **options})
        raise errors.DeviceError("DSF-D999", "far enough")

    monkeypatch.setattr(dsf, "enable", enable)
    monkeypatch.setattr(ASK, "locate", lambda source: None)
    return calls


def test_every_option_of_the_chip_reaches_it(enabled_with: list[dict[str, Any]]) -> None:
    options = ["--chip", "acme-x1", "--fidelity", "timing", "--strict", "--thermal", "threshold", "--ambient", "55.5"]
    options += ["--strict-layouts"]
    assert cli.call(["run", "--model", "smollm2", *options, "Hello?"]) == cli.WRONG_CALL
    assert enabled_with == [
        {
            "chip": "acme-x1",
            "fidelity": "timing",
            "strict": True,
            "thermal": "threshold",
            "ambient": 55.5,
            "strict_layouts": True,
        }
    ]


def test_what_is_not_asked_is_left_to_enable(enabled_with: list[dict[str, Any]]) -> None:
    assert cli.call(["run", "--model", "smollm2", "Hello?"]) == cli.WRONG_CALL
    nothing = {"chip": None, "fidelity": None, "thermal": None, "ambient": None}
    assert enabled_with == [{**nothing, "strict": False, "strict_layouts": False}]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--ambient", "warm"], "'warm' is not a valid float"),
        (
            ["--ambient", "nan"],
            "DSF-D020: ambient: found 'nan', which is no temperature; expected the room's air in °C",
        ),
        (["--ambient", "99"], "DSF-D020: ambient: found 99 °C; expected the room's air in °C, from -40 to 71, in"),
        (["--thermal", "fan"], "DSF-D022: thermal policy 'fan' is unknown; expected one of ladder, threshold, none"),
    ],
)
def test_an_impossible_room_or_policy_is_a_wrong_call(
    options: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ASK, "locate", lambda source: None)
    dsf.disable()
    assert cli.call(["run", "--model", "smollm2", "--chip", "acme-x1", *options, "Hello?"]) == cli.WRONG_CALL
    assert sentence in capsys.readouterr().err
    assert dsf.current() is None
