"""Is every access ordered after the one it depends on? Checked once per program, without data and without time.

Each engine works through its queue in order; between engines only flags order anything. The check walks a program with
a vector clock per engine: what an engine has done, and what it knows, by flags, that others have done. Two accesses to
the same bytes, one of them a write, that no queue and no flag puts in order are a race: on the chip it would be wrong
numbers on some days, here it is an error that names both lines of the listing. So is a read of on-chip bytes that the
block has not written, or of a result or workspace into which nothing has been stored.

Blocks of a nest are walked twice in a row, as a core would run them, and a long loop until its buffers have alternated
twice and for its last rounds; what lies between repeats what was seen. A team is walked once for each of its parts,
and what one part stores no other part touches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import combinations, product
from math import lcm

import numpy as np
from attrs import define, field

from dsf import errors
from dsf.hdl import Chip
from dsf.isa.crew import CORE, PART, Crew, crew_of
from dsf.isa.program import Affine, Instruction, Loop, Nest, Operand, Phase, Program
from dsf.isa.table import SET_FLAG, Isa, Row
from dsf.machine.footprints import Access, Footprint, window_of

__all__ = ["check"]

MOST_STEPS, MOST_COMPARED = 300_000, 20_000_000  # a second or two; shipped kernels need a hundredth
Clock = dict[str, int]
Body = tuple[Instruction | Loop, ...]


def check(program: Program, isa: Isa, chip: Chip) -> None:
    """Raise a MachineError for the first race, read of what nobody wrote, flag without a setter, or flag left set in
    *program*."""
    lines, sizes = _lines(program), {m.name: m.nbytes for m in chip.memories.values() if not m.main}
    empty = {n for n, param in enumerate(program.params) if param.role in ("out", "workspace")}
    for phase in program.phases:
        crew, before = crew_of(chip, phase.core), set(empty)
        for part in range(crew.parts):
            walk = _Walk(
                program, isa, crew, chip.sync.cross_core_counter_max, lines, sizes, set(before), on_chip=part == 0
            )
            for nest in phase.nests:
                for env in _first_blocks(nest):
                    walk.block += 1
                    walk.body(nest.body, {**env, CORE: 0, PART: part})
                    walk.finish()
            empty &= walk.empty
        _check_blocks(phase, walk)


def _first_blocks(nest: Nest) -> Iterator[dict[str, int]]:
    for number, env in enumerate(nest.coordinates()):
        if number == 2:
            return
        yield env


def _check_blocks(phase: Phase, walk: _Walk) -> None:
    """Blocks are independent: any core takes any of them at any time, so what one stores in main memory no other one
    touches. Compared are the first block, its neighbour along every variable, and the last, of all nests of a phase,
    each on a core of its own; and of the first block the parts of a team."""
    stored = {p for nest in phase.nests for p in _stored(nest.body, walk.isa)}
    if not stored:
        return
    seen: list[dict[int, _Reach]] = []
    for nest in phase.nests:
        for env in _some_blocks(nest):
            own = {**env, CORE: len(seen), PART: 0}
            mine = _reaches(a for a in walk.main_accesses(nest.body, own) if a.operand.param in stored)
            for other in seen:
                _apart(mine, other, walk)
            seen.append(mine)
        _check_parts(nest, walk, stored)


@define(eq=False)
class _Reach:
    """What a block touches of one parameter, and from where to where."""

    start: int
    end: int
    wrote: bool = False
    accesses: list[Access] = field(factory=list)


def _reaches(accesses: Iterable[Access]) -> dict[int, _Reach]:
    """*accesses* to main memory by parameter; of those that repeat another one, one."""
    found: dict[int, _Reach] = {}
    known = set()
    for a in accesses:
        assert a.operand.param is not None, "an access to main memory names a parameter"
        if (same := (a.operand.param, a.start, a.form, a.wrote)) in known:
            continue
        known.add(same)
        reach = found.setdefault(a.operand.param, _Reach(a.start, a.end))
        reach.start, reach.end, reach.wrote = min(reach.start, a.start), max(reach.end, a.end), reach.wrote or a.wrote
        reach.accesses.append(a)
    return found


def _apart(mine: dict[int, _Reach], others: dict[int, _Reach], walk: _Walk) -> None:
    for param in mine.keys() & others.keys():
        own, other = mine[param], others[param]
        if other.end <= own.start or own.end <= other.start or not (own.wrote or other.wrote):
            continue
        for one, two in product(own.accesses, other.accesses):
            if (one.wrote or two.wrote) and one.meets(two):
                raise walk.shared(one, two)


def _check_parts(nest: Nest, walk: _Walk, stored: set[int]) -> None:
    """The cores of one kind in a team work at the same time, each on bytes of its own."""
    if walk.crew.parts == 1:
        return
    first = next(nest.coordinates())
    seen: list[dict[int, _Reach]] = []
    for part in range(walk.crew.parts):
        every = walk.main_accesses(nest.body, {**first, CORE: 0, PART: part}, several=True)
        seen.append(_reaches(a for a in every if a.operand.param in stored))
    for one, other in combinations(seen, 2):
        _apart(one, other, walk)


def _some_blocks(nest: Nest) -> Iterator[dict[str, int]]:
    first = {name: 0 for name, _ in nest.variables}
    last = {name: count - 1 for name, count in nest.variables}
    yield dict(first)
    for name, count in nest.variables:
        if count > 1:
            yield {**first, name: 1}
    if sum(last.values()) > 1:
        yield last


def _stored(body: Body, isa: Isa) -> Iterator[int]:
    """The parameters that a body stores into."""
    for item in body:
        if isinstance(item, Loop):
            yield from _stored(item.body, isa)
            continue
        for operand, (_, role) in zip(item.operands, isa.rows[item.name].operands, strict=False):
            if operand.param is not None and role.mode != "read":
                yield operand.param


def _lines(program: Program) -> dict[int, int]:
    """The listing's line of every instruction, by identity."""
    lines: dict[int, int] = {}
    line = 1

    def visit(body: Body) -> None:
        nonlocal line
        for item in body:
            line += 1
            if isinstance(item, Loop):
                visit(item.body)
            else:
                lines.setdefault(id(item), line)

    for phase in program.phases:
        line += 1
        for nest in phase.nests:
            line += 1
            visit(nest.body)
    return lines


@define(eq=False)
class _Walk:
    program: Program
    isa: Isa
    crew: Crew
    most_ahead: int
    lines: dict[int, int]
    sizes: dict[str, int]
    empty: set[int]  # parameters into which nothing has been stored yet
    block: int = 0
    clocks: dict[str, Clock] = field(factory=dict)
    flags: dict[tuple[str, str, int], deque[tuple[Clock, int]]] = field(factory=dict)
    spaces: dict[tuple[str, int | None], list[Access]] = field(factory=dict)
    on_chip: bool = True  # what a team's other parts do on chip is what the first one does
    steps: int = 0
    compared: int = 0
    _forms: dict[int, tuple[tuple[Operand, Footprint, str], ...]] = field(factory=dict)
    _known_rounds: dict[int, Iterable[int]] = field(factory=dict)

    def body(self, body: Body, env: dict[str, int]) -> None:
        for item in body:
            if isinstance(item, Loop):
                for i in self._rounds(item):
                    env[item.variable] = i
                    self.body(item.body, env)
            else:
                self._step(item, env)

    def _rounds(self, loop: Loop) -> Iterable[int]:
        """The first rounds and, whole periods later, the last ones; all of them where a place on chip moves on and on
        with the loop and never comes back."""
        known = self._known_rounds.get(id(loop))
        if known is None:
            known = self._known_rounds[id(loop)] = self._some_rounds(loop)
        return known

    def _some_rounds(self, loop: Loop) -> Iterable[int]:
        period = lcm(*_moduli(loop.body, loop.variable))
        head = 2 * period + 1
        if loop.count <= 2 * head or _moves_on(loop.body, loop.variable):
            return range(loop.count)
        skipped = (loop.count - 2 * head) // period * period
        return [*range(head), *range(head + skipped, loop.count)]

    def _step(self, ins: Instruction, env: dict[str, int]) -> None:
        row = self.isa.rows[ins.name]
        if row.flag is not None:
            self._flag(ins, row.flag == SET_FLAG, env)
            return
        if row.barrier:
            self._join()
            return
        self._count(ins, sum([len(self.spaces.get((o.space, o.param), ())) for o in ins.operands]))
        engine = self.crew.engine(row, ins)
        clock = self.clocks.setdefault(engine, {})
        clock[engine] = step = clock.get(engine, 0) + 1
        accesses = [
            self._access(ins, which, env, engine, step)
            for which in self._operands(ins, row)
            if self.on_chip or which[0].param is not None
        ]
        for access, mode in accesses:  # what an instruction reads was there before it writes
            if mode == "read" or (mode == "accumulate" and _adds(ins, env)):
                self._written(access)
        for access, _ in accesses:
            if access.wrote and self.empty:
                self.empty.discard(access.operand.param if access.operand.param is not None else -1)
            self._touch(access, clock)

    def _operands(self, ins: Instruction, row: Row) -> tuple[tuple[Operand, Footprint, str], ...]:
        forms = self._forms.get(id(ins))
        if forms is None:
            forms = self._forms[id(ins)] = tuple(
                (o, Footprint.of(o), role.mode) for o, (_, role) in zip(ins.operands, row.operands, strict=True)
            )
        return forms

    def _access(
        self, ins: Instruction, which: tuple[Operand, Footprint, str], env: dict[str, int], engine: str, step: int
    ) -> tuple[Access, str]:
        operand, form, mode = which
        start, line = operand.offset.at(env), self.lines[id(ins)]
        return Access(start, start + form.end, form, engine, step, line, mode != "read", self.block, operand), mode

    def _count(self, ins: Instruction, compared: int = 0) -> None:
        self.steps += 1
        self.compared += compared
        if self.steps > MOST_STEPS or self.compared > MOST_COMPARED:
            raise errors.MachineError(
                "DSF-X026",
                f"{self.program.name}, line {self.lines[id(ins)]}: it takes too long to tell whether all is in order "
                f"({self.steps:,} steps, {self.compared:,} comparisons so far); nest fewer loops, or let places and "
                "events alternate by smaller moduli",
            )

    def main_accesses(self, body: Body, env: dict[str, int], several: bool = False) -> Iterator[Access]:
        """A block's accesses to main memory, without regard to order; or only those of which a team has *several*."""
        for item in body:
            if isinstance(item, Loop):
                for i in self._rounds(item):
                    env[item.variable] = i
                    yield from self.main_accesses(item.body, env, several)
                continue
            row = self.isa.rows[item.name]
            if row.synchronises or not any(o.param is not None for o in item.operands):
                continue
            if several and self.crew.number(self.crew.member(item)) == 1:
                continue
            self._count(item)
            for which in self._operands(item, row):
                if which[0].param is not None:
                    yield self._access(item, which, env, row.engine, 0)[0]

    def shared(self, access: Access, other: Access) -> errors.MachineError:
        """What to say of two blocks that touch the same bytes of main memory."""
        name = self.program.params[access.operand.param or 0].name
        what = {True: "stores", False: "reads"}
        return errors.MachineError(
            "DSF-X024",
            f"{self.program.name}: line {access.line} {what[access.wrote]} {name} at bytes {access.start} to "
            f"{access.end} of one block, line {other.line} {what[other.wrote]} some of them in another{self._or_part}; "
            "blocks run in any order on any core: give each bytes of its own, or put them into phases",
        )

    @property
    def _or_part(self) -> str:
        return " (or in another part of the team)" if self.crew.is_team else ""

    def _join(self) -> None:
        """All engines know all that any of them has done."""
        known: Clock = {}
        for clock in self.clocks.values():
            for engine, step in clock.items():
                known[engine] = max(known.get(engine, 0), step)
        self.clocks = {engine: dict(known) for engine in self.isa.engines}

    def _before(self, access: Access) -> list[Access]:
        return self.spaces.setdefault((access.operand.space, access.operand.param), [])

    def _written(self, access: Access) -> None:
        """A block reads on chip only what it has written there: what another one left behind is anybody's. In main
        memory the parameter must hold something."""
        if access.operand.param is not None:
            if access.operand.param in self.empty:
                name = self.program.params[access.operand.param].name
                raise errors.MachineError(
                    "DSF-X023",
                    f"{self.program.name}: line {access.line} ({access.engine}) reads {name}, into which nothing has "
                    "been stored; store it first, or declare it an input",
                )
            return
        wrote = (a for a in self._before(access) if a.wrote and a.block == access.block)
        own = [a for a in wrote if a.start < access.end and access.start < a.end]
        if any(a.covers(access) for a in own):
            return
        bytes_written = np.zeros(self.sizes[access.operand.space], dtype=bool)
        for a in own:
            window_of(bytes_written, a)[...] = True
        if not window_of(bytes_written, access).all():
            raise errors.MachineError(
                "DSF-X023",
                f"{self.program.name}: line {access.line} ({access.engine}) reads {access.operand.space} at bytes "
                f"{access.start} to {access.end}, of which its block has not written all; load or fill them first",
            )

    def _touch(self, access: Access, clock: Clock) -> None:
        """Compare with what came before on the same bytes, then remember."""
        before = self._before(access)
        start, end, wrote = access.start, access.end, access.wrote
        stale = []
        for index, other in enumerate(before):
            if other.end <= start or end <= other.start:
                continue
            if (wrote or other.wrote) and clock.get(other.engine, 0) < other.step and access.meets(other):
                raise self._race(access, other)
            if access.covers(other) if wrote else _repeats(access, other):
                stale.append(index)
        for index in reversed(stale):
            del before[index]
        before.append(access)

    def _race(self, access: Access, other: Access) -> errors.MachineError:
        what = {(True, True): "writes over what", (True, False): "overwrites what", (False, True): "reads what"}
        verb = what[access.wrote, other.wrote]
        did = "writes" if other.wrote else "reads"
        return errors.MachineError(
            "DSF-X022",
            f"{self.program.name}: line {access.line} ({access.engine}) {verb} line {other.line} ({other.engine}) "
            f"{did} in {access.operand.space} at bytes {access.start} to {access.end}, and nothing orders the two; "
            f"set a flag of {other.engine} for {access.engine} after line {other.line} and wait for it before line "
            f"{access.line}",
        )

    def _flag(self, ins: Instruction, sets: bool, env: dict[str, int]) -> None:
        scalars = dict(ins.scalars)
        src, dst, event = str(scalars["src"]), str(scalars["dst"]), scalars["event"]
        number = event.at(env) if isinstance(event, Affine) else int(event)
        queue = self.flags.setdefault((src, dst, number), deque())
        line = self.lines[id(ins)]
        if sets:
            queue.append((dict(self.clocks.get(src, {})), line))
            if len(queue) > self.most_ahead and self.crew.split(src)[0] != self.crew.split(dst)[0]:
                raise errors.MachineError(
                    "DSF-X027",
                    f"{self.program.name}, line {line}: flag {number} of {src} for {dst} is set {len(queue)} times and "
                    f"nobody has waited for it; between cores it counts to {self.most_ahead}",
                )
            return
        if not queue:
            raise errors.MachineError(
                "DSF-X021",
                f"{self.program.name}, line {line}: {dst} waits for flag {number} of {src}, which nobody has set: "
                "this would hang",
            )
        known, _ = queue.popleft()
        clock = self.clocks.setdefault(dst, {})
        for engine, step in known.items():
            clock[engine] = max(clock.get(engine, 0), step)

    def finish(self) -> None:
        """A flag that nobody took would hang a later kernel."""
        for (src, dst, event), queue in self.flags.items():
            if queue:
                raise errors.MachineError(
                    "DSF-X020",
                    f"{self.program.name}, line {queue[0][1]}: flag {event} of {src} for {dst} is still set at the "
                    "end; wait for it",
                )


def _adds(ins: Instruction, env: dict[str, int]) -> bool:
    """Whether an accumulating instruction takes over what its accumulator holds."""
    value = dict(ins.scalars).get("accumulate", 1)
    return bool(value.at(env) if isinstance(value, Affine) else value)


def _repeats(access: Access, other: Access) -> bool:
    """Whether one engine has read the same bytes before: the later read stands for both."""
    return (
        not other.wrote and other.engine == access.engine and other.start == access.start and other.form == access.form
    )


def _moves_on(body: Body, variable: str) -> bool:
    """Whether a place on chip moves with *variable* without ever coming back."""
    for item in body:
        if isinstance(item, Loop):
            if _moves_on(item.body, variable):
                return True
            continue
        places = (o.offset for o in item.operands if o.param is None)
        if any(t.variable == variable and t.step and not t.modulus for place in places for t in place.terms):
            return True
    return False


def _moduli(body: Body, variable: str) -> Iterator[int]:
    """By how many rounds of *variable* the buffers and events of *body* alternate."""
    for item in body:
        if isinstance(item, Loop):
            yield from _moduli(item.body, variable)
            continue
        expressions = [operand.offset for operand in item.operands] + [
            v for _, v in item.scalars if isinstance(v, Affine)
        ]
        yield from (t.modulus for e in expressions for t in e.terms if t.variable == variable and t.modulus)
