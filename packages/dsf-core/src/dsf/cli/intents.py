"""`dsf-cli intents`: what a model wants, as the graph of a layer, and how much of a step is understood."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from dsf.cli.switches import common

if TYPE_CHECKING:
    from dsf.models.wants import Listing, Wants

__all__ = ["intents"]


@click.command(short_help="Show what a model wants: the graph of a layer, and the coverage.")
@click.argument("model")
@click.option("--seq-len", type=click.IntRange(min=1), default=128, show_default=True, help="Tokens of the prompt.")
@click.option(
    "--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Sequences, or images, at once."
)
@click.option("--prefill", "step", flag_value="prefill", help="The step that reads the prompt. [default]")
@click.option("--decode", "step", flag_value="decode", help="The step after it, of one token.")
@click.option(
    "--layer", type=click.IntRange(min=0), default=0, show_default=True, help="The layer whose graph to show."
)
@click.option("--dtype", help="The weights' number format, such as bfloat16. [default: the configuration's]")
@click.option("--text", is_flag=True, help="The layer as text that DSF can read again, and nothing else.")
@common
def intents(
    model: str, seq_len: int, batch: int, step: str | None, layer: int, dtype: str | None, text: bool
) -> Wants | Listing:
    """Show what MODEL wants: one step of it, recorded operation by operation and read as intents. Nothing is computed,
    no chip and no weights are needed: the 671 billion parameters of DeepSeek-V3 take seconds.

    First comes the graph of one layer: each intent with its tensors (%number of the buffer, sizes, number format), what
    it is part of, and the module that asked for it. Then, for the whole step, the share of matrix FLOPs and of
    operations in named intents, and what stayed opaque; if anything did, the exit status is 1.

    \b
    MODEL is one of
      a preset          llama3-8b, deepseek-v3, ... (a wrong name lists them)
      a folder          of Hugging Face's form, with config.json
      a file            ending in .gguf
      module:function   a function of yours that returns a torch module of transformers,
                        or any module and its inputs as a pair

    \b
    Examples:
      dsf-cli intents llama3-8b
      dsf-cli intents deepseek-v3 --layer 3 --decode
      dsf-cli intents bert-base --seq-len 512 --batch 8 --json
      dsf-cli intents mymodels:small
      dsf-cli intents qwen3-30b-a3b --layer 1 --text > layer.txt
    """
    from dsf.models.ask import floating
    from dsf.models.wants import Listing, wants

    found = wants(
        model,
        batch=batch,
        length=seq_len,
        decode=step == "decode",
        layer=layer,
        dtype=floating(dtype) if dtype else None,
        watch=_aside if sys.stderr.isatty() else lambda stage: None,
    )
    return Listing(found) if text else found


def _aside(stage: str) -> None:
    click.echo(f"{stage} ...", err=True)
