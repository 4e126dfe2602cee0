"""The functional plane: numbers without time. A program is unrolled once, bound once per set of addresses, then run as
a flat list.

Unrolling resolves every on-chip operand to a torch window over the core's memory; binding fills in the windows over
main memory; running is a loop over (function, arguments). Blocks are independent, so several of one nest run in
lockstep, as they do on the chip: each *lane* is a core with on-chip memories of its own, at true capacity, and one call
carries out an instruction for all lanes. `fast` computes 16-bit operands in float32 slabs; `exact` computes every
instruction in float64 and rounds once to the written operand's dtype, which is the definition, one lane at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from attrs import define, field, frozen

from dsf.hdl import Chip
from dsf.isa.program import Affine, Instruction, Loop, Nest, Operand, Program, torch_dtype
from dsf.isa.table import Isa, Row
from dsf.machine.arena import Arena
from dsf.numerics.rounding import rounded

__all__ = ["Bound", "Functional", "OnChip", "Unrolled"]

Function = Callable[..., Any]
Step = tuple[Function, tuple[Any, ...]]
Body = tuple[Instruction | Loop, ...]


@frozen
class Place:
    """A window of a parameter: what is left to resolve when a program is bound."""

    param: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@frozen(eq=False)
class Unrolled:
    """A program's instructions one after the other. *open* are the indices of the steps that touch main memory; their
    arguments hold a `Place` where a window will be."""

    steps: list[Step]
    open: tuple[int, ...]


@frozen(eq=False)
class Bound:
    """A program whose every operand is a window over memory."""

    steps: list[Step]

    def run(self) -> None:
        """Execute all instructions in program order."""
        for function, arguments in self.steps:
            function(*arguments)


@define(eq=False)
class OnChip:
    """The memories of the cores of one kind. A *wide* memory holds its 16-bit numbers in float32 containers, one per
    number."""

    chip: Chip
    isa: Isa
    _bases: dict[tuple[str, torch.dtype], torch.Tensor] = field(factory=dict)
    _bytes: dict[str, torch.Tensor] = field(factory=dict)
    _windows: dict[tuple[Operand, int, int], torch.Tensor] = field(factory=dict)

    def window(self, operand: Operand, offset: int, lanes: int = 1) -> torch.Tensor:
        """The operand's elements at byte *offset* in the first core; with more *lanes*, those of as many cores, along
        a leading dimension."""
        key = operand, offset, lanes
        found = self._windows.get(key)
        if found is None:
            dtype = torch_dtype(operand.dtype)
            base = self._base(operand.space, dtype)
            shape, stride = operand.shape, operand.stride
            if lanes > 1:
                shape, stride = (lanes, *shape), (base.stride(0), *stride)
            found = torch.as_strided(base, shape, stride, offset // dtype.itemsize)
            if len(self._windows) > MOST_WINDOWS:
                self._windows.clear()
            self._windows[key] = found
        return found

    def _base(self, space: str, dtype: torch.dtype) -> torch.Tensor:
        """(lanes, numbers) of one memory."""
        base = self._bases.get((space, dtype))
        if base is None:
            nbytes = self.chip.memories[space].nbytes
            if space in self.isa.wide and dtype in (torch.float16, torch.bfloat16):
                base = torch.zeros(MOST_LANES, nbytes // dtype.itemsize, dtype=torch.float32)
            else:
                if space not in self._bytes:
                    self._bytes[space] = torch.zeros(MOST_LANES, nbytes, dtype=torch.uint8)
                base = self._bytes[space].view(dtype)
            self._bases[space, dtype] = base
        return base


MOST_LANES = 32
LANE_BYTES = 1 << 19  # what all lanes move in one step: half the second-level cache of a common processor
MOST_WINDOWS = 100_000  # windows are small, but those of shapes never seen again should not pile up


class Functional:
    """Unrolls, binds and runs programs of one chip over one arena."""

    def __init__(self, chip: Chip, isa: Isa, arena: Arena, exact: bool = False) -> None:
        self.chip, self.isa, self.arena, self.exact = chip, isa, arena, exact
        self._cores: dict[str, OnChip] = {}

    def unroll(self, program: Program) -> Unrolled:
        """*program* as a flat list, its main-memory operands still open."""
        steps: list[Step] = []
        touching: list[int] = []
        for phase in program.phases:
            core = self._cores.setdefault(phase.core, OnChip(self.chip, self.isa))
            unroller = _Unroller(self, core, steps, touching)
            for nest in phase.nests:
                unroller.nest(nest)
        return Unrolled(steps, tuple(touching))

    def bind(self, unrolled: Unrolled, addresses: Sequence[int]) -> Bound:
        """Resolve the open operands with the parameters at *addresses* (bytes)."""
        steps, window = list(unrolled.steps), self.arena.window
        for index in unrolled.open:
            function, arguments = steps[index]
            steps[index] = (
                function,
                tuple(
                    [
                        window(addresses[a.param] + a.offset, a.shape, a.stride, a.dtype) if type(a) is Place else a
                        for a in arguments
                    ]
                ),
            )
        return Bound(steps)


@define(eq=False)
class _Unroller:
    machine: Functional
    core: OnChip
    steps: list[Step]
    touching: list[int]
    lane: str = ""
    lanes: int = 1
    _functions: dict[tuple[Any, ...], Function] = field(factory=dict)
    _fixed: dict[tuple[int, int], Step] = field(factory=dict)

    def nest(self, nest: Nest) -> None:
        """Every block of *nest*, as many side by side as its lane variable allows."""
        self.lane, most = ("", 1) if self.machine.exact else lanes_of(nest, self.machine.isa)
        rest = Nest(tuple((v, 1 if v == self.lane else n) for v, n in nest.variables), nest.body)
        count = dict(nest.variables).get(self.lane, 1)
        for env in rest.coordinates():
            for start in range(0, count, most):
                self.lanes = min(most, count - start)
                self.body(nest.body, {**env, self.lane: start})

    def body(self, body: Body, env: dict[str, int]) -> None:
        for item in body:
            if isinstance(item, Loop):
                for i in range(item.count):
                    env[item.variable] = i
                    self.body(item.body, env)
            else:
                self.instruction(item, env)

    def instruction(self, ins: Instruction, env: dict[str, int]) -> None:
        """Append the step. One that depends on no variable and touches no parameter is the same step every time."""
        step = self._fixed.get((id(ins), self.lanes))
        if step is None:
            row = self.machine.isa.rows[ins.name]
            if row.flag is not None:
                return  # order is the oracle's and the timing plane's business: this plane runs in program order
            step = self._function(row, ins, env), tuple([self._operand(o, env) for o in ins.operands])
            if any(o.param is not None for o in ins.operands):
                self.touching.append(len(self.steps))
            elif not any(o.offset.terms for o in ins.operands) and not _varies(ins):
                self._fixed[id(ins), self.lanes] = step
        self.steps.append(step)

    def _function(self, row: Row, ins: Instruction, env: dict[str, int]) -> Function:
        scalars = tuple([(k, v.at(env) if isinstance(v, Affine) else v) for k, v in ins.scalars])
        key = ins.name, repr(scalars), self.lanes > 1  # 0.0 and -0.0, 1 and 1.0 are equal but not the same scalar
        function = self._functions.get(key)
        if function is None:
            function = self._functions[key] = executor(row, dict(scalars), self.machine.exact, self.lanes > 1)
        return function

    def _operand(self, operand: Operand, env: dict[str, int]) -> torch.Tensor | Place:
        offset, dtype = operand.offset.at(env), torch_dtype(operand.dtype)
        if operand.param is None:
            return self.core.window(operand, offset, self.lanes)
        if self.lanes == 1:
            return Place(operand.param, offset, operand.shape, operand.stride, dtype)
        step = step_of(operand.offset, self.lane) // dtype.itemsize
        return Place(operand.param, offset, (self.lanes, *operand.shape), (step, *operand.stride), dtype)


def lanes_of(nest: Nest, isa: Isa) -> tuple[str, int]:
    """The nest's variable along which blocks run side by side, and how many at most. It moves main-memory operands by
    whole elements and nothing else; every instruction has a form for lanes."""
    body = list(flat(nest.body))
    rows = [isa.rows[ins.name] for ins in body]
    if any(row.lanes is None for row in rows if row.flag is None):
        return "", 1
    free = [(n, v) for v, n in nest.variables if n > 1 and all(_moves_main_only(ins, v) for ins in body)]
    if not free:
        return "", 1
    widest = max((o.nbytes for ins in body for o in ins.operands), default=1)
    return max(free)[1], max(1, min(MOST_LANES, LANE_BYTES // max(widest, 1)))


def _moves_main_only(ins: Instruction, variable: str) -> bool:
    """Whether *variable* occurs in *ins* only as a plain step of main-memory operands, in whole elements, and what is
    written there lies apart for each of its values."""
    if any(isinstance(v, Affine) and any(t.variable == variable for t in v.terms) for _, v in ins.scalars):
        return False
    for place, operand in enumerate(ins.operands):
        terms = [t for t in operand.offset.terms if t.variable == variable]
        if operand.param is None:
            if terms:
                return False
            continue
        step = sum(t.step for t in terms)
        if step < 0 or (place == 0 and step == 0):  # torch has no negative strides, and writes no element twice
            return False
        if any(t.modulus or t.step % operand.itemsize for t in terms):
            return False
    return True


def step_of(offset: Affine, variable: str) -> int:
    """Bytes from one value of *variable* to the next."""
    return sum(t.step for t in offset.terms if t.variable == variable)


def flat(body: Body) -> Iterator[Instruction]:
    """Every instruction of a body, loops opened once."""
    for item in body:
        if isinstance(item, Loop):
            yield from flat(item.body)
        else:
            yield item


def _varies(ins: Instruction) -> bool:
    return any(isinstance(value, Affine) and value.terms for _, value in ins.scalars)


def executor(row: Row, scalars: dict[str, Any], exact: bool, lanes: bool = False) -> Function:
    """The function that carries out one instruction on windows, the written one first."""
    if exact:
        return partial(_exact, row.semantics, scalars)
    in_place = row.lanes if lanes else row.fast
    if in_place is not None:
        return partial(in_place, **scalars) if scalars else in_place
    return partial(_pure, row.semantics, scalars)


def _pure(
    semantics: Callable[..., torch.Tensor], scalars: dict[str, Any], dst: torch.Tensor, *src: torch.Tensor
) -> None:
    dst.copy_(semantics(dst, *src, **scalars))


def _exact(
    semantics: Callable[..., torch.Tensor], scalars: dict[str, Any], dst: torch.Tensor, *src: torch.Tensor
) -> None:
    wide = [x.double() if x.is_floating_point() else x for x in (dst, *src)]
    dst.copy_(rounded(semantics(*wide, **scalars), dst.dtype))
