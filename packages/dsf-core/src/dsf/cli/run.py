"""`dsf-cli run`: ask a model one question on an emulated chip."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dsf.cli.switches import Switches, common
from dsf.cli.watching import progress

if TYPE_CHECKING:
    from dsf.models import Answer

__all__ = ["run"]


@click.command(short_help="Ask a model one question on an emulated chip.")
@click.argument("prompt")
@click.option("--chip", help="A chip of `dsf-cli chips`, or a path. [default: DSF_CHIP, else the only plugin's]")
@click.option("--model", required=True, help="A model that DSF knows by name, such as smollm2.")
@click.option(
    "--fidelity",
    type=click.Choice(["isa", "operator", "timing"]),
    help="How much is really done: instructions executed, kernels by their reference, or time alone. "
    "[default: DSF_FIDELITY, else isa]",
)
@click.option("--new-tokens", type=click.IntRange(min=1), default=64, show_default=True, help="Stop after N tokens.")
@click.option("--dtype", help="The weights' number format, such as bfloat16. [default: the chip's preferred one]")
@click.option("--strict", is_flag=True, help="Fail where work would be cast or moved to the host.")
@click.option("--strict-layouts", is_flag=True, help="Tiles on chip in the engines' own order; slower, same numbers.")
@click.option(
    "--thermal",
    help="What slows a warm chip: ladder, threshold, or none but its firmware. [default: DSF_THERMAL, else ladder]",
)
@click.option("--ambient", type=float, help="The room's air in °C. [default: DSF_AMBIENT, else the chip's description]")
@common
@click.pass_obj
def run(
    switches: Switches,
    prompt: str,
    chip: str | None,
    model: str,
    fidelity: str | None,
    new_tokens: int,
    dtype: str | None,
    strict: bool,
    strict_layouts: bool,
    thermal: str | None,
    ambient: float | None,
) -> Answer:
    """Ask --model the question PROMPT on the emulated --chip, then report what that cost there.

    The answer is streamed as its tokens come, greedily; the report follows. Weights come from an installed package,
    nothing is downloaded.

    \b
    Examples:
      dsf-cli run --chip ascend-910b2 --model smollm2 "What is the capital of France?"
      dsf-cli run --chip acme-x1 --model smollm2 --json "Name a prime number." > report.json
      dsf-cli run --chip ascend-910b2 --model smollm2 --fidelity timing --new-tokens 16 "How long does this take?"
      dsf-cli run --chip ascend-910b2 --model smollm2 --fidelity timing --ambient 55 "How warm does it get?"
    """
    from dsf import models

    models.find(model)  # before seconds go into imports
    with progress() as watch:
        return models.ask(
            prompt,
            model=model,
            chip=chip,
            fidelity=fidelity,
            new_tokens=new_tokens,
            dtype=dtype,
            strict=strict,
            thermal=thermal,
            ambient=ambient,
            strict_layouts=strict_layouts,
            say=_silent if switches.json else _aloud,
            watch=watch,
        )


def _aloud(text: str) -> None:
    click.echo(text, nl=False)


def _silent(text: str) -> None:
    """With --json the answer is a field of the one value on stdout."""
