"""SmolLM2 through the emulated Ascend 910B2, every instruction executed, beside plain torch on this processor.

Both run the same model code on the same 128-token prompt, one thread, in turn in one process: a prefill that gives the
logits of all positions, then decode steps on the cache that it left. Printed: medians of wall time in milliseconds and
of the ratio to plain torch (float32, eager), for the whole way through the device and for the programs alone (the
instructions of the same step, bound to their addresses, run again); the first round of the device, which plans and
binds, apart. Then the same with strict layouts, where tiles on chip lie in the fractal orders of the cube.

    python benchmarks/bench_smollm2.py [--rounds 5] [--steps 8] [--chip ascend-910b2] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

import dsf
from dsf.models.load import load
from dsf.models.shelf import find
from dsf.pipeline import Session

PROMPT = (
    "The history of computing is longer than that of the machines we now call computers, and it includes the history "
    "of methods intended for pen and paper or for chalk and slate, with or without the aid of tables. "
) * 6
TOKENS = 128
Row = dict[str, float]


def quiet(stage: str, done: int, total: int) -> None:
    """The loader's progress is not wanted here."""


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    start = perf_counter()
    result = work()
    return perf_counter() - start, result


class Model:
    """One model with its prompt: a prefill gives logits and a cache, a step goes on from there."""

    def __init__(self, model: torch.nn.Module, ids: torch.Tensor) -> None:
        self.model, self.ids = model, ids
        self.cache: Any = None
        self.token = ids[:, -1:]

    def prefill(self) -> torch.Tensor:
        with torch.no_grad():
            out = self.model(self.ids, use_cache=True)
            logits: torch.Tensor = out.logits.cpu()
        self.cache, self.token = out.past_key_values, logits[:, -1:].argmax(-1)
        return logits

    def step(self) -> None:
        with torch.no_grad():
            out = self.model(self.token.to(self.ids.device), past_key_values=self.cache, use_cache=True)
            self.token = out.logits.cpu()[:, -1:].argmax(-1)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--steps", type=int, default=8)
    options.add_argument("--chip", default="ascend-910b2")
    options.add_argument("--json", action="store_true")
    asked = options.parse_args()
    torch.set_num_threads(1)
    plain = load(find("smollm2"), torch.float32, quiet)
    ids = plain.tokenizer(PROMPT, return_tensors="pt").input_ids[:, :TOKENS]
    native = Model(plain.model, ids)
    found = {}
    for name, strict in (("", False), ("strict_", True)):
        session = dsf.enable(asked.chip, strict_layouts=strict)
        dtype = getattr(torch, session.chip.numerics.preferred)
        model = load(find("smollm2"), dtype, quiet).model.to(session.chip.device)
        rows = measure(session, native, Model(model, ids.to(session.chip.device)), asked)
        found |= {name + key: value for key, value in rows.items()}
        dsf.disable()
    print(json.dumps(found) if asked.json else "\n".join(f"{name:36} {value:12.3f}" for name, value in found.items()))


def measure(session: Session, native: Model, device: Model, asked: argparse.Namespace) -> Row:
    """Rounds of native and emulated in turn; medians in milliseconds."""
    first, _ = seconds(device.prefill)
    first_step, _ = seconds(device.step)
    native.prefill()
    rounds = []
    for done in range(asked.rounds):
        rounds.append(one_round(session, native, device, asked.steps))
        print(f"round {done + 1} of {asked.rounds}", file=sys.stderr)
    middle = {name: statistics.median(row[name] for row in rounds) for name in rounds[0]}
    return {**middle, "prefill_first_ms": 1e3 * first, "decode_first_ms": 1e3 * first_step}


def one_round(session: Session, native: Model, device: Model, steps: int) -> Row:
    plain, reference = seconds(native.prefill)
    with session.launches() as launched:
        through, logits = seconds(device.prefill)
    alone, _ = seconds(lambda: [program.run() for program in launched])
    row = _compared("prefill", [plain], [through], [alone])
    plains = [seconds(native.step)[0] for _ in range(steps)]
    throughs, alones = [], []
    for _ in range(steps):
        with session.launches() as launched:
            throughs.append(seconds(device.step)[0])
        alones.append(seconds(lambda: [program.run() for program in launched])[0])
    row |= _compared("decode", plains, throughs, alones)
    row["logits_largest_difference"] = float((logits.float() - reference).abs().max())
    row[f"argmax_equal_of_{TOKENS}"] = float((logits.argmax(-1) == reference.argmax(-1)).sum())
    return row


def _compared(what: str, plain: list[float], through: list[float], alone: list[float]) -> Row:
    base, device, programs = (statistics.median(times) for times in (plain, through, alone))
    return {
        f"{what}_native_ms": 1e3 * base,
        f"{what}_device_ms": 1e3 * device,
        f"{what}_device_ratio": device / base,
        f"{what}_programs_ms": 1e3 * programs,
        f"{what}_programs_ratio": programs / base,
    }


if __name__ == "__main__":
    main()
