"""`dsf-cli isa`: the manual of a chip's instruction set."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dsf.cli.switches import common

if TYPE_CHECKING:
    from dsf.isa.manual import Entry, Manual

__all__ = ["isa"]


@click.command(short_help="Print the manual of a chip's instruction set.")
@click.argument("chip")
@click.argument("name", required=False)
@common
def isa(chip: str, name: str | None) -> Manual | Entry:
    """Print the manual of the instruction set of CHIP, engine by engine, or of its instruction NAME alone.

    Of each instruction: its operands with their memories and number formats, its scalars, what it does, how long it
    takes, what its operands must be to each other, and where DSF knows that from.

    \b
    Examples:
      dsf-cli isa ascend-910b2
      dsf-cli isa ascend-910b2 Mmad
      dsf-cli isa acme-x1 --json
    """
    from dsf.isa.manual import entry, manual
    from dsf.plugins import registry

    known = registry()
    view = known.view(known.chip(chip))
    return manual(view.isa(), view.chip) if name is None else entry(view.isa(), view.chip, name)
