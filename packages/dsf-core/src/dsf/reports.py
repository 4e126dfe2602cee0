"""What came out of a session, as a value: times, memory, engines, kernels, fallbacks, FLOPs, each with its origin.

`Report.to_json()` is the same value as plain data; units are in the names.
"""

from __future__ import annotations

from typing import Any

from attrs import asdict, frozen

from dsf import units

__all__ = ["EngineRow", "FallbackRow", "Flops", "HeatSummary", "KernelRow", "MemoryRow", "Report"]


@frozen
class KernelRow:
    """One kernel: how often it was launched, how long it ran in all, its matrix FLOPs, and why it was chosen."""

    name: str
    library: str
    intent: str
    launches: int
    milliseconds: float
    share: float
    gflops: float
    bound: str
    reason: str


@frozen
class FallbackRow:
    """What ran on the host: how often, what it cost with its two copies, and why."""

    what: str
    count: int
    milliseconds: float
    mebibytes: float
    reason: str


@frozen
class EngineRow:
    """One engine: cycles in use, summed over the cores, and the share of all cores' time that they are."""

    name: str
    core: str
    busy_megacycles: float
    share: float


@frozen
class MemoryRow:
    """One memory: its size, the most that was in use at once, and the scope that has one."""

    name: str
    scope: str
    mebibytes: float
    peak_mebibytes: float


@frozen
class Flops:
    """Matrix FLOPs: what the model asked for (as torch's flop counter counts), what was executed as instructions, how
    many of those are padding, and what the host computed."""

    wanted: int
    executed: int
    padding: int
    host: int

    @property
    def instruction_share(self) -> float:
        """The share of the wanted FLOPs that instructions computed."""
        return 1.0 if not self.wanted else (self.wanted - self.host) / self.wanted


@frozen
class HeatSummary:
    """How warm the chip is: the heated node's temperature, the power of the whole chip, the share of device time at
    clocks that heat had lowered, and the lowest of these. *settled_celsius* is where it would end at the mean power, if
    that went on for ever; *cap_celsius* what the policy holds. *ambient_given*: by the user, not by the HDL."""

    policy: str
    ambient_celsius: float
    ambient_given: bool
    celsius: float
    peak_celsius: float
    settled_celsius: float
    cap_celsius: float
    mean_watts: float
    peak_watts: float
    joules: float
    throttled_share: float
    lowest_frequency_share: float

    def __str__(self) -> str:
        return (
            f"{self.celsius:.1f} °C (peak {self.peak_celsius:.1f}) in a room of {self.ambient_celsius:g} °C, "
            f"{self.mean_watts:.1f} W in the mean (peak {self.peak_watts:.1f}), {self.joules:.4g} J, "
            f"{100 * self.throttled_share:.2f} % of device time throttled (clocks down to "
            f"{100 * self.lowest_frequency_share:.4g} %), policy {self.policy}"
        )


@frozen
class Report:
    """One session so far. *origins* says, for each group of numbers, the weakest origin among its inputs; *no_heat*,
    why there is no *heat*."""

    chip: str
    plugin: str
    fidelity: str
    numerics: str
    emulated_milliseconds: float
    device_milliseconds: float
    host_milliseconds: float
    copy_milliseconds: float
    launches: int
    memory: tuple[MemoryRow, ...]
    engines: tuple[EngineRow, ...]
    kernels: tuple[KernelRow, ...]
    fallbacks: tuple[FallbackRow, ...]
    flops: Flops
    origins: dict[str, str]
    heat: HeatSummary | None = None
    no_heat: str = ""

    @property
    def host_share(self) -> float:
        """The share of emulated time in which the host computed what the chip could not, with the copies for it."""
        return self.host_milliseconds / self.emulated_milliseconds if self.emulated_milliseconds else 0.0

    @property
    def executed(self) -> str:
        """What became of the instructions that are counted: the fidelity decides whether they ran."""
        return "executed as instructions" if self.fidelity == "isa" else "planned as instructions, not executed"

    def __str__(self) -> str:
        """The report in a few lines, for a script's print; `dsf-cli run` draws it whole."""
        lines = [
            f"{self.chip} ({self.plugin}), fidelity {self.fidelity}, numerics {self.numerics}: "
            f"{_time(self.emulated_milliseconds)} emulated ({self.origins.get('emulated time', 'derived')}), "
            f"launches: {self.launches}, {100 * self.host_share:.2f} % on the host, "
            f"{100 * self.flops.instruction_share:.2f} % of {self.flops.wanted:,} FLOPs {self.executed}"
        ]
        lines += [
            f"  {k.name} ({k.intent}): launched {k.launches} x, {_time(k.milliseconds)}, {100 * k.share:.1f} %, "
            f"bound by {k.bound}"
            for k in self.kernels
        ]
        lines += [f"  on the host: {f.what}, {f.count} x, {_time(f.milliseconds)}: {f.reason}" for f in self.fallbacks]
        lines += [f"  {m.name}: {_size(m.peak_mebibytes)} of {_size(m.mebibytes)} at the peak" for m in self.memory]
        lines.append(f"  heat ({self.origins.get('temperature', 'derived')}): {self.heat or 'none: ' + self.no_heat}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The report as plain data: dicts, lists, numbers and text."""
        data = asdict(self, value_serializer=lambda _, __, value: list(value) if isinstance(value, tuple) else value)
        data["host_share"] = self.host_share
        data["flops"]["instruction_share"] = self.flops.instruction_share
        return data


def _time(milliseconds: float) -> str:
    return units.show(round(milliseconds * 10**12), "femtoseconds") if milliseconds else "0 s"


def _size(mebibytes: float) -> str:
    return units.show(round(mebibytes * 2**20), "bytes")
