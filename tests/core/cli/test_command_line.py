"""The front door: results on stdout, talk on stderr, one status for each kind of ending, and no traceback unasked."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata

import click
import pytest

from dsf import cli, errors

Ending = Callable[[Callable[[], object]], None]


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ending]:
    """Give the command line a command `end` that does what the test says."""
    monkeypatch.delenv("DSF_DEBUG", raising=False)

    def add(body: Callable[[], object]) -> None:
        cli.commands.add_command(cli.switches.common(click.command("end")(lambda: body())))

    yield add
    cli.commands.commands.pop("end", None)


def _raise(error: BaseException) -> Callable[[], object]:
    def body() -> object:
        raise error

    return body


def test_the_version_names_torch_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.call(["--version"]) == 0
    expected = f"dsf-cli {metadata.version('dsf-core')} (torch {metadata.version('torch')})\n"
    assert capsys.readouterr() == (expected, "")


def test_no_arguments_explain_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    cli.call([])
    said = "".join(capsys.readouterr())
    assert "Usage: dsf-cli" in said
    assert "chips" in said
    assert "run" in said


@pytest.mark.parametrize("command", ["chips", "disasm", "intents", "isa", "run"])
def test_every_command_shows_examples_of_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.call([command, "--help"]) == 0
    assert f"Examples:\n    dsf-cli {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["dance"], "No such command 'dance'"),
        (["run", "Hello"], "Missing option '--model'"),
        (["run", "--model", "smollm2", "--new-tokens", "0", "Hello"], "0 is not in the range x>=1"),
        (["run", "--model", "smollm2", "--fidelity", "perfect", "Hello"], "'perfect' is not one of"),
        (["run", "--model", "gpt5", "Hello"], "DSF-C001: no model named 'gpt5'; known models: smollm2"),
    ],
)
def test_a_wrong_call_ends_with_2_and_a_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.call(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert "Traceback" not in err


def test_an_error_on_purpose_is_its_sentence_and_its_status(ending: Ending, capsys: pytest.CaptureFixture[str]) -> None:
    ending(_raise(errors.HdlError("DSF-H001", "no chip named 'toy2'; known chips: toy1")))
    assert cli.call(["end"]) == 2
    assert capsys.readouterr() == ("", "dsf-cli: DSF-H001: no chip named 'toy2'; known chips: toy1\n")
    ending(_raise(errors.MachineError("DSF-X001", "out of bounds")))
    assert cli.call(["end"]) == 3
    assert capsys.readouterr() == ("", "dsf-cli: DSF-X001: out of bounds\n")


def test_an_unexpected_fault_is_one_sentence_and_status_3(ending: Ending, capsys: pytest.CaptureFixture[str]) -> None:
    ending(_raise(ZeroDivisionError("division by zero")))
    assert cli.call(["end"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "dsf-cli: a fault in DSF: ZeroDivisionError: division by zero; run again with --debug for the traceback\n"
    )


@pytest.mark.parametrize("how", ["option", "variable"])
def test_debug_shows_the_traceback(
    how: str, ending: Ending, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ending(_raise(ZeroDivisionError("division by zero")))
    if how == "variable":
        monkeypatch.setenv("DSF_DEBUG", "1")
    assert cli.call(["end", *(["--debug"] if how == "option" else [])]) == 3
    err = capsys.readouterr().err
    assert err.startswith("Traceback (most recent call last):")
    assert err.endswith("dsf-cli: a fault in DSF: ZeroDivisionError: division by zero\n")


def test_ctrl_c_is_no_fault(ending: Ending, capsys: pytest.CaptureFixture[str]) -> None:
    ending(_raise(KeyboardInterrupt()))
    assert cli.call(["end"]) == 130
    assert capsys.readouterr().err.strip() == "dsf-cli: stopped"


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["table", "json"])
def test_a_reader_that_leaves_early_is_no_fault(form: list[str]) -> None:
    """`dsf-cli ... | head -0`: the pipe has no reader when the result, here an empty list of chips, is written."""
    script = f"""
import os, sys, click, dsf.cli
from dsf.survey import Chips
dsf.cli.commands.add_command(dsf.cli.switches.common(click.command("end")(lambda: Chips(()))))
read, write = os.pipe()
os.close(read)
os.dup2(write, 1)
sys.exit(dsf.cli.call(["end", *{form}]))
"""
    done = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_findings_end_with_1_after_the_result(ending: Ending, capsys: pytest.CaptureFixture[str]) -> None:
    class Value:
        findings = ("one",)

        def to_json(self) -> list[int]:
            return [1, 2]

    ending(Value)
    assert cli.call(["end", "--json"]) == 1
    assert capsys.readouterr() == ("[\n  1,\n  2\n]\n", "")


def test_the_command_line_starts_without_torch() -> None:
    script = "import sys, dsf.cli; print([m for m in ('torch', 'transformers', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
