"""The timing plane: cycles without numbers. It runs a program's engines on a scoreboard and never touches data.

Each engine of a core works through its queue in order; engines are ordered only by flags. A loop is simulated until the
vector of engine clocks and pending flags repeats up to a constant; from there the rest is that constant, many times
(a max-plus system becomes periodic), which is exact and not extrapolated. Blocks of a phase go to the cores in turn;
cores that get the same number of each nest's blocks take the same time, so only the different loads are simulated.

Main memory is one port that all cores share: a phase lasts as long as its slowest core or as its bytes need through
that port, whichever is longer. Bytes count once per kernel where its parameters fit the shared cache.
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

__all__ = ["KernelTime", "PhaseTime", "Timing"]

FEMTO = 10**15


@frozen
class PhaseTime:
    """One phase: *cycles* of its slowest core, *memory_fs* that its bytes need through the main-memory port,
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
        """What the time is made of for the most part: compute or memory."""
        memory = sum(p.duration_fs for p in self.phases if p.memory_fs >= p.core_fs)
        return "memory" if 2 * memory >= self.duration_fs else "compute"


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
        traffic = self._traffic(program)
        phases = tuple(self._phase(phase, nbytes) for phase, nbytes in zip(program.phases, traffic, strict=True))
        barrier = self.chip.sync.barrier_cycles * FEMTO // self._clock(program.phases[0].core) if program.phases else 0
        return KernelTime(phases, barrier, self._macs(program), sum(traffic))

    def _macs(self, program: Program) -> int:
        total = 0
        for ins, times in program.instructions():
            count = self.isa[ins.name].macs
            total += count(self.chip, ins) * times if count else 0
        return total

    def _traffic(self, program: Program) -> list[int]:
        """Bytes per phase through the main-memory port."""
        main = self.chip.main_memory.name
        cache = sum(m.nbytes for m in self.chip.memories.values() if m.scope == "chip" and m.name != main)
        fits = sum(p.nbytes for p in program.params) <= cache
        return [self._phase_bytes(program, phase, main, fits) for phase in program.phases]

    def _phase_bytes(self, program: Program, phase: Phase, main: str, fits: bool) -> int:
        moved: Counter[tuple[int, bool]] = Counter()
        for ins, times in Program("", (), (phase,)).instructions():
            row = self.isa[ins.name]
            for operand, (_, role) in zip(ins.operands, row.operands, strict=False):
                if operand.space == main and operand.param is not None:
                    moved[operand.param, role.mode == "read"] += min(operand.nbytes, self._other(ins)) * times
        if not fits:
            return sum(moved.values())
        return sum(min(n, program.params[p].nbytes) for (p, _), n in moved.items())

    @staticmethod
    def _other(ins: Instruction) -> int:
        """The bytes that an instruction really moves: an indexed copy names a whole table but moves some rows."""
        return min(o.nbytes for o in ins.operands[:2]) if len(ins.operands) > 1 else ins.operands[0].nbytes

    def _phase(self, phase: Phase, nbytes: int) -> PhaseTime:
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
        bandwidth = self.chip.main_memory.bandwidth
        memory_fs = nbytes * FEMTO // bandwidth if bandwidth else 0
        return PhaseTime(phase.core, self._clock(phase.core), slowest, memory_fs, tuple(sorted(busy.items())))

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
    _touched: dict[int, Uses] = field(factory=dict)

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

    def _body(self, body: tuple[Instruction | Loop, ...], env: dict[str, int]) -> None:
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

    def _repeat(self, body: tuple[Instruction | Loop, ...], count: int, variable: str, env: dict[str, int]) -> None:
        """The body *count* times; as soon as its state repeats up to a constant, the rest is added at once."""
        period = self._period(body, variable)
        history: dict[tuple[int, tuple[object, ...]], tuple[int, int, dict[str, int]]] = {}
        i = 0
        while i < count:
            env[variable] = i
            self._body(body, env)
            i += 1
            if count - i < 2 * period or count < 4:
                continue
            shape, base = self._state(body)
            seen = history.get((i % period, shape))
            if seen is None:
                history[i % period, shape] = i, base, dict(self.busy)
                continue
            then, base_then, busy_then = seen
            jumps = (count - i) // (i - then)
            if jumps:
                self._advance(body, (base - base_then) * jumps, busy_then, jumps)
                i += jumps * (i - then)
            history.clear()

    def _period(self, body: tuple[Instruction | Loop, ...], variable: str) -> int:
        """How many iterations until event ids alternate the same way again."""
        key = id(body)
        found = self._touched.get(key)
        if found is None:
            found = self._touched[key] = survey(self.timing.isa, body, variable)
        return found.period

    def _state(self, body: tuple[Instruction | Loop, ...]) -> tuple[tuple[object, ...], int]:
        """Clocks and flags of the engines that the body uses, relative to the earliest, and that earliest clock."""
        uses = self._touched[id(body)]
        clocks = [self.clocks.get(e, 0) for e in uses.engines]
        base = min(clocks, default=0)
        flags = [(key, tuple(t - base for t in self.pending[key])) for key in uses.flags if self.pending.get(key)]
        return (tuple(c - base for c in clocks), tuple(flags)), base

    def _advance(
        self, body: tuple[Instruction | Loop, ...], cycles: int, busy_then: dict[str, int], jumps: int
    ) -> None:
        uses = self._touched[id(body)]
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
    """What a loop body touches: its engines, its flags, and after how many iterations its event ids repeat."""

    engines: tuple[str, ...]
    flags: tuple[tuple[str, str, int], ...]
    period: int


def survey(isa: Isa, body: tuple[Instruction | Loop, ...], variable: str) -> Uses:
    """What *body*, the body of the loop over *variable*, touches."""
    engines, flags, moduli = set[str](), set[tuple[str, str, int]](), [1]
    for ins in _flat(body):
        row = isa[ins.name]
        if row.flag is None:
            engines.add(row.engine)
            continue
        scalars = dict(ins.scalars)
        src, dst, event = str(scalars["src"]), str(scalars["dst"]), scalars["event"]
        engines.update((src, dst))
        terms = event.terms if isinstance(event, Affine) else ()
        first = event.const if isinstance(event, Affine) else int(event)
        span = sum(t.step * (t.modulus - 1) for t in terms)
        flags.update((src, dst, first + i) for i in range(span + 1))
        moduli += [t.modulus for t in terms if t.variable == variable]
    return Uses(tuple(sorted(engines)), tuple(sorted(flags)), lcm(*moduli))


def _flat(body: tuple[Instruction | Loop, ...]) -> Iterable[Instruction]:
    for item in body:
        if isinstance(item, Loop):
            yield from _flat(item.body)
        else:
            yield item
