"""The oracle: a slow interpreter that unrolls everything and does both planes at once, one instruction at a time.

It shares the instruction table with the two fast planes and nothing else: no binding, no memoisation, no loop jump, no
lanes, no in-place forms. On small shapes the fast planes must agree with it: bits equal, cycles equal. Without a memory
it keeps the clocks alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from attrs import define, field

from dsf import errors
from dsf.hdl import Chip
from dsf.isa.program import Affine, Instruction, Loop, Nest, Operand, Phase, Program, torch_dtype
from dsf.isa.table import SET_FLAG, Isa, Row
from dsf.machine.settle import computes_as_the_host, rounding_of
from dsf.numerics.rounding import rounded

__all__ = ["Oracle"]

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
        cores = self.chip.cores[phase.core].count
        free, queues = [0] * cores, [list[tuple[Nest, Env]]() for _ in range(cores)]
        for nest in phase.nests:
            alone = _Core(Oracle(self.chip, self.isa, None), ()).run(phase.core, [(nest, next(nest.coordinates()))])
            for env in nest.coordinates():
                core = free.index(min(free))
                free[core] += alone
                queues[core].append((nest, env))
        return max(_Core(self, addresses).run(phase.core, queue) for queue in queues)


@define(eq=False)
class _Core:
    oracle: Oracle
    addresses: Sequence[int]
    clocks: dict[str, int] = field(factory=dict)
    flags: dict[tuple[str, str, int], deque[int]] = field(factory=dict)
    stores: dict[tuple[str, torch.dtype], torch.Tensor] = field(factory=dict)
    _costs: dict[int, tuple[str, int]] = field(factory=dict)

    def run(self, core: str, blocks: list[tuple[Nest, Env]]) -> int:
        for nest, env in blocks:
            self._body(nest.body, dict(env))
        if any(self.flags.values()):
            src, dst, event = next(key for key, times in self.flags.items() if times)
            raise errors.MachineError(
                "DSF-X020", f"phase {core}: flag {event} of {src} for {dst} is still set at the end; wait for it"
            )
        return max(self.clocks.values(), default=0)

    def _body(self, body: Body, env: Env) -> None:
        rows, clocks, costs, valued = self.oracle.isa.rows, self.clocks, self._costs, self.oracle.memory is not None
        for item in body:
            if isinstance(item, Loop):
                for i in range(item.count):
                    env[item.variable] = i
                    self._body(item.body, env)
                continue
            engine, cycles = costs.get(id(item)) or self._cost(item)
            if engine:
                clocks[engine] = clocks.get(engine, 0) + cycles
                if valued:
                    self._compute(item, rows[item.name], env)
            elif rows[item.name].barrier:
                clocks.update(dict.fromkeys(self.oracle.isa.engines, max(clocks.values(), default=0)))
            else:
                self._flag(item, rows[item.name].flag == SET_FLAG, env)
        self.oracle.issued += len(body)

    def _cost(self, ins: Instruction) -> tuple[str, int]:
        """The engine and the cycles of an instruction; one that synchronises has none."""
        row = self.oracle.isa[ins.name]
        cost = ("", 0) if row.synchronises else (row.engine, row.cycles(self.oracle.chip, row, ins))
        self._costs[id(ins)] = cost
        return cost

    def _compute(self, ins: Instruction, row: Row, env: Env) -> None:
        scalars = {k: v.at(env) if isinstance(v, Affine) else v for k, v in ins.scalars}
        operands = [self._window(o, env) for o in ins.operands]
        exact = self.oracle.exact or not computes_as_the_host(self.oracle.chip)
        values = [x.double() if exact and x.is_floating_point() else x for x in operands]
        value, how = row.semantics(*values, **scalars), rounding_of(self.oracle.chip, row, ins)
        dst = operands[0]
        dst.copy_(rounded(value, dst.dtype) if how is None else how(value, ins.operands[0].dtype))

    def _flag(self, ins: Instruction, sets: bool, env: Env) -> None:
        (_, src), (_, dst), (_, event) = ins.scalars
        number = event.at(env) if type(event) is Affine else event
        queue = self.flags.get((src, dst, number))  # type: ignore[arg-type]  # engines are texts, events numbers
        if queue is None:
            queue = self.flags[src, dst, number] = deque()  # type: ignore[index]
        if sets:
            queue.append(self.clocks.get(src, 0))  # type: ignore[arg-type]
        elif queue:
            self.clocks[dst] = max(self.clocks.get(dst, 0), queue.popleft())  # type: ignore[index,arg-type]
        else:
            raise errors.MachineError(
                "DSF-X021", f"{ins}: {dst} waits for flag {number} of {src}, which nobody has set: this would hang"
            )

    def _window(self, operand: Operand, env: Env) -> torch.Tensor:
        dtype, offset = torch_dtype(operand.dtype), operand.offset.at(env)
        if operand.param is not None:
            assert self.oracle.memory is not None
            base, offset = self.oracle.memory.view(dtype), offset + self.addresses[operand.param]
        else:
            base = self._store(operand.space, dtype)
        return torch.as_strided(base, operand.shape, operand.stride, offset // dtype.itemsize)

    def _store(self, space: str, dtype: torch.dtype) -> torch.Tensor:
        wide = space in self.oracle.isa.wide and dtype in (torch.float16, torch.bfloat16)
        key = (space, dtype) if wide else (space, torch.uint8)
        if key not in self.stores:
            nbytes = self.oracle.chip.memories[space].nbytes
            self.stores[key] = torch.zeros(
                nbytes // dtype.itemsize if wide else nbytes, dtype=torch.float32 if wide else torch.uint8
            )
        return self.stores[key] if wide else self.stores[key].view(dtype)
