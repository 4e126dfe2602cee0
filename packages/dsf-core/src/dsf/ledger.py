"""The accounts of a session on one timeline: when each launch starts and ends, and where the time went.

The host issues launches one *issue interval* apart; one that finds the device idle starts a *launch latency* after its
issue, one that finds it busy starts when the device is free. Copies to and from the host, and operations that fall back
to the host, wait for the device and hold it up. All numbers are the HDL's; a kernel runs at the clocks that the chip's
heat leaves it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction

from attrs import define, field, frozen

from dsf.hdl import Chip, weakest
from dsf.isa.program import Instruction, Loop, Operand, Program
from dsf.kernels.kernel import Kernel
from dsf.machine.heat import Heat, coldness, slowed
from dsf.machine.timeline import Timeline
from dsf.machine.timing import FEMTO, KernelTime
from dsf.reports import EngineRow, FallbackRow, Flops, HeatSummary, KernelRow, MemoryRow, Report

__all__ = ["Ledger", "device_numbers"]

MS = 10**12  # femtoseconds


@define(eq=False)
class _KernelAccount:
    library: str
    intent: str
    reason: str
    launches: int = 0
    fs: int = 0
    flops: int = 0
    bounds: Counter[str] = field(factory=Counter)


@define(eq=False)
class _FallbackAccount:
    reason: str
    count: int = 0
    fs: int = 0
    nbytes: int = 0


@frozen
class _Cost:
    """One launch of a program at some clocks: its time (kept, since its identity is the key), in femtoseconds, what
    bounds it, the cycles of each (engine, core), and the joules beyond the idle chip's."""

    time: KernelTime
    fs: int
    bound: str
    busy: tuple[tuple[tuple[str, str], int], ...]
    joules: float


_Launch = tuple[Kernel, str, KernelTime, int, str, Program]
"""What a launch says of itself: the arguments of `Ledger.launch`."""


@define(eq=False)
class Ledger:
    """Time and counts of one session on *chip*, and its heat, where there is any."""

    chip: Chip
    timeline: Timeline = field(factory=Timeline)
    heat: Heat | None = None
    _start_fs: int = 0
    _issued_fs: int = 0
    _device_fs: int = 0
    _busy_fs: int = 0
    _host_fs: int = 0
    _copy_fs: int = 0
    _kernels: dict[str, _KernelAccount] = field(factory=dict)
    _fallbacks: dict[str, _FallbackAccount] = field(factory=dict)
    _engines: Counter[tuple[str, str]] = field(factory=Counter)
    _onchip: dict[str, int] = field(factory=dict)
    _share: Fraction = Fraction(1)
    _costs: dict[int, _Cost] = field(factory=dict)
    _costs_at: dict[Fraction, dict[int, _Cost]] = field(factory=dict)
    _last: _Launch | None = None
    _barriers: int = 0
    _flops: Counter[str] = field(factory=Counter)

    @property
    def now_fs(self) -> int:
        """When the device will have done all that was asked."""
        return max(self._issued_fs, self._device_fs)

    def launch(self, kernel: Kernel, intent: str, time: KernelTime, flops: int, reason: str, program: Program) -> None:
        """One kernel launch."""
        self._last = (kernel, intent, time, flops, reason, program)
        self._issued_fs += self.chip.host.issue_interval_fs
        start = max(self._issued_fs + self.chip.host.launch_latency_fs, self._device_fs)
        self.timeline.advance(start)
        cost = self._cost(time, program)
        self._device_fs = start + cost.fs
        if self.heat is not None:
            self.heat.work(start, self._device_fs, cost.joules)
        self.timeline.advance(self._device_fs)
        self._book(self._last, cost, 1)

    def again(self, times: int) -> None:
        """The last launch *times* times more, as that many launches in a row would be, in far less of our own time."""
        assert self._last is not None, "nothing has been launched"
        last = self._last
        while times > 0:
            self.launch(*last)
            times -= 1
            times -= self._many(last, times)

    def _many(self, last: _Launch, most: int) -> int:
        """As many of *most* launches as follow in an even rhythm before anything else is due, done in one go."""
        _, _, time, _, _, program = last
        cost, interval = self._cost(time, program), self.chip.host.issue_interval_fs
        pause = self._issued_fs + interval + self.chip.host.launch_latency_fs - self._device_fs
        if pause > 0:  # the device waits for each launch
            most = most if pause == interval - cost.fs else 0
        elif cost.fs < interval:  # it is behind, but catches up
            most = min(most, 1 + -pause // (interval - cost.fs))
        pause = max(pause, 0)
        if self.timeline.due_fs is not None and pause + cost.fs:
            most = min(most, (self.timeline.due_fs - self._device_fs) // (pause + cost.fs))
        if most <= 0:
            return 0
        self._issued_fs += most * interval
        self._device_fs += most * (pause + cost.fs)
        if self.heat is not None:
            self.heat.rounds(pause, cost.fs, cost.joules, most)
        self.timeline.advance(self._device_fs)
        self._book(last, cost, most)
        return most

    def _book(self, launch: _Launch, cost: _Cost, times: int) -> None:
        """Count *times* launches, whose time has passed already."""
        kernel, intent, time, flops, reason, _ = launch
        self._busy_fs += cost.fs * times
        account = self._kernels.get(kernel.name)
        if account is None:
            account = self._kernels[kernel.name] = _KernelAccount(kernel.library, intent, reason)
        account.launches += times
        account.fs += cost.fs * times
        account.flops += flops * times
        account.bounds[cost.bound] += cost.fs * times
        self._flops["wanted"] += flops * times
        self._flops["served"] += flops * times
        self._flops["executed"] += 2 * time.macs * times
        self._barriers += (len(time.phases) - 1) * times
        for engine, cycles in cost.busy:
            self._engines[engine] += cycles * times

    def _cost(self, time: KernelTime, program: Program) -> _Cost:
        """What one launch of *program* adds to the accounts at the present clocks, worked out once."""
        if self.heat is not None and self.heat.share is not self._share:
            self._share = self.heat.share
            self._costs = self._costs_at.setdefault(self._share, {})
        cost = self._costs.get(id(time))
        if cost is None:
            busy = tuple(((engine, core), n) for phase in time.phases for engine, core, n in phase.engines)
            now = slowed(time, self._share) if self._share != 1 else time
            joules = self.heat.energy(time) if self.heat is not None else 0.0
            cost = self._costs[id(time)] = _Cost(time, now.duration_fs, now.bound, busy, joules)
            self._note_on_chip(program)
        return cost

    def copy(self, nbytes: int) -> None:
        """A copy between host and device that the program asked for: it waits for the device, and holds the host."""
        self._copy_fs += self._hold(self._transfer_fs(nbytes))

    def fallback(self, what: str, bytes_in: int, bytes_out: int, reason: str, flops: int) -> None:
        """An operation on the host: its operands come over, the host computes, the result goes back."""
        cost = self._hold(self.fallback_fs(bytes_in, bytes_out))
        self._host_fs += cost
        self._flops["wanted"] += flops
        self._flops["host"] += flops
        account = self._fallbacks.setdefault(what, _FallbackAccount(reason))
        account.count += 1
        account.fs += cost
        account.nbytes += bytes_in + bytes_out

    def fallback_fs(self, bytes_in: int, bytes_out: int) -> int:
        """What such an operation takes: two copies and the host's time over all the bytes."""
        host = self.chip.host
        compute = host.op_latency_fs + (bytes_in + bytes_out) * FEMTO // host.op_bandwidth
        return self._transfer_fs(bytes_in) + compute + self._transfer_fs(bytes_out)

    def synchronize(self) -> None:
        """The host waits for the device."""
        self._hold(0)

    def _transfer_fs(self, nbytes: int) -> int:
        return self.chip.host.copy_latency_fs + nbytes * FEMTO // self.chip.host.copy_bandwidth

    def _hold(self, duration_fs: int) -> int:
        """Both sides wait for each other and then for *duration_fs*."""
        self._issued_fs = self._device_fs = self.now_fs + duration_fs
        self.timeline.advance(self._device_fs)
        return duration_fs

    def _note_on_chip(self, program: Program) -> None:
        """Remember how far programs reach into each on-chip memory."""
        counts = _counts(program)
        for ins, _ in program.instructions():
            for operand in ins.operands:
                if operand.param is None:
                    self._onchip[operand.space] = max(self._onchip.get(operand.space, 0), _top(operand, counts))

    def report(self, plugin: str, fidelity: str, numerics: str, peak: int) -> Report:
        """Everything since the last reset, as a value."""
        elapsed = self.now_fs - self._start_fs
        return Report(
            chip=self.chip.name, plugin=plugin, fidelity=fidelity, numerics=numerics,
            emulated_milliseconds=elapsed / MS, device_milliseconds=self._busy_fs / MS,
            host_milliseconds=self._host_fs / MS, copy_milliseconds=self._copy_fs / MS,
            launches=sum(a.launches for a in self._kernels.values()),
            memory=tuple(self._memory_rows(peak)), engines=tuple(self._engine_rows(elapsed)),
            kernels=tuple(self._kernel_rows()), fallbacks=tuple(self._fallback_rows()),
            flops=self._flop_counts(), origins=self._origins(),
            heat=self._heat_summary(elapsed), no_heat="" if self.heat else coldness(self.chip),
        )  # fmt: skip

    def _heat_summary(self, elapsed: int) -> HeatSummary | None:
        heat = self.heat
        if heat is None:
            return None
        heat.settle_accounts(self.now_fs)
        watts = heat.joules * FEMTO / elapsed if elapsed else heat.idle_watts
        return HeatSummary(
            policy=heat.policy.name, ambient_celsius=heat.network.ambient, ambient_given=heat.ambient is not None,
            celsius=heat.network.celsius, peak_celsius=max(heat.peak_celsius, heat.network.celsius),
            settled_celsius=heat.settled(watts), cap_celsius=heat.cap, mean_watts=watts, peak_watts=heat.peak_watts,
            joules=heat.joules, throttled_share=heat.throttled_fs / heat.busy_fs if heat.busy_fs else 0.0,
            lowest_frequency_share=float(heat.lowest_share),
        )  # fmt: skip

    def reset(self) -> None:
        """Begin to count anew at the present; the clock goes on."""
        self._start_fs = self.now_fs
        self._busy_fs = self._host_fs = self._copy_fs = self._barriers = 0
        for account in (self._kernels, self._fallbacks, self._engines, self._onchip, self._costs, self._flops):
            account.clear()
        self._share = Fraction(1)  # so that costs are looked up, and on-chip memory noted, anew
        self._costs_at.clear()
        if self.heat is not None:
            self.heat.reset()

    def _memory_rows(self, peak: int) -> list[MemoryRow]:
        main = self.chip.main_memory
        used = {**self._onchip, main.name: peak}
        memories = sorted(self.chip.memories.values(), key=lambda m: -m.nbytes)
        return [MemoryRow(m.name, m.scope, m.nbytes / MIB, used[m.name] / MIB) for m in memories if m.name in used]

    def _engine_rows(self, elapsed: int) -> list[EngineRow]:
        rows = []
        for (engine, core), cycles in sorted(self._engines.items()):
            kind = self.chip.cores[core]
            whole = -(-elapsed * self.chip.clocks[kind.clock] * kind.count // FEMTO)  # the cycles that have begun
            rows.append(EngineRow(engine, core, cycles / 1e6, cycles / whole if whole else 0.0))
        return rows

    def _kernel_rows(self) -> list[KernelRow]:
        accounts = sorted(self._kernels.items(), key=lambda item: -item[1].fs)
        return [
            KernelRow(name, a.library, a.intent, a.launches, a.fs / MS, a.fs / self._busy_fs if self._busy_fs else 0.0,
                      a.flops / 1e9, a.bounds.most_common(1)[0][0], a.reason)
            for name, a in accounts
        ]  # fmt: skip

    def _fallback_rows(self) -> list[FallbackRow]:
        accounts = sorted(self._fallbacks.items(), key=lambda item: -item[1].fs)
        return [FallbackRow(what, a.count, a.fs / MS, a.nbytes / MIB, a.reason) for what, a in accounts]

    def _flop_counts(self) -> Flops:
        f = self._flops
        return Flops(f["wanted"], f["executed"], f["executed"] - f["served"], f["host"])

    def _origins(self) -> dict[str, str]:
        """The weakest origin among the numbers of the HDL that went into each group."""
        copies = ["/host/copy_bandwidth", "/host/copy_latency"]
        fallbacks = ["/host/op_latency", "/host/op_bandwidth", *copies]
        heat = self.heat.pointers() if self.heat is not None else {}
        throttled = heat["throttling"] if self.heat is not None and self.heat.throttled_fs else []
        device = [*self._device_numbers(), *throttled]
        emulated = [*device, "/host/launch_latency", "/host/issue_interval", *copies]
        groups = {
            "device time": device,
            "emulated time": [*emulated, *(fallbacks if self._fallbacks else ())],
            "host time": fallbacks,
            **{name: [*found, *(device if name != "ambient" else ())] for name, found in heat.items() if found},
        }
        found = {name: weakest(self.chip.origin(p).origin for p in pointers) for name, pointers in groups.items()}
        return {**found, "memory": "derived", "flops": "derived", "host wall time": "measured"}

    def _device_numbers(self) -> list[str]:
        """Pointers to the numbers that the time of the launched kernels depends on."""
        return device_numbers(self.chip, self._engines, barriers=self._barriers > 0)


def device_numbers(chip: Chip, engines: Iterable[tuple[str, str]], barriers: bool) -> list[str]:
    """Pointers to the numbers that the time of programs on these (engine, core) depends on."""
    pairs = [*engines]
    used, cores = {engine for engine, _ in pairs}, {core for _, core in pairs}
    found = [f"/memories/{chip.main_memory.name}/bandwidth", *(["/sync/barrier"] if barriers else [])]
    found += [pointer for core in cores for pointer in (f"/clocks/{chip.cores[core].clock}", f"/cores/{core}/count")]
    found += [f"/engines/{e}/rates/{op}" for e in used for op in chip.engines[e].rates]
    found += [f"/engines/{e}/startup" for e in used if chip.engines[e].startup_cycles]
    for (source, target), path in chip.paths.items():
        if path.engine in used:
            found.append(f"/paths/{source}->{target}/width")
            found += [f"/paths/{source}->{target}/startup"] * bool(path.startup_cycles)
    return found


MIB = 1 << 20


def _counts(program: Program) -> dict[str, int]:
    """How far every loop variable of *program* runs; a name used twice counts with its longest loop."""
    counts: dict[str, int] = {}

    def visit(body: tuple[Instruction | Loop, ...]) -> None:
        for item in body:
            if isinstance(item, Loop):
                counts[item.variable] = max(counts.get(item.variable, 0), item.count)
                visit(item.body)

    for phase in program.phases:
        for nest in phase.nests:
            counts.update({name: max(counts.get(name, 0), count) for name, count in nest.variables})
            visit(nest.body)
    return counts


def _top(operand: Operand, counts: dict[str, int]) -> int:
    return operand.offset.extremes(counts)[1] + operand.reach
