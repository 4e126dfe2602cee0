"""SmolLM2 through the emulated Ascend 910B2, every instruction executed, beside plain torch on this processor.

Both run the same model code on the same 128-token prompt, one thread, in turn in one process: a prefill that gives the
logits of all positions, then decode steps on the cache that it left. Printed: medians of wall time in milliseconds and
their ratio, for each of a few rounds; the first round of the device, which plans and binds, is reported apart.

    python benchmarks/bench_smollm2.py [--rounds 5] [--steps 8] [--chip ascend-910b2] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from time import perf_counter

import torch

import dsf
from dsf.models.load import load
from dsf.models.shelf import find

PROMPT = (
    "The history of computing is longer than that of the machines we now call computers, and it includes the history "
    "of methods intended for pen and paper or for chalk and slate, with or without the aid of tables. "
) * 6
TOKENS = 128


def prefill_and_decode(
    model: torch.nn.Module, ids: torch.Tensor, steps: int
) -> tuple[float, list[float], torch.Tensor]:
    """Seconds of one prefill and of each decode step, and the prefill's logits on the host."""
    with torch.no_grad():
        start = perf_counter()
        out = model(ids, use_cache=True)
        logits = out.logits.cpu()
        prefill = perf_counter() - start
        times, cache, token = [], out.past_key_values, logits[:, -1:].argmax(-1)
        for _ in range(steps):
            start = perf_counter()
            out = model(token.to(ids.device), past_key_values=cache, use_cache=True)
            token = out.logits.cpu()[:, -1:].argmax(-1)
            times.append(perf_counter() - start)
    return prefill, times, logits


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--steps", type=int, default=8)
    options.add_argument("--chip", default="ascend-910b2")
    options.add_argument("--json", action="store_true")
    asked = options.parse_args()
    torch.set_num_threads(1)
    quiet = lambda stage, done, total: None  # noqa: E731  # the loader's progress is not wanted here
    plain = load(find("smollm2"), torch.float32, quiet)
    ids = plain.tokenizer(PROMPT, return_tensors="pt").input_ids[:, :TOKENS]
    session = dsf.enable(asked.chip)
    dtype = getattr(torch, session.chip.numerics.preferred)
    device = load(find("smollm2"), dtype, quiet).model.to(session.chip.device)
    rows = measure(plain.model, device, ids, ids.to(session.chip.device), asked)
    print(json.dumps(rows) if asked.json else table(rows))


def measure(
    plain: torch.nn.Module, device: torch.nn.Module, ids: torch.Tensor, there: torch.Tensor, asked: argparse.Namespace
) -> dict[str, float]:
    """Rounds of native and emulated in turn; medians in milliseconds."""
    first, first_steps, logits = prefill_and_decode(device, there, asked.steps)
    prefill_and_decode(plain, ids, asked.steps)
    reference = logits
    native: list[tuple[float, float]] = []
    emulated: list[tuple[float, float]] = []
    for done in range(asked.rounds):
        for model, tokens, times in ((plain, ids, native), (device, there, emulated)):
            prefill, steps, latest = prefill_and_decode(model, tokens, asked.steps)
            times.append((prefill, statistics.median(steps)))
            reference = latest if model is plain else reference
        print(f"round {done + 1} of {asked.rounds}", file=sys.stderr)
    ratios = [(e[0] / n[0], e[1] / n[1]) for n, e in zip(native, emulated, strict=True)]
    return {
        "prefill_native_ms": 1e3 * statistics.median(n[0] for n in native),
        "prefill_emulated_ms": 1e3 * statistics.median(e[0] for e in emulated),
        "prefill_ratio": statistics.median(r[0] for r in ratios),
        "prefill_first_ms": 1e3 * first,
        "decode_native_ms": 1e3 * statistics.median(n[1] for n in native),
        "decode_emulated_ms": 1e3 * statistics.median(e[1] for e in emulated),
        "decode_ratio": statistics.median(r[1] for r in ratios),
        "decode_first_ms": 1e3 * statistics.median(first_steps),
        "logits_largest_difference": float((logits.float() - reference).abs().max()),
        "argmax_equal_of_128": int((logits.argmax(-1) == reference.argmax(-1)).sum()),
    }


def table(rows: dict[str, float]) -> str:
    return "\n".join(f"{name:28} {value:12.3f}" for name, value in rows.items())


if __name__ == "__main__":
    main()
