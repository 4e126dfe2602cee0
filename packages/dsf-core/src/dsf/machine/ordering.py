"""Is every access ordered after the one it depends on? Checked once per program, without data and without time.

Each engine works through its queue in order; between engines only flags order anything. The check walks a program with
a vector clock per engine: what an engine has done, and what it knows, by flags, that others have done. Two accesses to
the same bytes, one of them a write, that no queue and no flag puts in order are a race: on the chip it would be wrong
numbers on some days, here it is an error that names both lines of the listing. So is a read of on-chip bytes that the
block has not written, or of a result or workspace into which nothing has been stored.

Blocks of a nest are walked twice in a row, as a core would run them, and a long loop until its buffers have alternated
twice and for its last rounds; what lies between repeats what was seen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from math import lcm

import numpy as np
from attrs import define, field, frozen

from dsf import errors
from dsf.hdl import Chip
from dsf.isa.program import Affine, Instruction, Loop, Nest, Operand, Program
from dsf.isa.table import SET_FLAG, Isa

__all__ = ["check"]

Clock = dict[str, int]
Body = tuple[Instruction | Loop, ...]


def check(program: Program, isa: Isa, chip: Chip) -> None:
    """Raise a MachineError for the first race, read of what nobody wrote, flag without a setter, or flag left set in
    *program*."""
    lines, sizes = _lines(program), {m.name: m.nbytes for m in chip.memories.values() if not m.main}
    empty = {n for n, param in enumerate(program.params) if param.role in ("out", "workspace")}
    for phase in program.phases:
        walk = _Walk(program, isa, lines, sizes, empty)
        for nest in phase.nests:
            for env in _first_blocks(nest):
                walk.block += 1
                walk.body(nest.body, env)
        walk.finish()


def _first_blocks(nest: Nest) -> Iterator[dict[str, int]]:
    for number, env in enumerate(nest.coordinates()):
        if number == 2:
            return
        yield env


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


@frozen
class Footprint:
    """The bytes of a window from its offset on: to *end*, in rows of *width* that begin every *pitch* bytes (0: it is
    dense, or too irregular to tell)."""

    end: int
    pitch: int
    width: int
    dense: bool

    @classmethod
    def of(cls, operand: Operand) -> Footprint:
        dims = sorted((s, n) for n, s in zip(operand.shape, operand.stride, strict=True) if n > 1 and s > 0)
        item, width = operand.itemsize, operand.itemsize
        while dims and dims[0][0] * item <= width:
            stride, n = dims.pop(0)
            width = (n - 1) * stride * item + width
        return cls(operand.reach, dims[0][0] * item if len(dims) == 1 else 0, width, not dims)


@define(eq=False)
class Access:
    """One access: which bytes, by which engine, as its how-manieth step, on which line, whether it wrote, and in which
    block."""

    start: int
    end: int
    form: Footprint
    engine: str
    step: int
    line: int
    wrote: bool
    block: int
    operand: Operand

    def meets(self, other: Access) -> bool:
        """Whether two that reach into each other may share a byte; windows of equal pitch are compared by column."""
        pitch = self.form.pitch
        if not pitch or pitch != other.form.pitch:
            return True
        shift = (other.start - self.start) % pitch
        return shift < self.form.width or shift + other.form.width > pitch

    def covers(self, other: Access) -> bool:
        """Whether every byte of *other* is in this one, as far as can be told from bounds and columns."""
        if self.start > other.start or other.end > self.end:
            return False
        if self.form.dense or (self.start == other.start and self.form == other.form):
            return True
        pitch = self.form.pitch
        if not pitch or (pitch != other.form.pitch and not other.form.dense):
            return False
        return (other.start - self.start) % pitch + other.form.width <= self.form.width


@define(eq=False)
class _Walk:
    program: Program
    isa: Isa
    lines: dict[int, int]
    sizes: dict[str, int]
    empty: set[int]  # parameters into which nothing has been stored yet
    block: int = 0
    clocks: dict[str, Clock] = field(factory=dict)
    flags: dict[tuple[str, str, int], deque[tuple[Clock, int]]] = field(factory=dict)
    spaces: dict[tuple[str, int | None], list[Access]] = field(factory=dict)
    _forms: dict[int, tuple[tuple[Operand, Footprint, str], ...]] = field(factory=dict)

    def body(self, body: Body, env: dict[str, int]) -> None:
        for item in body:
            if isinstance(item, Loop):
                for i in self._rounds(item):
                    env[item.variable] = i
                    self.body(item.body, env)
            else:
                self._step(item, env)

    def _rounds(self, loop: Loop) -> Iterable[int]:
        """The first rounds and, whole periods later, the last ones."""
        period = lcm(*_moduli(loop.body, loop.variable))
        head = 2 * period + 1
        if loop.count <= 2 * head:
            return range(loop.count)
        tail = head + (loop.count - head) % period
        return [*range(head), *range(loop.count - tail, loop.count)]

    def _step(self, ins: Instruction, env: dict[str, int]) -> None:
        row = self.isa.rows[ins.name]
        if row.flag is not None:
            self._flag(ins, row.flag == SET_FLAG, env)
            return
        if row.barrier:
            self._join()
            return
        clock = self.clocks.setdefault(row.engine, {})
        clock[row.engine] = step = clock.get(row.engine, 0) + 1
        line = self.lines[id(ins)]
        forms = self._forms.get(id(ins))
        if forms is None:
            forms = self._forms[id(ins)] = tuple(
                (o, Footprint.of(o), role.mode) for o, (_, role) in zip(ins.operands, row.operands, strict=True)
            )
        for operand, form, mode in forms:
            start = operand.offset.at(env)
            access = Access(start, start + form.end, form, row.engine, step, line, mode != "read", self.block, operand)
            before = self.spaces.setdefault((operand.space, operand.param), [])
            if mode == "read" or (mode == "accumulate" and _adds(ins, env)):
                self._written(access, before)
            if access.wrote and self.empty:
                self.empty.discard(operand.param if operand.param is not None else -1)
            self._touch(access, before, clock)

    def _join(self) -> None:
        """All engines know all that any of them has done."""
        known: Clock = {}
        for clock in self.clocks.values():
            for engine, step in clock.items():
                known[engine] = max(known.get(engine, 0), step)
        self.clocks = {engine: dict(known) for engine in self.isa.engines}

    def _written(self, access: Access, before: list[Access]) -> None:
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
        own = [
            a for a in before if a.wrote and a.block == access.block and a.start < access.end and access.start < a.end
        ]
        if any(a.covers(access) for a in own):
            return
        bytes_written = np.zeros(self.sizes[access.operand.space], dtype=bool)
        for a in own:
            _window(bytes_written, a)[...] = True
        if not _window(bytes_written, access).all():
            raise errors.MachineError(
                "DSF-X023",
                f"{self.program.name}: line {access.line} ({access.engine}) reads {access.operand.space} at bytes "
                f"{access.start} to {access.end}, of which its block has not written all; load or fill them first",
            )

    def _touch(self, access: Access, before: list[Access], clock: Clock) -> None:
        """Compare with what came before on the same bytes, then remember."""
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


def _window(memory: np.ndarray, access: Access) -> np.ndarray:
    """The bytes of an access in a memory of as many bytes."""
    o = access.operand
    shape, strides = (*o.shape, o.itemsize), (*(s * o.itemsize for s in o.stride), 1)
    return np.lib.stride_tricks.as_strided(memory[access.start :], shape, strides)


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
