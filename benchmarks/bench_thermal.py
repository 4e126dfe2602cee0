"""The thermal integrator against closed forms, and a chip under endless float16 products in two rooms.

Printed: the largest error in kelvin of one node, two nodes, a cap's time and a hysteresis cycle, for steps of 0.1 s to
60 s (goal 1e-9); then, for a normal room (the chip's description) and one of 55 °C and each thermal policy, the
temperature, the clocks and the time of one 8192 x 8192 product at the beginning and after 30 emulated minutes.

    python benchmarks/bench_thermal.py [--chip ascend-910b2] [--minutes 30] [--json]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from math import exp, log, sqrt
from time import perf_counter
from typing import Any

import torch

import dsf
from dsf.hdl import FrozenDict, Thermal
from dsf.machine.thermal import Network

STEPS = (0.1, 1.0, 7.3, 60.0)
AIR = 30.0
SECOND = 10**15


def network(nodes: dict[str, float], edges: dict[tuple[str, str], float]) -> Network:
    return Network(Thermal(AIR, "die", FrozenDict(nodes), FrozenDict(edges), (), 3.0, 105.0), AIR)


def one_node() -> float:
    """T = T_air + P R (1 - exp(-t / RC)) with 75 W, 0.6 K/W and 200 J/K, over an hour."""
    worst = 0.0
    for dt in STEPS:
        chip = network({"die": 200.0}, {("die", "ambient"): 0.6})
        for n in range(1, int(3600 / dt)):
            chip.step(75.0, dt)
            worst = max(worst, abs(chip.celsius - AIR - 45 * (1 - exp(-n * dt / 120))))
    return worst


def two_nodes() -> float:
    """The Ascend's network: a sum of two exponentials whose rates solve r^2 - (a + b + c) r + a c = 0."""
    c_d, c_s, r_d, r_s, watts, worst = 50.0, 2022.0, 0.025, 0.0724, 364.5, 0.0
    a, b, c = 1 / (r_d * c_d), 1 / (r_d * c_s), 1 / (r_s * c_s)
    root = sqrt((a + b + c) ** 2 - 4 * a * c)
    fast, slow = (a + b + c + root) / 2, 2 * a * c / (a + b + c + root)
    final = watts * (r_d + r_s)
    weight = (watts / c_d - slow * final) / (fast - slow)
    for dt in STEPS:
        chip = network({"die": c_d, "sink": c_s}, {("die", "sink"): r_d, ("sink", "ambient"): r_s})
        for n in range(1, int(3600 / dt)):
            chip.step(watts, dt)
            expected = AIR + final - weight * exp(-fast * n * dt) - (final - weight) * exp(-slow * n * dt)
            worst = max(worst, abs(chip.celsius - expected))
    return worst


def time_to_a_cap() -> float:
    chip = network({"die": 200.0}, {("die", "ambient"): 0.6})
    chip.step(100.0, 120 * log((90 - 30) / (90 - 85)))
    return abs(chip.celsius - 85)


def hysteresis() -> float:
    """A hundred cycles between 82 and 85 °C, each as long as two logarithms say."""
    chip, worst = network({"die": 200.0}, {("die", "ambient"): 0.6}), 0.0
    chip.set({"die": 82.0})
    for _ in range(100):
        chip.step(100.0, 120 * log((90 - 82) / (90 - 85)))
        worst = max(worst, abs(chip.celsius - 85))
        chip.step(50.0, 120 * log((85 - 60) / (82 - 60)))
        worst = max(worst, abs(chip.celsius - 82))
    return worst


def rooms(chip: str, minutes: int) -> Iterator[dict[str, Any]]:
    """A row for each room and policy."""
    for ambient in (None, 55.0):
        for thermal in ("ladder", "threshold", "none"):
            yield sustained(chip, minutes, thermal, ambient)


def sustained(chip: str, minutes: int, thermal: str, ambient: float | None) -> dict[str, Any]:
    began = perf_counter()
    session = dsf.enable(chip, fidelity="timing", thermal=thermal, ambient=ambient)
    a = torch.empty(8192, 8192, dtype=torch.float16, device=session.chip.device)
    product = a @ a  # its life keeps it wanted
    first = dsf.report(reset=True)
    while session.now_fs() < minutes * 60 * SECOND:
        session.ledger.again(100)
    whole = dsf.report(reset=True)
    session.ledger.again(1)
    last = dsf.report()
    del product
    dsf.disable()
    if whole.heat is None or first.heat is None or last.heat is None:
        raise SystemExit(whole.no_heat)
    return {
        "room": whole.heat.ambient_celsius, "policy": thermal, "celsius": whole.heat.celsius,
        "peak_celsius": whole.heat.peak_celsius, "mean_watts": whole.heat.mean_watts,
        "throttled_share": whole.heat.throttled_share, "lowest_frequency_share": whole.heat.lowest_frequency_share,
        "first_ms": first.device_milliseconds, "last_ms": last.device_milliseconds,
        "mean_ms": whole.device_milliseconds / whole.launches, "wall_seconds": perf_counter() - began,
    }  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--chip", default="ascend-910b2")
    options.add_argument("--minutes", type=int, default=30)
    options.add_argument("--json", action="store_true")
    asked = options.parse_args()
    errors = {check.__name__: check() for check in (one_node, two_nodes, time_to_a_cap, hysteresis)}
    rows = list(rooms(asked.chip, asked.minutes))
    print(json.dumps({"error_kelvin": errors, "rooms": rows}) if asked.json else table(errors, rows))


HEADS = (
    "room °C", "policy", "chip °C", "peak °C", "mean W", "throttled", "slowest", "first ms", "last ms", "mean ms",
    "took s",
)  # fmt: skip


def table(errors: dict[str, float], rows: list[dict[str, Any]]) -> str:
    lines = ["largest difference from the closed form"]
    lines += [f"  {name.replace('_', ' '):24} {error:10.1e} K" for name, error in errors.items()]
    lines += [f"  {'of all (goal 1e-9 K)':24} {max(errors.values()):10.1e} K", ""]
    lines.append("  ".join(f"{name:>9}" for name in HEADS))
    for row in rows:
        cells = (f"{v:9.4g}" if isinstance(v, float) else f"{v:>9}" for v in row.values())
        lines.append("  ".join(cells))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
