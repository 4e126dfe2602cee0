"""The invented chip's machine: a builder, and the two fast planes beside the oracle that is slow and simple."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from attrs import define

from dsf import hdl
from dsf.generic.isa import isa as table_of
from dsf.hdl import Chip
from dsf.isa import Builder, Isa, Program
from dsf.machine.arena import Arena
from dsf.machine.functional import Functional
from dsf.machine.oracle import Oracle
from dsf.machine.timing import KernelTime, Timing

ALIGNED = 512
MARGIN = 4096  # bytes before, between and behind the parameters: nothing may change there


@define(eq=False)
class Planes:
    """Runs a program on the planes of one chip; parameters hold random float32 numbers from 1 to 2."""

    chip: Chip
    isa: Isa

    def builder(self, name: str = "test") -> Builder:
        return Builder(name, self.isa, self.chip)

    def time(self, program: Program) -> KernelTime:
        return Timing(self.chip, self.isa)(program)

    def cycles(self, program: Program) -> list[int]:
        return [phase.cycles for phase in self.time(program).phases]

    def oracle_cycles(self, program: Program) -> list[int]:
        addresses, size = self._layout(program)
        return list(Oracle(self.chip, self.isa, torch.zeros(size, dtype=torch.uint8)).run(program, addresses))

    def run(self, program: Program, exact: bool = False) -> torch.Tensor:
        """Main memory after both planes ran *program* and agreed with the oracle: bytes, cycles, busy cycles."""
        addresses, size = self._layout(program)
        arena = Arena(size)
        arena.bytes.view(torch.float32).copy_(torch.rand(size // 4) + 1)
        memory = arena.bytes.clone()
        machine = Functional(self.chip, self.isa, arena, exact)
        machine.bind(machine.unroll(program), addresses).run()
        cycles = Oracle(self.chip, self.isa, memory, exact).run(program, addresses)
        assert torch.equal(arena.bytes, memory)
        self.agree(program, list(cycles))
        return memory

    def agree(self, program: Program, cycles: list[int]) -> None:
        """The timing plane has these cycles, and every engine is busy as long as its instructions take."""
        time = self.time(program)
        assert [phase.cycles for phase in time.phases] == cycles
        for phase, timed in zip(program.phases, time.phases, strict=True):
            busy: Counter[str] = Counter()
            for ins, times in Program("", (), (phase,)).instructions():
                row = self.isa[ins.name]
                if row.flag is None:
                    busy[row.engine] += row.cycles(self.chip, row, ins) * times
            assert dict(timed.busy) == dict(busy)

    @staticmethod
    def address(program: Program, param: int) -> int:
        return Planes._layout(program)[0][param]

    @staticmethod
    def _layout(program: Program) -> tuple[list[int], int]:
        addresses, end = [], MARGIN
        for param in program.params:
            addresses.append(end)
            end += -(-param.nbytes // ALIGNED) * ALIGNED + MARGIN
        return addresses, end


@pytest.fixture(scope="session")
def chip() -> Chip:
    return hdl.load("acme-x1")


@pytest.fixture(scope="session")
def isa(chip: Chip) -> Isa:
    return table_of(chip)


@pytest.fixture(scope="session")
def planes(chip: Chip, isa: Isa) -> Planes:
    return Planes(chip, isa)


@pytest.fixture
def planes_of(described: Callable[..., object]) -> Callable[..., Planes]:
    """The planes of the invented chip with changes at JSON pointers."""

    def planes_of(changes: dict[str, object]) -> Planes:
        changed = hdl.load(described(changes))
        return Planes(changed, table_of(changed))

    return planes_of


@pytest.fixture
def b(planes: Planes) -> Builder:
    return planes.builder()
