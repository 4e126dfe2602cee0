"""Is every access ordered after the one it depends on? Checked once per program, without data and without time.

Each engine works through its queue in order; between engines only flags order anything. The check walks a program with
a vector clock per engine: what an engine has done, and what it knows, by flags, that others have done. Two accesses to
the same bytes, one of them a write, that no queue and no flag puts in order are a race: on the chip it would be wrong
numbers on some days, here it is an error that names both lines of the listing.

Blocks of a nest are walked twice in a row, as a core would run them, and a long loop until its buffers have alternated
twice and for its last rounds; what lies between repeats what was seen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from math import lcm

from attrs import define, field, frozen

from dsf import errors
from dsf.isa.program import Affine, Instruction, Loop, Nest, Operand, Program
from dsf.isa.table import SET_FLAG, Isa

__all__ = ["check"]

Clock = dict[str, int]
Body = tuple[Instruction | Loop, ...]


def check(program: Program, isa: Isa) -> None:
    """Raise a MachineError for the first race, flag without a setter, or flag left set in *program*."""
    lines = _lines(program)
    for phase in program.phases:
        walk = _Walk(program.name, isa, lines)
        for nest in phase.nests:
            for env in list(_first_blocks(nest)):
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
    """The bytes of a window: from *start* to *end*, in rows of *width* that begin every *pitch* bytes."""

    start: int
    end: int
    pitch: int
    width: int

    @classmethod
    def of(cls, operand: Operand, offset: int) -> Footprint:
        dims = sorted((s, n) for n, s in zip(operand.shape, operand.stride, strict=True) if n > 1 and s > 0)
        item, width = operand.itemsize, operand.itemsize
        while dims and dims[0][0] * item <= width:
            stride, n = dims.pop(0)
            width = (n - 1) * stride * item + width
        pitch = dims[0][0] * item if len(dims) == 1 else 0
        return cls(offset, offset + operand.reach, pitch, width)

    def meets(self, other: Footprint) -> bool:
        """Whether the two may share a byte; two windows of equal pitch are compared by their columns."""
        if self.end <= other.start or other.end <= self.start:
            return False
        if not self.pitch or self.pitch != other.pitch:
            return True
        shift = (other.start - self.start) % self.pitch
        return shift < self.width or shift + other.width > self.pitch

    def covers(self, other: Footprint) -> bool:
        """Whether every byte of *other* is in this one, as far as can be told from bounds."""
        dense = not self.pitch or self.width >= self.pitch
        return self == other or (dense and self.start <= other.start and other.end <= self.end)


@frozen
class Access:
    """One access: which bytes, by which engine, as its how-manieth step, on which line, and whether it wrote."""

    bytes: Footprint
    engine: str
    step: int
    line: int
    wrote: bool


@define(eq=False)
class _Walk:
    name: str
    isa: Isa
    lines: dict[int, int]
    clocks: dict[str, Clock] = field(factory=dict)
    flags: dict[tuple[str, str, int], deque[tuple[Clock, int]]] = field(factory=dict)
    spaces: dict[tuple[str, int | None], list[Access]] = field(factory=dict)

    def body(self, body: Body, env: dict[str, int]) -> None:
        for item in body:
            if isinstance(item, Loop):
                for i in self._rounds(item):
                    self.body(item.body, {**env, item.variable: i})
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
        clock = self.clocks.setdefault(row.engine, {})
        clock[row.engine] = step = clock.get(row.engine, 0) + 1
        line = self.lines[id(ins)]
        for operand, (_, role) in zip(ins.operands, row.operands, strict=True):
            access = Access(Footprint.of(operand, operand.offset.at(env)), row.engine, step, line, role.mode != "read")
            self._touch(operand, access, clock)

    def _touch(self, operand: Operand, access: Access, clock: Clock) -> None:
        """Compare with what came before on the same bytes, then remember."""
        before = self.spaces.setdefault((operand.space, operand.param), [])
        for other in before:
            unordered = clock.get(other.engine, 0) < other.step
            if unordered and (access.wrote or other.wrote) and access.bytes.meets(other.bytes):
                raise self._race(operand, access, other)
        if access.wrote:
            before[:] = [a for a in before if not access.bytes.covers(a.bytes)]
        else:
            before[:] = [a for a in before if a.wrote or a.engine != access.engine or a.bytes != access.bytes]
        before.append(access)

    def _race(self, operand: Operand, access: Access, other: Access) -> errors.MachineError:
        what = {(True, True): "writes over what", (True, False): "overwrites what", (False, True): "reads what"}
        verb = what[access.wrote, other.wrote]
        did = "writes" if other.wrote else "reads"
        return errors.MachineError(
            "DSF-X022",
            f"{self.name}: line {access.line} ({access.engine}) {verb} line {other.line} ({other.engine}) {did} in "
            f"{operand.space} at bytes {access.bytes.start} to {access.bytes.end}, and nothing orders the two; "
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
                f"{self.name}, line {line}: {dst} waits for flag {number} of {src}, which nobody has set: "
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
                    f"{self.name}, line {queue[0][1]}: flag {event} of {src} for {dst} is still set at the end; "
                    "wait for it",
                )


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
