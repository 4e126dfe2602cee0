"""How many bytes of a program go through the ports that all cores share: main memory's, and the cache's before it.

Every access goes through the cache's port. What reaches main memory depends on reuse, and a loop nest says which reuse
the cache can serve: where all that one iteration touches fits the cache, the next iterations find again what they share
with it, and the loop moves what it touches once; where it does not fit, every iteration moves its own. Blocks in flight
on the cores are neighbours in that order, so that one cache serves them as it would serve one core. A transfer moves
whole bursts. What a kernel wrote before and reads again is found in the cache if the whole kernel fits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import ceil, prod

from attrs import define, evolve, field, frozen

from dsf.hdl import Chip
from dsf.isa.crew import CORE, PART, Crew, crew_of
from dsf.isa.laws import pieces
from dsf.isa.program import Instruction, Loop, Nest, Operand, Phase, Program
from dsf.isa.table import Isa

__all__ = ["Traffic", "traffic"]

Key = tuple[int, bool]  # a parameter, and whether it is read (else written)


@frozen
class Traffic:
    """Bytes of one phase: through main memory's port, in and out of the cores, those of one block of each nest, and how
    many of all the cores' are read."""

    main: int
    cores: int
    blocks: tuple[int, ...]
    reads: int


@frozen(eq=False)
class Use:
    """A main-memory operand of one instruction. *nbytes* in whole bursts for one execution; an *indexed* one names a
    whole table, of which every execution takes other rows."""

    key: Key
    operand: Operand
    nbytes: int
    burst: int
    indexed: bool

    def footprint(self, counts: Mapping[str, int]) -> int:
        """Bytes of main memory that the use touches while the loops of *counts* run."""
        if self.indexed:
            times = prod(count for name, count in counts.items() if name != CORE)
            return min(self.nbytes * times, _up(self.operand.reach, self.burst))
        steps = [(t, _values(counts[t.variable], t.modulus)) for t in self.operand.offset.terms if t.variable in counts]
        places = {t.variable: n for t, n in steps if t.step}
        reach = self.operand.reach + sum(abs(t.step) * (n - 1) for t, n in steps)
        return min(self.nbytes * prod(places.values()), _up(reach, self.burst))


def _up(nbytes: int, burst: int) -> int:
    return ceil(nbytes / burst) * burst


def _values(count: int, modulus: int) -> int:
    return min(count, modulus) if modulus else count


@define(eq=False)
class Level:
    """A loop (or one variable of a nest) with what it holds: uses of its own and loops inside."""

    variable: str
    count: int
    uses: list[Use] = field(factory=list)
    loops: list[Level] = field(factory=list)

    def each(self) -> Iterator[tuple[Use, dict[str, int]]]:
        """Every use of one iteration, with the loops inside this one that stand around it."""
        for use in self.uses:
            yield use, {}
        for loop in self.loops:
            for use, counts in loop.each():
                yield use, {**counts, loop.variable: loop.count}

    def moved(self, cache: int) -> Counter[Key]:
        """Bytes through main memory's port while the loop runs, behind a *cache* of so many bytes."""
        inside = list(self.each())
        total = Counter[Key]()
        if sum(use.footprint(counts) for use, counts in inside) <= cache:
            for use, counts in inside:
                total[use.key] += use.footprint({**counts, self.variable: self.count})
            return total
        for use in self.uses:
            total[use.key] += use.nbytes * self.count
        for loop in self.loops:
            for key, nbytes in loop.moved(cache).items():
                total[key] += nbytes * self.count
        return total

    def issued(self, reads: bool) -> int:
        """Bytes into the cores, or out of them, while the loop runs."""
        own = sum(use.nbytes for use in self.uses if use.key[1] is reads)
        return self.count * (own + sum(loop.issued(reads) for loop in self.loops))


def traffic(program: Program, isa: Isa, chip: Chip) -> list[Traffic]:
    """The traffic of every phase of *program*, in order."""
    cache, burst = sum(m.nbytes for m in chip.memories.values() if m.cache), chip.main_memory.burst
    crews = [crew_of(chip, phase.core) for phase in program.phases]
    both = list(zip(program.phases, crews, strict=True))
    phases = [[_nest(nest, isa, chip, crew) for nest in phase.nests] for phase, crew in both]
    touched = [
        _touched(levels, min(crew.count, sum(nest.blocks for nest in phase.nests)))
        for levels, (phase, crew) in zip(phases, both, strict=True)
    ]
    whole: Counter[Key] = Counter()
    for counter in touched:
        for key, nbytes in counter.items():
            whole[key] = min(whole[key] + nbytes, _up(program.params[key[0]].nbytes, burst))
    moved: Iterable[int] = _once(program, whole, touched)
    if sum(whole.values()) > cache:
        moved = [_phase_bytes(levels, seen, cache) for levels, seen in zip(phases, touched, strict=True)]
    return [_traffic(n, levels, phase) for n, levels, phase in zip(moved, phases, program.phases, strict=True)]


def _traffic(main: int, levels: list[Level], phase: Phase) -> Traffic:
    reads = [level.issued(True) for level in levels]
    issued = [n + level.issued(False) for n, level in zip(reads, levels, strict=True)]
    blocks = tuple(nbytes // nest.blocks for nbytes, nest in zip(issued, phase.nests, strict=True))
    return Traffic(main, sum(issued), blocks, sum(reads))


def _phase_bytes(levels: list[Level], touched: Counter[Key], cache: int) -> int:
    if sum(touched.values()) <= cache:
        return sum(touched.values())
    return sum(sum(level.moved(cache).values()) for level in levels)


def _once(program: Program, whole: Counter[Key], touched: list[Counter[Key]]) -> Iterator[int]:
    """Bytes per phase of a kernel that fits the cache: each byte counts where it is touched first."""
    left, written = Counter(whole), set[int]()
    for counter in touched:
        total = 0
        for key, nbytes in counter.items():
            param, reads = key
            if reads and (param in written or program.params[param].role == "workspace"):
                continue
            fresh = min(nbytes, left[key])
            left[key] -= fresh
            total += fresh
        written |= {param for param, reads in counter if not reads}
        yield total


def _touched(levels: Iterable[Level], cores: int) -> Counter[Key]:
    """Distinct bytes of each parameter that a phase reads and writes on so many cores."""
    total, extent = Counter[Key](), dict[Key, tuple[int, int]]()
    for level in levels:
        for use, counts in level.each():
            around = {CORE: cores, **counts, level.variable: level.count}
            total[use.key] += use.footprint(around)
            low, high = use.operand.offset.extremes(around)
            first, last = extent.get(use.key, (low, 0))
            extent[use.key] = min(first, low), max(last, high + _up(use.operand.reach, use.burst))
    return Counter({key: min(n, extent[key][1] - extent[key][0]) for key, n in total.items()})


def _nest(nest: Nest, isa: Isa, chip: Chip, crew: Crew) -> Level:
    """The nest's variables as loops, the last one innermost."""
    outer = inner = Level("", 1)
    for variable, count in nest.variables:
        level = Level(variable, count)
        inner.loops.append(level)
        inner = level
    _fill(inner, nest.body, isa, chip, crew)
    return outer


def _fill(level: Level, body: tuple[Instruction | Loop, ...], isa: Isa, chip: Chip, crew: Crew) -> None:
    """What *body* touches; an instruction of several cores of a team is a loop over them."""
    for item in body:
        if isinstance(item, Loop):
            inner = Level(item.variable, item.count)
            _fill(inner, item.body, isa, chip, crew)
            level.loops.append(inner)
        elif crew.is_team and (number := crew.number(crew.member(item))) > 1:
            if uses := [*_uses(item, isa, chip)]:
                level.loops.append(Level(PART, number, uses))
        else:
            level.uses += _uses(item, isa, chip)


def _uses(ins: Instruction, isa: Isa, chip: Chip) -> Iterator[Use]:
    burst = chip.main_memory.burst
    for n, (operand, (_, role)) in enumerate(zip(ins.operands, isa.rows[ins.name].operands, strict=False)):
        if operand.param is None:
            continue
        distinct = _distinct(operand)
        others = max((o.numel for m, o in enumerate(ins.operands) if m != n), default=distinct.numel)
        indexed = distinct.numel > others
        rows, columns = _table_rows(operand, others) if indexed else pieces(distinct)
        nbytes = rows * _up(columns * operand.itemsize, burst)
        yield Use((operand.param, role.mode == "read"), operand, nbytes, burst, indexed)


def _table_rows(table: Operand, moved: int) -> tuple[int, int]:
    """(rows, columns) of *moved* elements of a table that is taken row by row."""
    columns = prod(table.shape[1:])
    return ceil(moved / columns), columns


def _distinct(operand: Operand) -> Operand:
    """The operand without the dimensions along which it is repeated."""
    kept = [(n, s) for n, s in zip(operand.shape, operand.stride, strict=True) if s or not n]
    return evolve(operand, shape=tuple(n for n, _ in kept), stride=tuple(s for _, s in kept))
