"""The time of steps that nobody runs: the timing plane's answer for recorded intents, at any length of a KV cache.

Between two lengths whose programs have the same tiles a step's time is nearly a straight line (the last tile grows), so
a run of tokens is timed at every *stride*-th length and at both ends; *stride* 1 times each of them. The launches are
lined up as the ledger does it: issued one interval apart, each starting a latency after its issue or when the device is
free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from attrs import define, field

from dsf.hdl.model import Host
from dsf.intent.growing import Growing
from dsf.intent.ir import Intent, key

__all__ = ["Forecast", "span_fs"]

STRIDE = 64  # tokens; on Llama-3-8B no token is then more than 0.2 % off (benchmarks/bench_timing.py)


def span_fs(durations: Iterable[int], host: Host) -> int:
    """Femtoseconds from the first issue until launches of these durations are all done."""
    interval, latency, issued, device = host.issue_interval_fs, host.launch_latency_fs, 0, 0
    for duration in durations:
        issued += interval
        ready = issued + latency
        device = (ready if ready > device else device) + duration
    return device if device > issued else issued


@define(eq=False)
class Forecast:
    """*price* says how many femtoseconds an intent takes; equal intents are asked about once."""

    price: Callable[[Intent], int]
    host: Host
    _known: dict[object, int] = field(factory=dict)
    _seen: dict[int, tuple[Intent, int]] = field(factory=dict)

    def durations(self, step: Iterable[Intent]) -> list[int]:
        """Femtoseconds of every launch of *step*, in order."""
        return [self._duration(intent) for intent in step if intent.kind != "nothing"]

    def step_fs(self, step: Iterable[Intent]) -> int:
        """Femtoseconds of the whole step, launches included."""
        return span_fs(self.durations(step), self.host)

    def tokens_fs(self, step: Growing, first: int, count: int, stride: int = STRIDE) -> list[int]:
        """Femtoseconds of each of *count* decode steps, the first at KV length *first*."""
        last = first + count - 1
        at = sorted({first, last, *range(-(-first // stride) * stride, last, stride)})
        points = [(length, self.durations(step.at(length))) for length in at]
        times = []
        for (low, before), (high, after) in pairwise(points):
            times += [_between(before, after, low, high, length, self.host) for length in range(low, high)]
        return [*times, span_fs(points[-1][1], self.host)]

    def _duration(self, intent: Intent) -> int:
        seen = self._seen.get(id(intent))
        if seen is None:
            asked = key(intent)
            duration = self._known.get(asked)
            if duration is None:
                duration = self._known[asked] = self.price(intent)
            seen = self._seen[id(intent)] = intent, duration  # the intent is kept: its identity is the key
        return seen[1]


def _between(before: Sequence[int], after: Sequence[int], low: int, high: int, length: int, host: Host) -> int:
    """The step's time at *length*, every launch on the straight line from *low* to *high*."""
    if length == low:
        return span_fs(before, host)
    far, wide = length - low, high - low
    return span_fs([x + (y - x) * far // wide if y != x else x for x, y in zip(before, after, strict=True)], host)
