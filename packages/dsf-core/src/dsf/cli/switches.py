"""The options that every command has, and where they are kept."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from typing import Any

import click
from attrs import define

__all__ = ["Switches", "common", "version_option"]

Command = Callable[..., Any]


@define
class Switches:
    """How one call of the command line speaks: as a table or as JSON, with or without tracebacks."""

    json: bool = False
    debug: bool = False


def common(command: Command) -> Command:
    """Give *command* `--json` and `--debug`; they are noted in the call's `Switches` and not passed on."""
    for name, text in (
        ("json", "Print the result as one JSON value."),
        ("debug", "Show the traceback of an error (or set DSF_DEBUG=1)."),
    ):
        command = click.option(f"--{name}", is_flag=True, expose_value=False, callback=_note, help=text)(command)
    return command


def _note(context: click.Context, option: click.Parameter, value: bool) -> None:
    switches = context.find_object(Switches)
    if value and switches is not None and option.name:
        setattr(switches, option.name, True)


def _print_version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        click.echo(f"dsf-cli {metadata.version('dsf-core')} (torch {metadata.version('torch')})")
        context.exit()


version_option = click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Print the version."
)
