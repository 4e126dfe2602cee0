"""Both planes are the oracle on programs that nobody wrote: random loop nests whose flags are balanced.

What is drawn: loops in loops, engines ordered in pairs, buffers and events that alternate with any loop around them,
events that count a loop, flags that are set before a loop and taken in its rounds or behind it; several nests and
phases on 8 cores. The seed is fixed, so that every run draws the same programs.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsf import hdl
from dsf.generic.isa import isa as table_of
from dsf.isa import Affine, Builder, Program

ENGINES = ("din", "vec", "dout", "mxu")
EVENTS = 4  # ids that loops and pairs use; a flag that is pending around a loop has an id above
SLOT = 1024  # bytes: 16 x 16 float32
SLOTS = 6
BLOCK = 8192  # bytes of y that one block writes


class Writer:
    """Writes one random block: every choice is drawn."""

    def __init__(self, b: Builder, draw: st.DrawFn, place: Affine) -> None:
        self.b, self.draw, self.place, self.loops, self.pending = b, draw, place, [], 0

    def pick(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def begin(self) -> None:
        """Every number that may be read is written first, as a block may not read what another left behind."""
        for slot in range(SLOTS):
            self.b("v.fill", self.b.on("sram", slot * SLOT, (16, 16), "float32"), value=1.0 + slot)
        self.b("copy.sram.acc", self.b.on("acc", 0, (16, 16), "float32"), self.b.on("sram", 0, (16, 16), "float32"))

    def body(self, depth: int) -> None:
        for _ in range(self.pick(1, 3)):
            choices = [self.instruction, self.pair]
            if depth:
                choices += [self.loop, self.carried, self.around, self.counted]
            choice = choices[self.pick(0, len(choices) - 1)]
            choice(depth)  # type: ignore[operator]

    def instruction(self, depth: int = 0) -> None:
        rows = self.pick(1, 16)
        tile = self.tile(rows, 16)
        kind = self.pick(0, 5)
        if kind == 0:
            self.b("v.add", tile, self.tile(rows, 16), self.tile(rows, 16))
        elif kind == 1:
            self.b("v.fill", tile, value=float(self.pick(1, 9)))
        elif kind == 2:
            self.b("copy.hbm.sram", tile, self.b.gm(0, self.address(16), (rows, 16), "float32"))
        elif kind == 3:
            self.b("copy.sram.hbm", self.b.gm(1, self.place + self.address(4), (rows, 16), "float32"), tile)
        elif kind == 4:
            acc = self.b.on("acc", 0, (16, 16), "float32")
            self.b("matmul", acc, self.tile(16, 16), self.tile(16, 16), accumulate=self.pick(0, 1))
        else:
            self.b("copy.acc.sram", self.tile(16, 16), self.b.on("acc", 0, (16, 16), "float32"))

    def tile(self, rows: int, columns: int) -> Any:
        """A slot, or one of two that alternate with a loop."""
        offset: Affine | int = self.pick(0, SLOTS - 3) * SLOT
        if self.loops and self.pick(0, 1):
            loop, _ = self.loops[self.pick(0, len(self.loops) - 1)]
            offset = (loop % self.pick(2, 3)) * SLOT + offset
        return self.b.on("sram", offset, (rows, columns), "float32")

    def address(self, steps: int) -> Affine | int:
        """A place in main memory that moves with a loop."""
        offset: Affine | int = self.pick(0, steps - 1) * 64
        if self.loops and self.pick(0, 1):
            loop, count = self.loops[self.pick(0, len(self.loops) - 1)]
            offset = loop * (64 * self.pick(0, 64 // count)) + offset
        return offset

    def event(self) -> Affine | int:
        if self.loops and self.pick(0, 1):
            loop, count = self.loops[self.pick(0, len(self.loops) - 1)]
            return loop if count <= EVENTS and self.pick(0, 1) else loop % self.pick(2, EVENTS)
        return self.pick(0, EVENTS - 1)

    def engines(self) -> tuple[str, str]:
        return ENGINES[self.pick(0, 3)], ENGINES[self.pick(0, 3)]

    def pair(self, depth: int = 0) -> None:
        src, dst = self.engines()
        self.b.order(src, dst, self.event())

    def loop(self, depth: int, count: int = 0) -> None:
        count = count or self.pick(1, 7)
        with self.b.loop(count) as r:
            self.loops.append((r, count))
            self.body(depth - 1)
            self.loops.pop()

    def carried(self, depth: int) -> None:
        """Buffers handed to and fro: flags set before the loop, taken and set in it, taken behind it."""
        (src, dst), slots, count = self.engines(), self.pick(1, 3), self.pick(1, 9)
        first = 4 + self.pending
        if first + slots > 16:
            return
        self.pending += slots
        for slot in range(slots):
            self.b.set_flag(src, dst, first + slot)
        with self.b.loop(count) as r:
            self.loops.append((r, count))
            self.b.wait_flag(src, dst, r % slots + first)
            self.body(depth - 1)
            self.b.set_flag(src, dst, r % slots + first)
            self.loops.pop()
        for slot in range(slots):
            self.b.wait_flag(src, dst, first + slot)
        self.pending -= slots

    def around(self, depth: int) -> None:
        """A flag that is pending while a loop runs, perhaps of the loop's own pair and id."""
        src, dst = self.engines()
        event = self.pick(0, EVENTS - 1)
        self.b.set_flag(src, dst, event)
        self.loop(depth, self.pick(1, 12))
        self.b.wait_flag(src, dst, event)

    def counted(self, depth: int) -> None:
        """As many events as a loop has rounds, raised in one loop and taken in the next."""
        (src, dst), count = self.engines(), self.pick(1, EVENTS)
        with self.b.loop(count) as r:
            self.instruction()
            self.b.set_flag(src, dst, r)
        with self.b.loop(count) as r:
            self.b.wait_flag(src, dst, r)
            self.instruction()


@st.composite
def programs(draw: st.DrawFn) -> Program:
    chip = hdl.load("acme-x1")
    b = Builder("random", table_of(chip), chip)
    b.param("x", "in", 1 << 16)
    b.param("y", "out", 40 * BLOCK)
    start = 0
    for _ in range(draw(st.integers(1, 2))):
        with b.phase("core"):
            for _ in range(draw(st.integers(1, 2))):
                i, j = draw(st.sampled_from([(1, 1), (3, 1), (2, 5), (1, 9)]))
                with b.nest(i=i, j=j) as (row, column):
                    writer = Writer(b, draw, row * (j * BLOCK) + column * BLOCK + start)
                    writer.begin()
                    writer.body(2)
                start += i * j * BLOCK
    return b.build()


def size(program: Program) -> int:
    return sum(times for _, times in program.instructions())


@settings(deadline=None, derandomize=True, max_examples=50, suppress_health_check=list(HealthCheck))
@given(program=programs())
def test_both_planes_are_the_oracle(planes: Any, program: Program) -> None:
    if size(program) < 8_000:
        planes.run(program)


@settings(deadline=None, derandomize=True, max_examples=15, suppress_health_check=list(HealthCheck))
@given(program=programs())
def test_both_planes_are_the_oracle_in_exact_mode(planes: Any, program: Program) -> None:
    if size(program) < 5_000:
        planes.run(program, exact=True)
