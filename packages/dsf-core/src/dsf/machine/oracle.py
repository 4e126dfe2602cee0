"""The oracle: a slow interpreter that unrolls everything and does both planes at once, one instruction at a time.

It shares the instruction table with the two fast planes and nothing else: no binding, no memoisation, no loop jump, no
lanes, no in-place forms. On small shapes the fast planes must agree with it: bits equal, cycles equal. Without a memory
it keeps the clocks alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from attrs import define, field

from dsf import errors
from dsf.hdl import Chip
from dsf.isa.crew import CORE, PART, Crew, crew_of
from dsf.isa.program import Affine, Instruction, Loop, Nest, Operand, Phase, Program, torch_dtype
from dsf.isa.table import SET_FLAG, Isa
from dsf.machine.settle import computes_as_the_host, rounding_of
from dsf.numerics.rounding import rounded

__all__ = ["Oracle"]

WORK, SET, WAIT, JOIN = range(4)
Body = tuple[Instruction | Loop, ...]
Env = dict[str, int]


@define(eq=False)
class Oracle:
    """Interprets programs of one chip over *memory*, a flat uint8 tensor, or without numbers where that is None.
    *issued* counts the instructions carried out."""

    chip: Chip
    isa: Isa
    memory: torch.Tensor | None
    exact: bool = False
    issued: int = 0

    def run(self, program: Program, addresses: Sequence[int] = ()) -> tuple[int, ...]:
        """Execute *program*; returns the cycles of the slowest core for each phase."""
        return tuple(self._phase(phase, addresses) for phase in program.phases)

    def _phase(self, phase: Phase, addresses: Sequence[int]) -> int:
        """Blocks in order, each to the core that is free first, counting what a block takes on an idle core."""
        crew = crew_of(self.chip, phase.core)
        free, queues = [0] * crew.count, [list[tuple[Nest, Env]]() for _ in range(crew.count)]
        for nest in phase.nests:
            alone = _Core(Oracle(self.chip, self.isa, None), (), crew).run([(nest, next(nest.coordinates()))])
            for env in nest.coordinates():
                core = free.index(min(free))
                free[core] += alone
                queues[core].append((nest, env))
        return max(_Core(self, addresses, crew, core).run(queue) for core, queue in enumerate(queues))


@define(eq=False)
class _Core:
    """One core, or one team."""

    oracle: Oracle
    addresses: Sequence[int]
    crew: Crew
    number: int = 0
    clocks: dict[str, int] = field(factory=dict)
    flags: dict[tuple[str, str, int], deque[int]] = field(factory=dict)
    stores: dict[tuple[str, torch.dtype, int], torch.Tensor] = field(factory=dict)
    _known: dict[int, tuple[int, str, str, Any]] = field(factory=dict)

    def run(self, blocks: list[tuple[Nest, Env]]) -> int:
        for nest, env in blocks:
            self._body(nest.body, {**env, CORE: self.number})
        if any(self.flags.values()):
            src, dst, event = next(key for key, times in self.flags.items() if times)
            where = f"phase {self.crew.name}: flag {event} of {src} for {dst}"
            raise errors.MachineError("DSF-X020", f"{where} is still set at the end; wait for it")
        return max(self.clocks.values(), default=0)

    def _body(self, body: Body, env: Env) -> None:
        known, clocks, flags, valued = self._known, self.clocks, self.flags, self.oracle.memory is not None
        for item in body:
            if isinstance(item, Loop):
                for i in range(item.count):
                    env[item.variable] = i
                    self._body(item.body, env)
                continue
            kind, engine, other, value = known.get(id(item)) or self._learn(item)
            if kind == WORK:
                clocks[engine] = clocks.get(engine, 0) + value
                if valued:
                    self._compute(item, env)
            elif kind == JOIN:
                clocks.update(dict.fromkeys(self.oracle.isa.engines, max(clocks.values(), default=0)))
            else:
                number = value.at(env) if isinstance(value, Affine) else value
                queue = flags.get((engine, other, number))
                if queue is None:
                    queue = flags[engine, other, number] = deque()
                if kind == SET:
                    queue.append(clocks.get(engine, 0) + self._late(engine, other))
                elif not queue:
                    raise _hang(item, engine, other, number)
                else:
                    clocks[other] = max(clocks.get(other, 0), queue.popleft())
        self.oracle.issued += len(body)

    def _late(self, src: str, dst: str) -> int:
        """Cycles until a flag is seen: at once by the own core, later by another one of the team."""
        apart = self.crew.split(src)[0] != self.crew.split(dst)[0]
        return self.oracle.chip.sync.cross_core_cycles if apart else 0

    def _learn(self, ins: Instruction) -> tuple[int, str, str, Any]:
        """An instruction in short: what it does, to which engines, with how many cycles or for which event."""
        row, scalars = self.oracle.isa[ins.name], dict(ins.scalars)
        if row.barrier:
            found: tuple[int, str, str, Any] = (JOIN, "", "", 0)
        elif row.flag is not None:
            kind = SET if row.flag == SET_FLAG else WAIT
            found = kind, str(scalars["src"]), str(scalars["dst"]), scalars["event"]
        else:
            found = WORK, self.crew.engine(row, ins), "", row.cycles(self.oracle.chip, row, ins)
        self._known[id(ins)] = found
        return found

    def _compute(self, ins: Instruction, env: Env) -> None:
        """Once for each core of the team that carries *ins* out."""
        for part in range(self.crew.number(self.crew.member(ins))):
            self._compute_on(ins, {**env, PART: part})

    def _compute_on(self, ins: Instruction, env: Env) -> None:
        row = self.oracle.isa[ins.name]
        scalars = {k: v.at(env) if isinstance(v, Affine) else v for k, v in ins.scalars}
        operands = [self._window(o, env) for o in ins.operands]
        exact = self.oracle.exact or not computes_as_the_host(self.oracle.chip)
        if row.macs is not None and row.fast is not None and not exact:
            row.fast(*operands, **scalars)  # the same call: the order of a product's sum is the host library's own
            return
        values = [x.double() if exact and x.is_floating_point() else x for x in operands]
        value, how = row.semantics(*values, **scalars), rounding_of(self.oracle.chip, row, ins)
        dst = operands[0]
        dst.copy_(rounded(value, dst.dtype) if how is None else how(value, ins.operands[0].dtype))

    def _window(self, operand: Operand, env: Env) -> torch.Tensor:
        dtype, offset = torch_dtype(operand.dtype), operand.offset.at(env)
        if operand.param is not None:
            assert self.oracle.memory is not None
            base, offset = self.oracle.memory.view(dtype), offset + self.addresses[operand.param]
        else:
            base = self._store(operand.space, dtype, env[PART])
        return torch.as_strided(base, operand.shape, operand.stride, offset // dtype.itemsize)

    def _store(self, space: str, dtype: torch.dtype, part: int) -> torch.Tensor:
        wide = space in self.oracle.isa.wide and dtype in (torch.float16, torch.bfloat16)
        key = (space, dtype, part) if wide else (space, torch.uint8, part)
        if key not in self.stores:
            nbytes = self.oracle.chip.memories[space].nbytes
            self.stores[key] = torch.zeros(
                nbytes // dtype.itemsize if wide else nbytes, dtype=torch.float32 if wide else torch.uint8
            )
        return self.stores[key] if wide else self.stores[key].view(dtype)


def _hang(ins: Instruction, src: str, dst: str, event: int) -> errors.MachineError:
    return errors.MachineError(
        "DSF-X021", f"{ins}: {dst} waits for flag {event} of {src}, which nobody has set: this would hang"
    )
