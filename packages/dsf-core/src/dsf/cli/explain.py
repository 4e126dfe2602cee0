"""`dsf-cli explain`: which kernel serves what of a model on a chip, and why."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from dsf.cli.switches import common

if TYPE_CHECKING:
    from dsf.models.explain import Explanation

__all__ = ["explain"]


@click.command(short_help="Which kernel serves what of a model, and why.")
@click.argument("model")
@click.option("--chip", required=True, help="A chip of `dsf-cli chips`, or a path.")
@click.option("--seq-len", type=click.IntRange(min=1), default=128, show_default=True, help="Tokens of the prompt.")
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Sequences at once.")
@click.option("--decode", is_flag=True, help="The step after the prompt, of one token; else the prompt's own.")
@click.option("--dtype", help="The weights' number format, such as float16. [default: the chip's preferred one]")
@common
def explain(model: str, chip: str, seq_len: int, batch: int, decode: bool, dtype: str | None) -> Explanation:
    """Say for each distinct intent of a step of MODEL how often it occurs, which kernel of --chip serves it in which
    variant and why, what the others would take, its predicted time, its share of the step, and how near that is to
    the chip's own roofline: FLOPs at the peak of the matrix engines or bytes at main memory's bandwidth, whichever
    takes longer. Then the same by kind, whose kernels the time is spent in, and what goes to the host.

    Nothing is computed and no weights are needed; MODEL is what `dsf-cli intents` takes.

    \b
    Examples:
      dsf-cli explain llama3-8b --chip ascend-910b2 --seq-len 4096
      dsf-cli explain llama3-8b --chip ascend-910b2 --seq-len 1024 --decode --batch 16
      dsf-cli explain bert-base --chip acme-x1 --json
    """
    from dsf.models.ask import floating
    from dsf.models.explain import explain as explained
    from dsf.plugins import registry

    known = registry()
    view = known.view(known.chip(chip))
    return explained(
        model,
        view,
        batch=batch,
        length=seq_len,
        decode=decode,
        dtype=floating(dtype or view.chip.numerics.preferred),
        watch=_aside if sys.stderr.isatty() else lambda stage: None,
    )


def _aside(stage: str) -> None:
    click.echo(f"{stage} ...", err=True)
