"""The oracle: a slow interpreter that unrolls everything and does both planes at once, one instruction at a time.

It shares the instruction table with the two fast planes and nothing else: no binding, no memoisation, no loop jump, no
in-place forms. On small shapes the fast planes must agree with it: bits equal, cycles equal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import torch
from attrs import define, field

from dsf import errors
from dsf.hdl import Chip
from dsf.isa.program import Affine, Instruction, Loop, Nest, Operand, Phase, Program, torch_dtype
from dsf.isa.table import SET_FLAG, Isa
from dsf.numerics.rounding import rounded

__all__ = ["Oracle"]


@define(eq=False)
class Oracle:
    """Interprets programs of one chip over *memory*, a flat uint8 tensor."""

    chip: Chip
    isa: Isa
    memory: torch.Tensor
    exact: bool = False

    def run(self, program: Program, addresses: Sequence[int]) -> tuple[int, ...]:
        """Execute *program*; returns the cycles of the slowest core for each phase."""
        return tuple(self._phase(program, phase, addresses) for phase in program.phases)

    def _phase(self, program: Program, phase: Phase, addresses: Sequence[int]) -> int:
        cores = self.chip.cores[phase.core].count
        queues: list[list[tuple[Nest, dict[str, int]]]] = [[] for _ in range(cores)]
        blocks = [(nest, env) for nest in phase.nests for env in nest.coordinates()]
        for index, block in enumerate(blocks):
            queues[index % cores].append(block)
        return max(_Core(self, addresses).run(phase.core, queue) for queue in queues)


@define(eq=False)
class _Core:
    oracle: Oracle
    addresses: Sequence[int]
    clocks: dict[str, int] = field(factory=dict)
    flags: dict[tuple[str, str, int], deque[int]] = field(factory=dict)
    stores: dict[tuple[str, torch.dtype], torch.Tensor] = field(factory=dict)

    def run(self, core: str, blocks: list[tuple[Nest, dict[str, int]]]) -> int:
        for nest, env in blocks:
            for ins, at in _unrolled(nest.body, env):
                self._step(ins, at)
        if any(self.flags.values()):
            src, dst, event = next(key for key, times in self.flags.items() if times)
            raise errors.MachineError(
                "DSF-X020", f"phase {core}: flag {event} of {src} for {dst} is still set at the end; wait for it"
            )
        return max(self.clocks.values(), default=0)

    def _step(self, ins: Instruction, env: dict[str, int]) -> None:
        scalars = {k: v.at(env) if isinstance(v, Affine) else v for k, v in ins.scalars}
        row = self.oracle.isa[ins.name]
        if row.flag is not None:
            self._flag(ins, row.flag == SET_FLAG, str(scalars["src"]), str(scalars["dst"]), int(scalars["event"]))
            return
        self.clocks[row.engine] = self.clocks.get(row.engine, 0) + row.cycles(self.oracle.chip, row, ins)
        operands = [self._window(o, env) for o in ins.operands]
        values = [x.double() if self.oracle.exact and x.is_floating_point() else x for x in operands]
        operands[0].copy_(rounded(row.semantics(*values, **scalars), operands[0].dtype))

    def _flag(self, ins: Instruction, sets: bool, src: str, dst: str, event: int) -> None:
        queue = self.flags.setdefault((src, dst, event), deque())
        if sets:
            queue.append(self.clocks.get(src, 0))
        elif queue:
            self.clocks[dst] = max(self.clocks.get(dst, 0), queue.popleft())
        else:
            raise errors.MachineError(
                "DSF-X021", f"{ins}: {dst} waits for flag {event} of {src}, which nobody has set: this would hang"
            )

    def _window(self, operand: Operand, env: dict[str, int]) -> torch.Tensor:
        dtype, offset = torch_dtype(operand.dtype), operand.offset.at(env)
        if operand.param is not None:
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


def _unrolled(
    body: tuple[Instruction | Loop, ...], env: dict[str, int]
) -> Iterator[tuple[Instruction, dict[str, int]]]:
    for item in body:
        if isinstance(item, Loop):
            for i in range(item.count):
                yield from _unrolled(item.body, {**env, item.variable: i})
        else:
            yield item, env
