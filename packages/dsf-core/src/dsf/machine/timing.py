"""The timing plane: cycles without numbers. It runs a program's engines on a scoreboard and never touches data.

Each engine of a core works through its queue in order; engines are ordered only by flags. A loop is simulated until the
vector of engine clocks and pending flags repeats up to a constant; from there the rest is that constant, many times
(a max-plus system becomes periodic), which is exact and not extrapolated. What a nest does to a core depends on its
cycles alone, so equal nests (of the layers of a model, of steps whose KV cache grows) are simulated once.

Blocks of a phase go, in the listing's order, to the core that is free first. Main memory and the cache before it are
shared by the cores, each getting an equal part or as much as one core can take: a phase lasts as long as its slowest
core or as its bytes need, whichever is longer. What goes through them is in `traffic`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

from attrs import frozen

from dsf.hdl import Chip
from dsf.isa.crew import Crew, crew_of
from dsf.isa.program import Instruction, Loop, Phase, Program
from dsf.isa.table import Isa
from dsf.machine.scoreboard import Board, Lap, Outline, outline
from dsf.machine.sharing import deal, fair_share_fs
from dsf.machine.traffic import Traffic, traffic

__all__ = ["FEMTO", "KernelTime", "PhaseTime", "Timing"]

FEMTO = 10**15
Body = tuple[Instruction | Loop, ...]


@frozen
class PhaseTime:
    """One phase: *cycles* of its slowest core, *memory_fs* that its bytes need through the shared memories,
    *busy* cycles per engine summed over all cores. On a team, *team* has how many cores of each kind are in one."""

    core: str
    clock_hz: int
    cycles: int
    memory_fs: int
    busy: tuple[tuple[str, int], ...]
    team: tuple[tuple[str, int], ...] = ()

    @property
    def core_fs(self) -> int:
        return self.cycles * FEMTO // self.clock_hz

    @property
    def duration_fs(self) -> int:
        return max(self.core_fs, self.memory_fs)

    @property
    def engines(self) -> Iterator[tuple[str, str, int]]:
        """(engine, kind of core, busy cycles), of a team each in its own core's name."""
        for name, cycles in self.busy:
            core, _, engine = name.partition(".") if self.team else (self.core, "", name)
            yield engine, core, cycles

    @property
    def busiest(self) -> str:
        """The engine that a core of its kind keeps busy longest."""
        number = dict(self.team)
        return max(self.engines, key=lambda e: Fraction(e[2], number.get(e[1], 1)), default=("none", "", 0))[0]


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
        """What most of the time waits for: `memory` (the shared memories), or the busiest engine of the cores."""
        waits = Counter[str]()
        for p in self.phases:
            waits["memory" if p.memory_fs >= p.core_fs else p.busiest] += p.duration_fs
        return max(waits, key=lambda name: waits[name], default="none")


@frozen(eq=False)
class _Sketch:
    """A program before it is simulated: the outline of every nest, and what each phase moves."""

    program: Program
    crews: tuple[Crew, ...]
    nests: tuple[tuple[Outline, ...], ...]
    moved: Sequence[Traffic]

    def parts(self) -> Iterator[tuple[Phase, Crew, tuple[Outline, ...], Traffic]]:
        """The phases, each with its own."""
        return zip(self.program.phases, self.crews, self.nests, self.moved, strict=True)


class Timing:
    """Times programs of one chip; every answer is kept, since a program is a value."""

    def __init__(self, chip: Chip, isa: Isa) -> None:
        self.chip, self.isa = chip, isa
        self._known: dict[Program, KernelTime] = {}
        self._cycles: dict[object, int] = {}
        self._laps: dict[Lap, Lap] = {}

    def __call__(self, program: Program) -> KernelTime:
        """The time of *program*."""
        known = self._known.get(program)
        if known is None:
            known = self._known[program] = self._kernel(self._sketch(program))
        return known

    def quickest(self, programs: Iterable[Program]) -> int:
        """The place of the program that is finished first. Those that cannot be it are not simulated: no core has fewer
        cycles than its share of the busiest engine's, and no byte moves faster than the shared memories allow."""
        sketches = [self._sketch(program) for program in programs]
        bounds = [self._least_fs(sketch) for sketch in sketches]
        best, least = -1, 0
        for place in sorted(range(len(sketches)), key=lambda n: (bounds[n], n)):
            if best >= 0 and bounds[place] > least:
                break
            found = self._kernel(sketches[place]).duration_fs
            if best < 0 or (found, place) < (least, best):
                best, least = place, found
        return best

    def _sketch(self, program: Program) -> _Sketch:
        crews, late = (
            tuple(crew_of(self.chip, phase.core) for phase in program.phases),
            self.chip.sync.cross_core_cycles,
        )
        nests = tuple(
            tuple(outline(nest, self.isa, crew, self.cycles, self._laps, late) for nest in phase.nests)
            for phase, crew in zip(program.phases, crews, strict=True)
        )
        return _Sketch(program, crews, nests, traffic(program, self.isa, self.chip))

    def _least_fs(self, sketch: _Sketch) -> int:
        """A time that the program cannot beat."""
        total = 0
        for phase, crew, nests, moved in sketch.parts():
            whole = _busy(nests, [nest.blocks for nest in phase.nests])
            cycles = max((-(-n // (crew.count * _number(crew, e))) for e, n in whole.items()), default=0)
            for nest, seen in zip(phase.nests, nests, strict=True):
                most = max((n // _number(crew, e) for e, n in seen.busy.items()), default=0)
                cycles = max(cycles, -(-nest.blocks // crew.count) * most)
            total += max(cycles * FEMTO // self._clock(crew), self._ports_fs(moved))
        return total + self._barrier_fs(sketch.program) * max(0, len(sketch.program.phases) - 1)

    def _kernel(self, sketch: _Sketch) -> KernelTime:
        program = sketch.program
        phases = tuple(self._phase(*parts) for parts in sketch.parts())
        return KernelTime(phases, self._barrier_fs(program), self._macs(program), sum(t.main for t in sketch.moved))

    def _barrier_fs(self, program: Program) -> int:
        if not program.phases:
            return 0
        return self.chip.sync.barrier_cycles * FEMTO // self._clock(crew_of(self.chip, program.phases[0].core))

    def _macs(self, program: Program) -> int:
        total = 0
        for ins, times in program.instructions():
            count = self.isa[ins.name].macs
            total += count(self.chip, ins) * times if count else 0
        return total

    def _phase(self, phase: Phase, crew: Crew, nests: tuple[Outline, ...], moved: Traffic) -> PhaseTime:
        blocks = [nest.blocks for nest in phase.nests]
        loads = deal(blocks, [self._alone(seen) for seen in nests], crew.count)
        slowest = 0
        for load in loads:
            board = Board()
            for seen, count in zip(nests, load, strict=True):
                board.repeat(seen.lap, count)
            slowest = max(slowest, board.finish(phase.core))
        busy = tuple(sorted(_busy(nests, blocks).items()))
        memory_fs, team = self._memory_fs(phase, crew, loads, moved), crew.members if crew.is_team else ()
        return PhaseTime(phase.core, self._clock(crew), slowest, memory_fs, busy, team)

    def _alone(self, seen: Outline) -> int:
        """Cycles of one block on a core that has nothing else to do."""
        board = Board()
        board.repeat(seen.lap, 1)
        return board.latest

    def _memory_fs(self, phase: Phase, crew: Crew, loads: Mapping[tuple[int, ...], int], moved: Traffic) -> int:
        """How long the busier of the shared memories takes: main memory, of which each core gets a fair share of at
        most what its own port takes, or a cache."""
        main, clock = self.chip.main_memory, self._clock(crew)
        issued = sum(moved.blocks[n] * nest.blocks for n, nest in enumerate(phase.nests))
        parts = Counter[int]()
        for load, cores in loads.items():
            own = sum(count * nbytes for count, nbytes in zip(load, moved.blocks, strict=True))
            parts[moved.main * own // issued if issued else 0] += cores
        most = main.core_bytes_per_cycle * clock * crew.cores if main.core_bytes_per_cycle else None
        shared = fair_share_fs(parts, main.bandwidth, most)
        return max(shared, self._ports_fs(moved))

    def _ports_fs(self, moved: Traffic) -> int:
        """What the bytes need through the ports themselves, however many cores ask."""
        ports = [(moved.main, self.chip.main_memory.bandwidth)]
        for cache in (m for m in self.chip.memories.values() if m.cache):
            ports.append((moved.reads if cache.mixed else moved.cores, cache.bandwidth))
            ports.append((moved.cores, cache.mixed))
        return max(nbytes * FEMTO // bandwidth if bandwidth else 0 for nbytes, bandwidth in ports)

    def _clock(self, crew: Crew) -> int:
        return self.chip.clocks[crew.clock]

    def cycles(self, ins: Instruction) -> int:
        """Cycles of one instruction on its engine; they depend on shapes and scalars, not on places."""
        key = (
            ins.name,
            tuple([(o.space, o.shape, o.stride, o.dtype) for o in ins.operands]),
            tuple([value for _, value in ins.scalars if type(value) in (int, str)]),
        )
        known = self._cycles.get(key)
        if known is None:
            row = self.isa[ins.name]
            known = self._cycles[key] = row.cycles(self.chip, row, ins)
        return known


def _number(crew: Crew, engine: str) -> int:
    """How many of an engine, as it is named on *crew*, there are in one of it."""
    return crew.number(crew.split(engine)[0])


def _busy(nests: Iterable[Outline], blocks: Iterable[int]) -> Counter[str]:
    """Cycles of every engine over all blocks."""
    total = Counter[str]()
    for seen, count in zip(nests, blocks, strict=True):
        for engine, cycles in seen.busy.items():
            total[engine] += cycles * count
    return total
