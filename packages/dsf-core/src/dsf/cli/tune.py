"""`dsf-cli tune`: learn a chip's decision trees from predicted times."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsf.cli.switches import common
from dsf.cli.watching import progress

if TYPE_CHECKING:
    from dsf.kernels.learn import Learned

__all__ = ["tune"]


class _Names(click.ParamType):
    """Words with commas between them."""

    name = "names"

    def convert(self, value: object, param: click.Parameter | None, context: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        return tuple(dict.fromkeys(part.strip() for part in str(value).split(",") if part.strip()))


@click.command(short_help="Learn which kernel is best for which shapes of a chip.")
@click.argument("chip")
@click.option("--kinds", type=_Names(), help="The kinds of intents, with commas between them. [default: all]")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the trees to this file.")
@click.option(
    "--scale", type=click.FloatRange(0.001, 100), default=1.0, show_default=True,
    help="How many shapes to learn from, as a share of the usual number.",
)  # fmt: skip
@common
def tune(chip: str, kinds: tuple[str, ...] | None, out: Path | None, scale: float) -> Learned:
    """Learn, for CHIP, which kernel in which variant is best for which shapes.

    Every candidate is timed by the timing plane over the shapes of real models. The result is one decision tree for
    each kind of intent, and what the choice by it costs on other shapes. It takes minutes. Trees written to a folder of
    DSF_TREE_PATH, as CHIP.json, stand before those that come with the kernels.

    \b
    Examples:
      dsf-cli tune ascend-910b2 --out trees/ascend-910b2.json
      dsf-cli tune acme-x1 --kinds linear --scale 0.1
      DSF_TREE_PATH=trees dsf-cli disasm --chip ascend-910b2 --kernel linear --shape 128,4096,4096
    """
    from dsf.kernels import learn
    from dsf.kernels.choose import Chooser
    from dsf.kernels.target import Target
    from dsf.kernels.workloads import KINDS
    from dsf.machine.timing import Timing
    from dsf.plugins import registry

    known = registry()
    view = known.view(known.chip(chip))
    isa = view.isa()
    chooser = Chooser.of(Target(view.chip, isa, Timing(view.chip, isa)), view.kernels())
    learn.check_can_learn()
    with progress() as watch:
        learned = learn.tune(chooser, kinds or tuple(KINDS), watch, scale)
    if out is not None:
        learn.write(learned, out)
    return learned
