"""docs/reference/cli.md says what the command line does: no option is missing there, and none is invented."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from dsf import cli, models
from dsf.models import presets

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs/reference/cli.md").read_text("utf-8")


def _options(command: click.Command) -> set[str]:
    return {name for option in command.params if isinstance(option, click.Option) for name in option.opts} | {"--help"}


def test_every_command_has_its_heading(page: str) -> None:
    documented = set(re.findall(r"^## dsf-cli (\w+)", page, re.MULTILINE))
    assert documented == set(cli.commands.commands)


def test_every_option_is_documented_and_no_other(page: str) -> None:
    existing = _options(cli.commands).union(*map(_options, cli.commands.commands.values()))
    documented = set(re.findall(r"--[a-z][a-z-]*", page))
    assert documented - {"--no-deps"} == existing


def test_every_option_is_documented_in_its_commands_section(page: str) -> None:
    everywhere = page[: page.index("\n## ")]
    for name, command in cli.commands.commands.items():
        section = everywhere + page.split(f"\n## dsf-cli {name}")[1].split("\n## ")[0]
        missing = {option for option in _options(command) if f"`{option}`" not in section}
        assert missing == set(), name


def test_every_model_is_documented_with_the_command_that_installs_it(page: str) -> None:
    for source in models.SHELF.values():
        assert f"| `{source.name}` | {source.title}" in page
        assert source.install in page


def test_every_preset_is_documented_with_its_source_and_no_other() -> None:
    page = (ROOT / "docs/reference/presets.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `([^`]+)` \| .*\((https://\S+)\)", page, re.MULTILINE))
    assert rows == {name: presets.preset(name).source for name in presets.names()}


def test_every_encoder_is_documented_with_the_command_that_installs_it() -> None:
    page = (ROOT / "docs/reference/presets.md").read_text("utf-8")
    for source in models.ENCODERS.values():
        assert f"| `{source.name}` | {source.title}" in page
        assert source.install in page


def test_every_exit_status_is_documented(page: str) -> None:
    statuses = {cli.FINE, cli.FOUND, cli.WRONG_CALL, cli.OUR_FAULT, cli.STOPPED}
    assert {int(status) for status in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)} == statuses


def test_every_environment_variable_is_documented_and_no_other() -> None:
    sources = [path.read_text("utf-8") for path in ROOT.glob("packages/*/src/**/*.py")]
    used = {name for text in sources for name in re.findall(r"\bDSF_[A-Z_]+\b", text)}
    page = (ROOT / "docs/reference/environment.md").read_text("utf-8")
    assert set(re.findall(r"^\| `(DSF_[A-Z_]+)` \|", page, re.MULTILINE)) == used
