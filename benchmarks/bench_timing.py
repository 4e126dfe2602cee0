"""How fast the timing plane is: Llama-3-8B on an emulated Ascend 910B2, a prefill of 1024 and 128 decode tokens.

The model is made on torch's meta device (no weights) and recorded once: one prefill, and two decode steps, which say
how sizes depend on the length of the KV cache. Then, without the recording: *cold*, the kernels of all recorded intents
are chosen and timed and every token gets its time; *warm*, the same again. Beside it, in the same run, the same tokens
with every length timed on its own, and how far apart the two are. Last, the oracle (which unrolls everything) without
numbers, in instructions a second. Medians of a few rounds.

    python benchmarks/bench_timing.py [--rounds 3] [--chip ascend-910b2] [--json]
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
from collections.abc import Callable
from time import perf_counter

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import dsf
from dsf.forecast import STRIDE, Forecast
from dsf.intent.growing import Growing
from dsf.intent.ir import Intent
from dsf.machine.oracle import Oracle
from dsf.pipeline import Session

PROMPT, TOKENS = 1024, 128
LLAMA3_8B = LlamaConfig(
    vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
    num_key_value_heads=8, max_position_embeddings=8192, rope_theta=500000.0,
)  # fmt: skip


def record(session: Session) -> tuple[tuple[Intent, ...], Growing]:
    """The intents of the prefill, and of the decode step at any length."""
    device = session.chip.device
    with torch.device("meta"):
        model = LlamaForCausalLM(LLAMA3_8B).to(getattr(torch, session.chip.numerics.preferred))
    model = model.to_empty(device=device).eval()
    with torch.no_grad(), session.listening() as steps:
        out = model(torch.zeros(1, PROMPT, dtype=torch.long).to(device), use_cache=True)
        out.logits[:, -1:].cpu()
        prefill = tuple(intent for step in steps for intent in step)
        decodes, cache, token = [], out.past_key_values, torch.zeros(1, 1, dtype=torch.long).to(device)
        for _ in range(2):
            steps.clear()
            model(token, past_key_values=cache, use_cache=True).logits.cpu()
            decodes.append(tuple(intent for step in steps for intent in step))
    return prefill, Growing(decodes[0], decodes[1], PROMPT + 1, PROMPT + 2)


def seconds(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--chip", default="ascend-910b2")
    options.add_argument("--json", action="store_true")
    asked = options.parse_args()
    torch.set_num_threads(1)
    prefill, decode = record(dsf.enable(asked.chip, fidelity="timing"))
    gc.collect()
    gc.freeze()  # what importing and recording left behind is not searched for garbage within the timed part
    rows: list[dict[str, float]] = []
    for done in range(asked.rounds):
        rows.append(measure(asked.chip, prefill, decode))
        print(f"round {done + 1} of {asked.rounds}", file=sys.stderr)
    found = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    print(json.dumps(found) if asked.json else "\n".join(f"{name:34} {value:14.4f}" for name, value in found.items()))


def measure(chip: str, prefill: tuple[Intent, ...], decode: Growing) -> dict[str, float]:
    dsf.disable()
    session = dsf.enable(chip, fidelity="timing")  # it knows nothing yet
    forecast = session.forecast()

    def work(forecast: Forecast, stride: int = STRIDE) -> list[int]:
        return [forecast.step_fs(prefill), *forecast.tokens_fs(decode, PROMPT + 1, TOKENS, stride)]

    cold, warm = seconds(lambda: work(forecast)), seconds(lambda: work(session.forecast()))
    each = seconds(lambda: work(session.forecast(), stride=1))
    some, all_of_them = work(forecast), work(session.forecast(), stride=1)
    apart = max(abs(a - b) / b for a, b in zip(some, all_of_them, strict=True))
    return {
        "cold_seconds": cold,
        "warm_seconds": warm,
        "cold_seconds_every_length": each,
        "largest_difference_percent": 100 * apart,
        "prefill_emulated_ms": some[0] / 1e12,
        "decode_emulated_ms_per_token": statistics.mean(some[1:]) / 1e12,
        "oracle_instructions_per_second": oracle(session, prefill),
    }


def oracle(session: Session, prefill: tuple[Intent, ...]) -> float:
    """Instructions a second of the oracle without numbers, over the prefill's products of one layer."""
    programs = {session.program(i) for i in prefill if i.kind == "linear" and i.outputs[0].shape[-1] < 32000}
    judge = Oracle(session.chip, session.target.isa, None)
    spent = seconds(lambda: [judge.run(program) for program in programs if program is not None])
    return judge.issued / spent


if __name__ == "__main__":
    main()
