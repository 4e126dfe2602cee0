"""`dsf-cli chips`: what can be enabled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dsf.cli.switches import common

if TYPE_CHECKING:
    from dsf.survey import Chips

__all__ = ["chips"]


@click.command(short_help="List the chips that can be enabled.")
@common
def chips() -> Chips:
    """List the chips that can be enabled: name, vendor, who answers for them, torch device, memory, peak, status.

    \b
    Examples:
      dsf-cli chips
      dsf-cli chips --json
      DSF_HDL_PATH=~/my-chips dsf-cli chips
    """
    from dsf.plugins import registry
    from dsf.survey import survey

    return survey(registry())
