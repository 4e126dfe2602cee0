"""The timing plane: cycles without numbers. It runs a program's engines on a scoreboard and never touches data.

Each engine of a core works through its queue in order; engines are ordered only by flags. A loop is simulated until the
vector of engine clocks and pending flags repeats up to a constant; from there the rest is that constant, many times
(a max-plus system becomes periodic), which is exact and not extrapolated. Blocks of a phase go to the cores in turn;
cores that get the same number of each nest's blocks take the same time, so only the different loads are simulated.

Main memory and the cache before it have one port each that all cores share: a phase lasts as long as its slowest core
or as its bytes need through the busier port, whichever is longer. What goes through them is in `traffic`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import ceil, lcm

from attrs import define, field, frozen

from dsf import errors
from dsf.hdl import Chip
from dsf.isa.program import Affine, Instruction, Loop, Nest, Phase, Program
from dsf.isa.table import SET_FLAG, Isa
from dsf.machine.traffic import Traffic, traffic

__all__ = ["KernelTime", "PhaseTime", "Timing"]

FEMTO = 10**15
Body = tuple[Instruction | Loop, ...]


@frozen
class PhaseTime:
    """One phase: *cycles* of its slowest core, *memory_fs* that its bytes need through the shared memories' ports,
    *busy* cycles per engine summed over all cores."""

    core: str
    clock_hz: int
    cycles: int
    memory_fs: int
    busy: tuple[tuple[str, int], ...]

    @property
    def core_fs(self) -> int:
        return self.cycles * FEMTO // self.clock_hz

    @property
    def duration_fs(self) -> int:
        return max(self.core_fs, self.memory_fs)


@frozen
class KernelTime:
    """A program's time on its chip, without the host's launch. *macs* includes padding; *nbytes* through the port."""

    phases: tuple[PhaseTime, ...]
    barrier_fs: int
    macs: int
    nbytes: int

    @property
    def duration_fs(self) -> int:
        return sum(p.duration_fs for p in self.phases) + self.barrier_fs * max(0, len(self.phases) - 1)

    @property
    def bound(self) -> str:
        """What most of the time waits for: `memory` (the main-memory port), or the busiest engine of the cores."""
        waits = Counter[str]()
        for p in self.phases:
            busiest = max(p.busy, key=lambda item: item[1], default=("none", 0))[0]
            waits["memory" if p.memory_fs >= p.core_fs else busiest] += p.duration_fs
        return max(waits, key=lambda name: waits[name], default="none")


class Timing:
    """Times programs of one chip; every answer is kept, since a program is a value."""

    def __init__(self, chip: Chip, isa: Isa) -> None:
        self.chip, self.isa = chip, isa
        self._known: dict[Program, KernelTime] = {}
        self._cycles: dict[Instruction, int] = {}

    def __call__(self, program: Program) -> KernelTime:
        """The time of *program*."""
        known = self._known.get(program)
        if known is None:
            known = self._known[program] = self._kernel(program)
        return known

    def _kernel(self, program: Program) -> KernelTime:
        moved = traffic(program, self.isa, self.chip)
        phases = tuple(self._phase(phase, nbytes) for phase, nbytes in zip(program.phases, moved, strict=True))
        barrier = self.chip.sync.barrier_cycles * FEMTO // self._clock(program.phases[0].core) if program.phases else 0
        return KernelTime(phases, barrier, self._macs(program), sum(t.main for t in moved))

    def _macs(self, program: Program) -> int:
        total = 0
        for ins, times in program.instructions():
            count = self.isa[ins.name].macs
            total += count(self.chip, ins) * times if count else 0
        return total

    def _phase(self, phase: Phase, moved: Traffic) -> PhaseTime:
        cores = self.chip.cores[phase.core].count
        loads = _loads(phase.nests, cores)
        slowest, busy = 0, Counter[str]()
        for load, times in loads.items():
            board = Scoreboard(self)
            for nest, blocks in zip(phase.nests, load, strict=True):
                board.run_blocks(nest, blocks)
            slowest = max(slowest, board.finish(phase))
            for engine, cycles in board.busy.items():
                busy[engine] += cycles * times
        return PhaseTime(
            phase.core, self._clock(phase.core), slowest, self._memory_fs(moved), tuple(sorted(busy.items()))
        )

    def _memory_fs(self, moved: Traffic) -> int:
        """How long the busiest port of the shared memories takes: main memory's, or a cache's."""
        ports = [(moved.main, self.chip.main_memory.bandwidth)]
        ports += [(moved.cores, m.bandwidth) for m in self.chip.memories.values() if m.cache]
        return max(nbytes * FEMTO // bandwidth if bandwidth else 0 for nbytes, bandwidth in ports)

    def _clock(self, core: str) -> int:
        return self.chip.clocks[self.chip.cores[core].clock]

    def cycles(self, ins: Instruction) -> int:
        """Cycles of one instruction on its engine."""
        known = self._cycles.get(ins)
        if known is None:
            row = self.isa[ins.name]
            known = self._cycles[ins] = row.cycles(self.chip, row, ins)
        return known


def _loads(nests: tuple[Nest, ...], cores: int) -> Mapping[tuple[int, ...], int]:
    """How many blocks of each nest a core gets when blocks are dealt in turn: load -> number of such cores."""
    shares: Counter[tuple[int, ...]] = Counter()
    total = sum(nest.blocks for nest in nests)
    for core in range(min(cores, total)):
        load, start = [], 0
        for nest in nests:
            first = (core - start) % cores
            load.append(max(0, ceil((nest.blocks - first) / cores)))
            start = (start + nest.blocks) % cores
        shares[tuple(load)] += 1
    return shares


@define(eq=False)
class Scoreboard:
    """One core's engines: when each is free, which flags are pending since when, how long each was busy (cycles)."""

    timing: Timing
    clocks: dict[str, int] = field(factory=dict)
    pending: dict[tuple[str, str, int], list[int]] = field(factory=dict)
    busy: dict[str, int] = field(factory=dict)
    _surveys: dict[tuple[int, str, int], Survey] = field(factory=dict)

    def run_blocks(self, nest: Nest, blocks: int) -> None:
        """*blocks* blocks of *nest*, one after the other, on this core."""
        env = {name: 0 for name, _ in nest.variables}
        self._repeat(nest.body, blocks, "", env)

    def finish(self, phase: Phase) -> int:
        """The cycle at which the last engine is done. A flag that nobody took would hang a later kernel."""
        left = [key for key, times in self.pending.items() if times]
        if left:
            src, dst, event = left[0]
            raise errors.MachineError(
                "DSF-X020", f"phase {phase.core}: flag {event} of {src} for {dst} is still set at the end; wait for it"
            )
        return max(self.clocks.values(), default=0)

    def _body(self, body: Body, env: dict[str, int]) -> None:
        for item in body:
            if isinstance(item, Loop):
                self._repeat(item.body, item.count, item.variable, env)
            else:
                self._issue(item, env)

    def _issue(self, ins: Instruction, env: dict[str, int]) -> None:
        isa = self.timing.isa
        row = isa.rows[ins.name]
        if row.flag is None:
            cycles = self.timing.cycles(ins)
            self.clocks[row.engine] = self.clocks.get(row.engine, 0) + cycles
            self.busy[row.engine] = self.busy.get(row.engine, 0) + cycles
            return
        src, dst, event = _flag(ins, env)
        queue = self.pending.setdefault((src, dst, event), [])
        if row.flag == SET_FLAG:
            queue.append(self.clocks.get(src, 0))
        elif queue:
            self.clocks[dst] = max(self.clocks.get(dst, 0), queue.pop(0))
        else:
            raise errors.MachineError(
                "DSF-X021", f"{ins}: {dst} waits for flag {event} of {src}, which nobody has set: this would hang"
            )

    def _repeat(self, body: Body, count: int, variable: str, env: dict[str, int]) -> None:
        """The body *count* times; as soon as its state repeats up to a constant, the rest is added at once."""
        uses = self._uses(body, count, variable, env)
        period = uses.period
        history: dict[tuple[int, tuple[object, ...]], tuple[int, int, dict[str, int]]] = {}
        i = 0
        while i < count:
            env[variable] = i
            self._body(body, env)
            i += 1
            if not period or count - i < 2 * period or count < 4:
                continue
            shape, base = self._state(uses)
            seen = history.get((i % period, shape))
            if seen is None:
                history[i % period, shape] = i, base, dict(self.busy)
                continue
            then, base_then, busy_then = seen
            jumps = (count - i) // (i - then)
            if jumps:
                self._advance(uses, (base - base_then) * jumps, busy_then, jumps)
                i += jumps * (i - then)
            history.clear()

    def _uses(self, body: Body, count: int, variable: str, env: Mapping[str, int]) -> Uses:
        """What the loop touches, for the present values of the loops around it."""
        key = id(body), variable, count
        survey = self._surveys.get(key)
        if survey is None:
            survey = self._surveys[key] = Survey.of(self.timing.isa, body, {variable: count})
        return survey.uses(variable, env)

    def _state(self, uses: Uses) -> tuple[tuple[object, ...], int]:
        """Clocks and flags of the engines that a body uses, relative to the earliest, and that earliest clock."""
        clocks = [self.clocks.get(e, 0) for e in uses.engines]
        base = min(clocks, default=0)
        flags = [(key, tuple(t - base for t in self.pending[key])) for key in uses.flags if self.pending.get(key)]
        return (tuple(c - base for c in clocks), tuple(flags)), base

    def _advance(self, uses: Uses, cycles: int, busy_then: dict[str, int], jumps: int) -> None:
        for engine in uses.engines:
            self.clocks[engine] = self.clocks.get(engine, 0) + cycles
        for key in uses.flags:
            self.pending[key] = [t + cycles for t in self.pending.get(key, ())]
        for engine, now in list(self.busy.items()):
            self.busy[engine] = now + (now - busy_then.get(engine, 0)) * jumps


def _flag(ins: Instruction, env: Mapping[str, int]) -> tuple[str, str, int]:
    scalars = dict(ins.scalars)
    event = scalars["event"]
    return str(scalars["src"]), str(scalars["dst"]), event.at(env) if isinstance(event, Affine) else int(event)


@frozen
class Uses:
    """What a loop touches: its engines, its flags, and after how many iterations its event ids repeat (0: never)."""

    engines: tuple[str, ...]
    flags: tuple[tuple[str, str, int], ...]
    period: int


@define(eq=False)
class Survey:
    """A loop's body seen once: its engines, the events of its flags, and the counts of the loops that they may name."""

    engines: tuple[str, ...]
    events: tuple[tuple[str, str, Affine], ...]
    counts: dict[str, int]
    outer: tuple[str, ...]
    _known: dict[tuple[int, ...], Uses] = field(factory=dict)

    @classmethod
    def of(cls, isa: Isa, body: Body, counts: dict[str, int]) -> Survey:
        """The survey of *body*; *counts* has the loop's own variable and receives those inside."""
        engines, events = set[str](), set[tuple[str, str, Affine]]()
        for ins in _flat(body, counts):
            row = isa[ins.name]
            if row.flag is None:
                engines.add(row.engine)
                continue
            scalars = dict(ins.scalars)
            src, dst, event = str(scalars["src"]), str(scalars["dst"]), scalars["event"]
            engines.update((src, dst))
            events.add((src, dst, event if isinstance(event, Affine) else Affine(int(event))))
        outer = {t.variable for *_, event in events for t in event.terms if t.variable not in counts}
        return cls(tuple(sorted(engines)), tuple(events), counts, tuple(sorted(outer)))

    def uses(self, variable: str, env: Mapping[str, int]) -> Uses:
        """What the loop over *variable* touches where the loops around it stand at *env*."""
        around = tuple([env[v] for v in self.outer])
        known = self._known.get(around)
        if known is None:
            flags = {(src, dst, id) for src, dst, event in self.events for id in self._ids(event, env)}
            known = self._known[around] = Uses(self.engines, tuple(sorted(flags)), self._period(variable))
        return known

    def _ids(self, event: Affine, env: Mapping[str, int]) -> set[int]:
        """All values of *event* while the loop runs."""
        ids = {event.const}
        for t in event.terms:
            inside = t.variable in self.counts
            values = range(self.counts[t.variable]) if inside else range(env[t.variable], env[t.variable] + 1)
            ids = {i + t.step * (v % t.modulus if t.modulus else v) for i in ids for v in values[: t.modulus or None]}
        return ids

    def _period(self, variable: str) -> int:
        return lcm(*(t.modulus for *_, event in self.events for t in event.terms if t.variable == variable))


def _flat(body: Body, counts: dict[str, int]) -> Iterable[Instruction]:
    """Every instruction of a body; *counts* receives the counts of the loops in it."""
    for item in body:
        if isinstance(item, Loop):
            counts[item.variable] = item.count
            yield from _flat(item.body, counts)
        else:
            yield item
