"""One core's engines: when each is free and which flags are pending, while a nest's blocks go through it.

A nest is first outlined: what is left of an instruction is its engine and its cycles, of a flag its two engines and its
event. A *lap* is the body of a nest or loop in that form, a value made of small numbers: laps that are equal do the
same to any core, wherever their operands lie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import lcm
from typing import Any

from attrs import define, field, frozen

from dsf import errors
from dsf.isa.crew import Crew
from dsf.isa.program import Affine, Instruction, Loop, Nest
from dsf.isa.table import SET_FLAG, Isa, Row

__all__ = ["Board", "Lap", "Outline", "outline"]

WORK, SET, WAIT, LOOP, JOIN = range(5)

Flag = tuple[str, str, int]
Op = tuple[Any, ...]  # a kind, and what the kind says


@frozen(cache_hash=True)
class Event:
    """A flag's two engines, its id: const + sum of step * (variable mod modulus), and the cycles until it is seen."""

    src: str
    dst: str
    const: int
    terms: tuple[tuple[str, int, int], ...] = ()
    late: int = 0

    def at(self, env: Mapping[str, int]) -> Flag:
        number = self.const
        for variable, step, modulus in self.terms:
            value = env[variable]
            number += step * (value % modulus if modulus else value)
        return self.src, self.dst, number


@frozen(cache_hash=True)
class Lap:
    """A body over *variable*. Its *ops* are (WORK, engine, cycles), (SET, event), (WAIT, event),
    (LOOP, lap, count) and (JOIN, engines).

    *engines* are those it uses, *events* the flags; after *period* rounds its event ids repeat. *counts* are those of
    its own variable and of the loops inside it, *outer* the variables of loops around it that its events name.
    """

    variable: str
    ops: tuple[Op, ...]
    engines: tuple[str, ...] = field(eq=False)
    events: tuple[Event, ...] = field(eq=False)
    period: int = field(eq=False)
    counts: tuple[tuple[str, int], ...]
    outer: tuple[str, ...] = field(eq=False)
    _flags: dict[tuple[int, ...], tuple[Flag, ...]] = field(factory=dict, eq=False, hash=False)
    _after: dict[object, tuple[Any, Any]] = field(factory=dict, eq=False, hash=False)

    def flags(self, env: Mapping[str, int]) -> tuple[Flag, ...]:
        """The flags that all rounds touch where the loops around stand at *env*."""
        around = tuple([env[v] for v in self.outer])
        known = self._flags.get(around)
        if known is None:
            found = {(e.src, e.dst, number) for e in self.events for number in self._numbers(e, env)}
            known = self._flags[around] = tuple(sorted(found))
        return known

    def _numbers(self, event: Event, env: Mapping[str, int]) -> set[int]:
        """All ids that *event* has while the loop runs."""
        counts, ids = dict(self.counts), {event.const}
        for variable, step, modulus in event.terms:
            values = range(counts[variable]) if variable in counts else range(env[variable], env[variable] + 1)
            ids = {i + step * (v % modulus if modulus else v) for i in ids for v in values[: modulus or None]}
        return ids


@frozen(eq=False)
class Outline:
    """A nest as the scoreboard sees it: one block as a lap, and the cycles that each engine works in it (in a team:
    all its engines of that name)."""

    lap: Lap
    busy: dict[str, int]


def outline(
    nest: Nest, isa: Isa, crew: Crew, cycles: Callable[[Instruction], int], known: dict[Lap, Lap], late: int = 0
) -> Outline:
    """The outline of *nest* on *crew*, whose flags from core to core are seen *late* cycles after they were set. Of
    equal laps the one in *known* is taken, with all that was found out about it."""
    making = _Outliner(isa, crew, cycles, known, late)
    return Outline(making.lap("", 1, nest.body, 1), making.busy)


@define(eq=False)
class _Outliner:
    """Makes laps of bodies. The cores of one kind in a team do the same, so that one of them stands for all."""

    isa: Isa
    crew: Crew
    cycles: Callable[[Instruction], int]
    known: dict[Lap, Lap]
    late: int
    busy: dict[str, int] = field(factory=dict)

    def lap(self, variable: str, count: int, body: tuple[Instruction | Loop, ...], times: int) -> Lap:
        ops: list[Op] = []
        engines, events, counts = dict[str, None](), dict[Event, None](), {variable: count}
        for item in body:
            if isinstance(item, Loop):
                inner = self.lap(item.variable, item.count, item.body, times * item.count)
                ops.append((LOOP, inner, item.count))
                engines.update(dict.fromkeys(inner.engines))
                events.update(dict.fromkeys(inner.events))
                counts.update(inner.counts)
                continue
            row = self.isa.rows[item.name]
            if row.barrier:
                engines.update(dict.fromkeys(self.isa.engines))
                ops.append((JOIN, tuple(sorted(self.isa.engines))))
            elif row.flag is None:
                self._work(ops, row, item, times)
                engines[ops[-1][1]] = None
            else:
                event = self._event(item)
                engines.update({event.src: None, event.dst: None})
                events[event] = None
                ops.append((SET if row.flag == SET_FLAG else WAIT, event))
        terms = [term for event in events for term in event.terms]
        lap = Lap(
            variable, tuple(ops), tuple(sorted(engines)), tuple(events),
            lcm(*(modulus for name, _, modulus in terms if name == variable)),
            tuple(counts.items()), tuple(sorted({name for name, *_ in terms if name not in counts})),
        )  # fmt: skip
        return self.known.setdefault(lap, lap)

    def _work(self, ops: list[Op], row: Row, ins: Instruction, times: int) -> None:
        spent, engine, cores = self.cycles(ins), row.engine, 1
        if self.crew.is_team:
            engine, cores = self.crew.engine(row, ins), self.crew.number(self.crew.member(ins))
        self.busy[engine] = self.busy.get(engine, 0) + spent * times * cores
        if ops and ops[-1][0] == WORK and ops[-1][1] == engine:  # one after the other in one queue
            spent += ops.pop()[2]
        ops.append((WORK, engine, spent))

    def _event(self, ins: Instruction) -> Event:
        scalars = dict(ins.scalars)
        src, dst, event = str(scalars["src"]), str(scalars["dst"]), scalars["event"]
        late = self.late if self.crew.split(src)[0] != self.crew.split(dst)[0] else 0
        if not isinstance(event, Affine):
            return Event(src, dst, int(event), (), late)
        return Event(src, dst, event.const, tuple((t.variable, t.step, t.modulus) for t in event.terms), late)


@define(eq=False)
class Board:
    """One core: the cycle at which each engine is free, and since when each pending flag has been set."""

    clocks: dict[str, int] = field(factory=dict)
    pending: dict[Flag, list[int]] = field(factory=dict)

    @property
    def latest(self) -> int:
        """The cycle at which the last engine is done."""
        return max(self.clocks.values(), default=0)

    def finish(self, core: str) -> int:
        """The cycle at which all is done. A flag that nobody took would hang a later kernel."""
        for (src, dst, event), times in self.pending.items():
            if times:
                raise errors.MachineError(
                    "DSF-X020",
                    f"phase {core}: flag {event} of {src} for {dst} is still set at the end; wait for it",
                )
        return self.latest

    def repeat(self, lap: Lap, count: int) -> None:
        """*count* rounds of a nest's block. A core in the same state (up to the present cycle) has been seen before."""
        if not count:
            return
        base = min((self.clocks.get(e, 0) for e in lap.engines), default=0)
        entry = (count, tuple([self.clocks.get(e, 0) - base for e in lap.engines]), self._waiting(base))
        known = lap._after.get(entry)
        if known is None:
            self._repeat(lap, count, {})
            leaving = tuple([self.clocks[e] - base if e in self.clocks else None for e in lap.engines])
            lap._after[entry] = leaving, self._waiting(base)
            return
        clocks, waiting = known
        for engine, clock in zip(lap.engines, clocks, strict=True):
            if clock is not None:
                self.clocks[engine] = clock + base
        self.pending = {flag: [t + base for t in times] for flag, times in waiting}

    def _waiting(self, base: int) -> tuple[tuple[Flag, tuple[int, ...]], ...]:
        return tuple(sorted((flag, tuple([t - base for t in times])) for flag, times in self.pending.items() if times))

    def _run(self, ops: tuple[Op, ...], env: dict[str, int]) -> None:
        clocks, pending = self.clocks, self.pending
        for op in ops:
            kind = op[0]
            if kind == WORK:
                engine = op[1]
                clocks[engine] = clocks.get(engine, 0) + op[2]
            elif kind == LOOP:
                self._repeat(op[1], op[2], env)
            elif kind == JOIN:
                clocks.update(dict.fromkeys(op[1], self.latest))
            else:
                event: Event = op[1]
                flag = event.at(env) if event.terms else (event.src, event.dst, event.const)
                times = pending.get(flag)
                if kind == SET:
                    seen = clocks.get(event.src, 0) + event.late
                    if times is None:
                        pending[flag] = [seen]
                    else:
                        times.append(seen)
                elif times:
                    since = times.pop(0)
                    if since > clocks.get(event.dst, 0):
                        clocks[event.dst] = since
                else:
                    raise _hang(flag)

    def _repeat(self, lap: Lap, count: int, env: dict[str, int]) -> None:
        """The lap *count* times; as soon as its state repeats up to a constant, the rest is added at once."""
        period, variable, ops = lap.period, lap.variable, lap.ops
        history: dict[object, tuple[int, int]] = {}
        watched = count >= 4 and period > 0
        flags: tuple[Flag, ...] = lap.flags(env) if watched else ()
        i = 0
        while i < count:
            env[variable] = i
            self._run(ops, env)
            i += 1
            if not watched or count - i < 2 * period:
                continue
            shape, base = self._state(lap.engines, flags)
            seen = history.get((i % period, shape))
            if seen is None:
                history[i % period, shape] = i, base
                continue
            then, base_then = seen
            jumps = (count - i) // (i - then)
            if jumps:
                self._advance(lap.engines, flags, (base - base_then) * jumps)
                i += jumps * (i - then)
            history.clear()

    def _state(self, engines: tuple[str, ...], flags: tuple[Flag, ...]) -> tuple[object, int]:
        """Clocks and flags of the engines that a body uses, relative to the earliest, and that earliest clock."""
        clocks = [self.clocks.get(e, 0) for e in engines]
        base = min(clocks, default=0)
        waiting = [(flag, tuple([t - base for t in self.pending[flag]])) for flag in flags if self.pending.get(flag)]
        return (tuple([c - base for c in clocks]), tuple(waiting)), base

    def _advance(self, engines: tuple[str, ...], flags: tuple[Flag, ...], cycles: int) -> None:
        for engine in engines:
            self.clocks[engine] = self.clocks.get(engine, 0) + cycles
        for flag in flags:
            if self.pending.get(flag):
                self.pending[flag] = [t + cycles for t in self.pending[flag]]


def _hang(flag: Flag) -> errors.MachineError:
    src, dst, event = flag
    return errors.MachineError(
        "DSF-X021", f"WaitFlag src={src}, dst={dst}, event={event:#x}: {dst} waits for flag {event} of {src}, which "
        "nobody has set: this would hang",
    )  # fmt: skip
