"""The functional plane: numbers without time. A program is unrolled once, bound once per set of addresses, then run as
a flat list.

Unrolling resolves every on-chip operand to a torch window over the core's memory; binding fills in the windows over
main memory; running is a loop over (function, arguments). On-chip memories exist once, at true capacity: blocks are
independent, so one core's memories serve them all in turn. `fast` computes 16-bit operands in float32 slabs; `exact`
computes every instruction in float64 and rounds once to the written operand's dtype, which is the definition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from attrs import define, field, frozen

from dsf.hdl import Chip
from dsf.isa.program import Affine, Instruction, Loop, Operand, Program, torch_dtype
from dsf.isa.table import Isa, Row
from dsf.machine.arena import Arena

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
    """One core's memories. A *wide* memory holds its 16-bit numbers in float32 containers, one per number."""

    chip: Chip
    isa: Isa
    _bases: dict[tuple[str, torch.dtype], torch.Tensor] = field(factory=dict)
    _bytes: dict[str, torch.Tensor] = field(factory=dict)
    _windows: dict[tuple[Operand, int], torch.Tensor] = field(factory=dict)

    def window(self, operand: Operand, offset: int) -> torch.Tensor:
        """The operand's elements at byte *offset*, as a tensor over this core's memory."""
        key = operand, offset
        found = self._windows.get(key)
        if found is None:
            dtype = torch_dtype(operand.dtype)
            base = self._base(operand.space, dtype)
            found = torch.as_strided(base, operand.shape, operand.stride, offset // dtype.itemsize)
            if len(self._windows) > MOST_WINDOWS:
                self._windows.clear()
            self._windows[key] = found
        return found

    def _base(self, space: str, dtype: torch.dtype) -> torch.Tensor:
        base = self._bases.get((space, dtype))
        if base is None:
            nbytes = self.chip.memories[space].nbytes
            if space in self.isa.wide and dtype in (torch.float16, torch.bfloat16):
                base = torch.zeros(nbytes // dtype.itemsize, dtype=torch.float32)
            else:
                raw = self._bytes.setdefault(space, torch.zeros(nbytes, dtype=torch.uint8))
                base = raw.view(dtype)
            self._bases[space, dtype] = base
        return base


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
                for env in nest.coordinates():
                    unroller.body(nest.body, env)
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
    _functions: dict[tuple[str, tuple[tuple[str, Any], ...]], Function] = field(factory=dict)
    _fixed: dict[int, Step] = field(factory=dict)

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
        step = self._fixed.get(id(ins))
        if step is None:
            row = self.machine.isa.rows[ins.name]
            if row.flag is not None:
                return  # order is the oracle's and the timing plane's business: this plane runs in program order
            step = self._function(row, ins, env), tuple([self._operand(o, env) for o in ins.operands])
            if any(o.param is not None for o in ins.operands):
                self.touching.append(len(self.steps))
            elif not any(o.offset.terms for o in ins.operands) and not _varies(ins):
                self._fixed[id(ins)] = step
        self.steps.append(step)

    def _function(self, row: Row, ins: Instruction, env: dict[str, int]) -> Function:
        scalars = tuple([(k, v.at(env) if isinstance(v, Affine) else v) for k, v in ins.scalars])
        key = ins.name, scalars
        function = self._functions.get(key)
        if function is None:
            function = self._functions[key] = executor(row, dict(scalars), self.machine.exact)
        return function

    def _operand(self, operand: Operand, env: dict[str, int]) -> torch.Tensor | Place:
        offset = operand.offset.at(env)
        if operand.param is None:
            return self.core.window(operand, offset)
        return Place(operand.param, offset, operand.shape, operand.stride, torch_dtype(operand.dtype))


def _varies(ins: Instruction) -> bool:
    return any(isinstance(value, Affine) and value.terms for _, value in ins.scalars)


def executor(row: Row, scalars: dict[str, Any], exact: bool) -> Function:
    """The function that carries out one instruction on windows, the written one first."""
    if exact:
        return partial(_exact, row.semantics, scalars)
    if row.fast is not None:
        return partial(row.fast, **scalars) if scalars else row.fast
    return partial(_pure, row.semantics, scalars)


def _pure(
    semantics: Callable[..., torch.Tensor], scalars: dict[str, Any], dst: torch.Tensor, *src: torch.Tensor
) -> None:
    dst.copy_(semantics(dst, *src, **scalars))


def _exact(
    semantics: Callable[..., torch.Tensor], scalars: dict[str, Any], dst: torch.Tensor, *src: torch.Tensor
) -> None:
    wide = [x.double() if x.is_floating_point() else x for x in (dst, *src)]
    dst.copy_(semantics(*wide, **scalars))
