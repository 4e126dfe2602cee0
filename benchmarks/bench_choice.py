"""How good and how quick choices are: regret of the chosen kernel, time of a decision, time of the fallback compiler.

*Regret*: over shapes that no tree was learned from, how much longer the chosen candidate takes than the best of all,
by predicted time. *Decision*: features, tree and candidate of an intent that was never seen, without writing its
program; *known*: the choice of an intent that was seen before. *Compile*: the fallback compiler from the intent to a
program that is verified and checked, over kinds and shapes.

    python benchmarks/bench_choice.py [--chip ascend-910b2] [--shapes 60] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from time import perf_counter

import torch

from dsf.hdl import Chip
from dsf.intent.ir import Intent, attributes
from dsf.intent.tape import Region, Window
from dsf.isa.program import contiguous, torch_dtype
from dsf.kernels.choose import Chooser
from dsf.kernels.learn import regret, samples
from dsf.kernels.target import Target
from dsf.kernels.workloads import workloads
from dsf.machine.timing import Timing
from dsf.plugins import View, registry

SHAPES = ((1, 4096), (64, 1000), (128, 11008), (1024, 4096), (33, 77), (4096, 128))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--chip", default="ascend-910b2")
    options.add_argument("--shapes", type=int, default=60)
    options.add_argument("--json", action="store_true")
    asked = options.parse_args()
    torch.set_num_threads(1)
    view = registry().view(registry().chip(asked.chip))
    found = {**judged(view, asked.shapes), **decided(view), **compiled(view)}
    print(json.dumps(found) if asked.json else "\n".join(f"{name:44} {value:12.4f}" for name, value in found.items()))


def chooser(view: View) -> Chooser:
    isa = view.isa()
    return Chooser.of(Target(view.chip, isa, Timing(view.chip, isa), trees=view.trees()), view.kernels())


def judged(view: View, most: int) -> dict[str, float]:
    """Percent, by kind."""
    found = {}
    for kind in ("linear", "matmul", "attention"):
        choose = chooser(view)
        trees = choose.target.trees
        if kind in trees.by_kind:
            unseen = samples(choose, kind, "unseen", most if kind != "attention" else max(most // 10, 1))
            row = regret(kind, trees, unseen)
            doubt = statistics.mean(not trees.advice(kind, s.sizes).decides for s in unseen)  # type: ignore[union-attr]
            found |= {f"{kind}_regret_mean_percent": 100 * row.mean, f"{kind}_regret_worst_percent": 100 * row.worst,
                      f"{kind}_left_to_predicted_times_percent": 100 * doubt}  # fmt: skip
        print(f"{kind} judged", file=sys.stderr)
    return found


def decided(view: View) -> dict[str, float]:
    """Microseconds, medians over unseen linears and products."""
    choose, dtype = chooser(view), torch_dtype(view.chip.numerics.preferred)
    intents = [i for kind in ("linear", "matmul") for i in workloads(kind, dtype, "unseen", 300)]

    def decide(intent: Intent) -> None:
        advice = choose.advice(intent)
        if advice is not None:
            next(advice.order())

    fresh = statistics.median(seconds(lambda intent=intent: decide(intent)) for intent in intents)  # type: ignore[misc]
    known = intents[0]
    choose(known)
    rounds = 10_000
    again = seconds(lambda: [choose(known) for _ in range(rounds)]) / rounds
    return {"decision_microseconds": 1e6 * fresh, "known_microseconds": 1e6 * again}


def compiled(view: View) -> dict[str, float]:
    """Milliseconds, median of a kernel of the fallback compiler."""
    times = [
        seconds(lambda intent=intent: chooser(view)(intent))  # type: ignore[misc]
        for shape in SHAPES
        for intent in fallbacks(view.chip, shape)
    ]
    return {
        "compile_milliseconds_median": 1e3 * statistics.median(times),
        "compile_milliseconds_worst": 1e3 * max(times),
    }


def fallbacks(chip: Chip, shape: tuple[int, int]) -> list[Intent]:
    dtype = torch_dtype(chip.numerics.preferred)
    dense = Window(shape, contiguous(shape), 0, dtype)
    turned = Window(shape, (1, shape[0]), 0, dtype)
    wide = torch.float32
    x, y = ("cast", wide, ("in", 0)), ("in", 1)
    add = ("add", dtype, ("in", 0), y)
    silu = ("cast", dtype, ("mul", wide, x, ("sigmoid", wide, x)))
    return [
        _intent("elementwise", (dense, dense), dense, expr=add),
        _intent("elementwise", (dense,), dense, expr=silu),
        _intent("copy", (turned,), dense),
        _intent("copy", (dense,), dense),
        _intent("fill", (), dense, value=0.5),
    ]


def _intent(kind: str, inputs: tuple[Window, ...], output: Window, **attrs: object) -> Intent:
    regions = [Region(n, window) for n, window in enumerate((*inputs, output))]
    return Intent(kind, tuple(regions[:-1]), tuple(regions[-1:]), attributes(kind, **attrs))


def seconds(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


if __name__ == "__main__":
    main()
