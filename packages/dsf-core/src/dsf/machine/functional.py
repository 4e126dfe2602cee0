"""The functional plane: numbers without time. A program is unrolled once, bound once per set of addresses, then run as
a flat list.

Unrolling resolves every on-chip operand to a torch window over the core's memory; binding fills in the windows over
main memory; running is a loop over (function, arguments). Blocks are independent, so several of one nest run in
lockstep, as they do on the chip: each *lane* is a core with on-chip memories of its own, at true capacity, and one call
carries out an instruction for all lanes. `fast` computes 16-bit operands in float32 slabs; `exact` computes every
instruction in float64 and rounds once to the written operand's dtype, which is the definition, one lane at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from attrs import define, field, frozen

from dsf.hdl import Chip
from dsf.isa.crew import CORE, PART, Crew, crew_of
from dsf.isa.program import Affine, Instruction, Loop, Nest, Operand, Program, torch_dtype
from dsf.isa.table import Isa, Row
from dsf.machine import selftest
from dsf.machine.arena import Arena
from dsf.machine.lanes import MOST_LANES, Lanes, lanes_of, step_of
from dsf.machine.settle import computes_as_the_host, rounding_of
from dsf.numerics.rounding import Rounding, rounded

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
    _windows: dict[tuple[Operand, int, int, bool], torch.Tensor] = field(factory=dict)

    def window(self, operand: Operand, offset: int, lanes: int = 1, uniform: bool = False) -> torch.Tensor:
        """The operand's elements at byte *offset* in the first core; with more *lanes*, those of as many cores, along
        a leading dimension: all of them the first core's where they are *uniform*."""
        key = operand, offset, lanes, uniform
        found = self._windows.get(key)
        if found is None:
            dtype = torch_dtype(operand.dtype)
            base = self._base(operand.space, dtype)
            shape, stride = operand.shape, operand.stride
            if lanes > 1:
                shape, stride = (lanes, *shape), (0 if uniform else base.stride(0), *stride)
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


MOST_WINDOWS = 100_000  # windows are small, but those of shapes never seen again should not pile up


class Functional:
    """Unrolls, binds and runs programs of one chip over one arena."""

    def __init__(self, chip: Chip, isa: Isa, arena: Arena, exact: bool = False) -> None:
        self.chip, self.isa, self.arena = chip, isa, arena
        self.exact = exact or not computes_as_the_host(chip)
        if not self.exact:
            selftest.check()
        self._cores: dict[tuple[str, int], OnChip] = {}

    def unroll(self, program: Program) -> Unrolled:
        """*program* as a flat list, its main-memory operands still open."""
        steps: list[Step] = []
        touching: list[int] = []
        for phase in program.phases:
            crew = crew_of(self.chip, phase.core)
            parts = [self._core(member, part) for member, number in crew.members for part in range(number)]
            unroller = _Unroller(self, crew, dict(parts), steps, touching)
            for nest in phase.nests:
                unroller.nest(nest)
        return Unrolled(steps, tuple(touching))

    def _core(self, kind: str, part: int) -> tuple[tuple[str, int], OnChip]:
        """One kind of core as the *part*-th of a team, with what is on it."""
        if (kind, part) not in self._cores:
            self._cores[kind, part] = OnChip(self.chip, self.isa)
        return (kind, part), self._cores[kind, part]

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
    crew: Crew
    cores: dict[tuple[str, int], OnChip]
    steps: list[Step]
    touching: list[int]
    side: Lanes = field(factory=Lanes)
    lanes: int = 1
    _functions: dict[tuple[Any, ...], Function] = field(factory=dict)
    _fixed: dict[tuple[int, int, int], Step] = field(factory=dict)

    def nest(self, nest: Nest) -> None:
        """Every block of *nest*, as many side by side as its lane variable allows."""
        self.side = Lanes() if self.machine.exact else lanes_of(nest, self.machine.isa, self.crew.count)
        lane, most = self.side.variable, self.side.most
        rest = Nest(tuple((v, 1 if v == lane else n) for v, n in nest.variables), nest.body)
        count = dict(nest.variables).get(lane, 1)
        for env in rest.coordinates():
            for start in range(0, count, most):
                self.lanes = min(most, count - start)
                self.body(nest.body, {**env, lane: start, CORE: 0, PART: 0})

    def body(self, body: Body, env: dict[str, int]) -> None:
        for item in body:
            if isinstance(item, Loop):
                for i in range(item.count):
                    env[item.variable] = i
                    self.body(item.body, env)
            else:
                self.instruction(item, env)

    def instruction(self, ins: Instruction, env: dict[str, int]) -> None:
        """Append a step for each core of a team that carries *ins* out."""
        row = self.machine.isa.rows[ins.name]
        if row.synchronises:
            return  # order is the oracle's and the timing plane's business: this plane runs in program order
        if not self.crew.is_team:
            self._step(row, ins, env, self.crew.name, 0)
            return
        member = self.crew.member(ins)
        for part in range(self.crew.number(member)):
            env[PART] = part
            self._step(row, ins, env, member, part)

    def _step(self, row: Row, ins: Instruction, env: dict[str, int], member: str, part: int) -> None:
        """Append the step. One that depends on no variable and touches no parameter is the same step every time."""
        step = self._fixed.get((id(ins), self.lanes, part))
        if step is None:
            core = self.cores[member, part]
            lanes = 1 if ins.operands and ins.operands[0] in self.side.uniform else self.lanes
            operands = [self._operand(core, o, env, lanes) for o in ins.operands]
            step = self._function(row, ins, env, lanes), tuple(operands)
            if any(o.param is not None for o in ins.operands):
                self.touching.append(len(self.steps))
            elif not any(o.offset.terms for o in ins.operands) and not _varies(ins):
                self._fixed[id(ins), self.lanes, part] = step
        self.steps.append(step)

    def _function(self, row: Row, ins: Instruction, env: dict[str, int], lanes: int) -> Function:
        scalars = tuple([(k, v.at(env) if isinstance(v, Affine) else v) for k, v in ins.scalars])
        form, source = ins.operands[0].dtype, ins.operands[:2][-1].dtype
        # 0.0 and -0.0, 1 and 1.0 are equal but not the same scalar
        key = ins.name, repr(scalars), lanes > 1, form, source
        function = self._functions.get(key)
        if function is None:
            how = rounding_of(self.machine.chip, row, ins)
            function = executor(row, dict(scalars), self.machine.exact, lanes > 1, how, form)
            self._functions[key] = function
        return function

    def _operand(self, core: OnChip, operand: Operand, env: dict[str, int], lanes: int) -> torch.Tensor | Place:
        """The operand's window in *lanes* cores; one that is uniform stands once, in the first of them."""
        offset, dtype = operand.offset.at(env), torch_dtype(operand.dtype)
        if operand.param is None:
            return core.window(operand, offset, lanes, operand in self.side.uniform)
        if lanes == 1:
            return Place(operand.param, offset, operand.shape, operand.stride, dtype)
        step = step_of(operand.offset, self.side.variable) // dtype.itemsize
        return Place(operand.param, offset, (lanes, *operand.shape), (step, *operand.stride), dtype)


def _varies(ins: Instruction) -> bool:
    return any(isinstance(value, Affine) and value.terms for _, value in ins.scalars)


def executor(
    row: Row, scalars: dict[str, Any], exact: bool, lanes: bool = False, how: Rounding | None = None, form: str = "",
) -> Function:  # fmt: skip
    """The function that carries out one instruction on windows, the written one first: *how* it rounds to *form*."""
    if exact:
        return partial(_exact, row.semantics, scalars, how, form)
    in_place = row.lanes if lanes else row.fast
    if in_place is not None:
        return partial(in_place, **scalars) if scalars else in_place
    return partial(_pure, row.semantics, scalars, how, form)


def _pure(
    semantics: Callable[..., torch.Tensor], scalars: dict[str, Any], how: Rounding | None, form: str,
    dst: torch.Tensor, *src: torch.Tensor,
) -> None:  # fmt: skip
    value = semantics(dst, *src, **scalars)
    dst.copy_(value if how is None else how(value, form))


def _exact(
    semantics: Callable[..., torch.Tensor], scalars: dict[str, Any], how: Rounding | None, form: str,
    dst: torch.Tensor, *src: torch.Tensor,
) -> None:  # fmt: skip
    wide = [x.double() if x.is_floating_point() else x for x in (dst, *src)]
    value = semantics(*wide, **scalars)
    dst.copy_(rounded(value, dst.dtype) if how is None else how(value, form))
