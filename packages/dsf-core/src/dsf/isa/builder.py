"""Writing programs: a kernel generator emits instructions inside phases, nests and loops, and checks come for free.

b = Builder("MatMul", isa, chip)
x, out = b.param("x", "in", nbytes), b.param("out", "out", nbytes)
with b.phase("AIC"), b.nest(i=4, j=3) as (i, j):
    with b.loop(9) as k:
        b("DataCopy", b.on("L1", (k % 2) * 8192, (64, 64), "float16"), b.gm(x, i * 4096 + k * 128, ...))
program = b.build()
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dsf import errors
from dsf.hdl import Chip
from dsf.isa.program import (
    Affine,
    Instruction,
    Loop,
    Nest,
    Operand,
    Param,
    Phase,
    Program,
    Scalar,
    Term,
    affine,
    contiguous,
)  # fmt: skip
from dsf.isa.table import Isa
from dsf.isa.verify import verify

__all__ = ["Builder", "Scratch"]

MOST_LISTED = 5  # kinds of tiles that a full memory lists
Body = list[Instruction | Loop]


class Scratch:
    """Hands out addresses of one on-chip memory, one after the other, aligned as the HDL demands."""

    def __init__(self, chip: Chip, space: str) -> None:
        self.memory = chip.memories[space]
        self.used = 0
        self._taken: list[tuple[str, int]] = []

    def take(self, nbytes: int, what: str = "unnamed") -> int:
        """The address of *nbytes* that nobody else has, for *what*; a KernelError that says who has the memory when it
        is full."""
        align = self.memory.alignment
        address = -(-self.used // align) * align
        if address + nbytes > self.memory.nbytes:
            raise errors.KernelError(
                "DSF-K002",
                f"{self.memory.name}: a tile of {nbytes} bytes does not fit after "
                f"{address} of {self.memory.nbytes} bytes{self._holds()}",
            )
        self.used = address + nbytes
        self._taken.append((what, nbytes))
        return address

    def _holds(self) -> str:
        """What is in the memory, in words: alike tiles as one sum, the largest first."""
        sums = Counter[str]()
        for what, nbytes in self._taken:
            sums[what] += nbytes
        counts = Counter(what for what, _ in self._taken)
        listed = [f"{counts[what]} x {what} ({nbytes} bytes)" for what, nbytes in sums.most_common(MOST_LISTED)]
        more = len(sums) - len(listed)
        return f", which hold {', '.join(listed)}{f' and {more} more kinds' if more else ''}" if listed else ""


class Builder:
    """Collects one program. Calling it emits an instruction; `build` verifies the whole against the chip, unless it is
    only a sketch to be timed."""

    def __init__(self, name: str, isa: Isa, chip: Chip, sketched: bool = False) -> None:
        self.name, self.isa, self.chip, self.sketched = name, isa, chip, sketched
        self._params: list[Param] = []
        self._phases: list[Phase] = []
        self._nests: list[Nest] | None = None
        self._bodies: list[Body] = []
        self._loops = 0

    def param(self, name: str, role: str, nbytes: int) -> int:
        """Declare a main-memory buffer; returns its index."""
        self._params.append(Param(name, role, nbytes))
        return len(self._params) - 1

    def gm(
        self, param: int, offset: Affine | int, shape: Sequence[int], dtype: str, stride: Sequence[int] | None = None
    ) -> Operand:
        """A window of parameter *param*, *offset* in bytes from its address."""
        return self._operand(self.chip.main_memory.name, offset, shape, dtype, stride, param)

    def on(
        self, space: str, offset: Affine | int, shape: Sequence[int], dtype: str, stride: Sequence[int] | None = None
    ) -> Operand:
        """A window of an on-chip memory, *offset* in bytes from its start."""
        return self._operand(space, offset, shape, dtype, stride, None)

    def _operand(
        self, space: str, offset: Affine | int, shape: Sequence[int], dtype: str,
        stride: Sequence[int] | None, param: int | None,
    ) -> Operand:  # fmt: skip
        dims = tuple(shape)
        return Operand(
            space, dims, tuple(stride) if stride is not None else contiguous(dims), dtype, affine(offset), param
        )

    @contextmanager
    def phase(self, core: str) -> Iterator[None]:
        """The nests inside run on cores of kind *core*; a barrier of all cores follows."""
        self._nests = []
        try:
            yield
            if self._nests:
                self._phases.append(Phase(core, tuple(self._nests)))
        finally:
            self._nests = None

    @contextmanager
    def nest(self, **counts: int) -> Iterator[tuple[Affine, ...]]:
        """Independent blocks: yields the variables, from 0 to their count - 1. Empty when a count is 0."""
        body: Body = []
        self._bodies.append(body)
        try:
            yield tuple(Affine(0, (Term(name, 1),)) for name in counts)
        finally:
            self._bodies.pop()
        assert self._nests is not None, "a nest stands inside a phase"
        if all(counts.values()) and body:
            self._nests.append(Nest(tuple(counts.items()), tuple(body)))

    @contextmanager
    def loop(self, count: int) -> Iterator[Affine]:
        """*count* times what is emitted inside; yields the loop variable."""
        name = f"r{self._loops}"
        self._loops += 1
        body: Body = []
        self._bodies.append(body)
        try:
            yield Affine(0, (Term(name, 1),))
        finally:
            self._bodies.pop()
        if count and body:
            self._bodies[-1].append(Loop(name, count, tuple(body)))

    @contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Nests that are emitted inside leave no trace when an error leaves it, so that another tiling may be tried."""
        assert self._nests is not None, "nests stand inside a phase"
        before = len(self._nests)
        try:
            yield
        except errors.KernelError:
            del self._nests[before:]
            raise

    def __call__(self, name: str, *operands: Operand, **scalars: Scalar) -> None:
        """Emit one instruction."""
        self._bodies[-1].append(Instruction(name, operands, tuple(scalars.items())))

    def set_flag(self, src: str, dst: str, event: Affine | int = 0) -> None:
        """When engine *src* has done all that was emitted before, raise *event* for engine *dst*."""
        self(self.isa.flags[0], src=src, dst=dst, event=affine(event))

    def wait_flag(self, src: str, dst: str, event: Affine | int = 0) -> None:
        """Engine *dst* waits for *event* of engine *src*."""
        self(self.isa.flags[1], src=src, dst=dst, event=affine(event))

    def order(self, src: str, dst: str, event: Affine | int = 0) -> None:
        """What engine *dst* does next comes after what engine *src* did before."""
        self.set_flag(src, dst, event)
        self.wait_flag(src, dst, event)

    def sketch(self) -> Program:
        """What has been emitted so far, not verified: to be timed, never to be run."""
        return Program(self.name, tuple(self._params), tuple(self._phases))

    def build(self) -> Program:
        """The finished program, verified."""
        program = self.sketch()
        if self.sketched:
            return program
        verify(program, self.isa, self.chip)
        return program
