"""Every instruction of a table on operands that its rules accept, each as a program of that one instruction."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from attrs import evolve
from tests.core.isa.test_semantics import Case, cases
from tests.sensitivity.bench import said

from dsf.hdl import Chip
from dsf.isa import Affine, Builder, Instruction, Isa, Nest, Operand, Param, Phase, Program, Row
from dsf.isa.crew import crew_of
from dsf.isa.program import contiguous
from dsf.isa.verify import verify
from dsf.kernels.target import Target
from dsf.machine.ordering import check
from dsf.machine.timing import Timing
from dsf.plugins import registry

__all__ = ["ahead_of", "cycles_of", "order_of", "samples_of"]

SIZES = ((7, 33), (8, 32), (16, 64), (32, 32), (16, 16), (1, 16), (2, 96), (64, 64))
ROOM = 1 << 24  # bytes of each operand's own parameter, where it is in main memory
"""Rows and columns to try: rules ask for whole blocks, for squares, or for odd ends."""


@cache
def samples_of(chip: Chip) -> tuple[Program, ...]:
    """What *chip* accepts of every row, in each format: a small one, one with the longest rows, one whose rows in main
    memory are furthest from each other; and flags with the last event id, and with those that the chip keeps. On-chip
    operands end where memories do."""
    isa = registry().view(chip).isa()
    target = Target(chip, isa, Timing(chip, isa))
    return tuple(program for row in isa.rows.values() for program in _samples(target, row))


def cycles_of(chip: Chip, programs: tuple[Program, ...]) -> Any:
    """The cycles of each program's instruction on *chip*, or which of its rules the program breaks."""
    isa = registry().view(chip).isa()
    timing = Timing(chip, isa)
    return [said(lambda program=program: _cycles(program, isa, timing)) for program in programs]


@cache
def ahead_of(chip: Chip) -> tuple[Program, ...]:
    """For every team, a flag from core to core with the last id, set as often ahead as *chip* counts."""
    isa = registry().view(chip).isa()
    return tuple(_ahead(Builder("ahead", isa, chip), team) for team in chip.teams)


def _ahead(b: Builder, team: str) -> Program:
    first, second, *_ = (kind for kind, _ in crew_of(b.chip, team).members)
    src, dst = (f"{kind}.{b.chip.per_core(kind)[0].name}" for kind in (first, second))
    sync = b.chip.sync
    with b.phase(team), b.nest(i=1):
        for _ in range(sync.cross_core_counter_max):
            b.set_flag(src, dst, sync.cross_core_flag_ids - 1)
        for _ in range(sync.cross_core_counter_max):
            b.wait_flag(src, dst, sync.cross_core_flag_ids - 1)
    return b.build()


def order_of(chip: Chip, programs: tuple[Program, ...]) -> Any:
    """Whether each program is well ordered on *chip*, and which rule it breaks if not."""
    isa = registry().view(chip).isa()
    return [said(lambda program=program: _ordered(program, isa, chip)) for program in programs]


def _ordered(program: Program, isa: Isa, chip: Chip) -> None:
    verify(program, isa, chip)
    check(program, isa, chip)


def _cycles(program: Program, isa: Isa, timing: Timing) -> list[int]:
    verify(program, isa, timing.chip)
    return [timing.cycles(ins) for ins, _ in program.instructions()]


def _samples(target: Target, row: Row) -> Iterator[Program]:
    if row.flag is not None:
        sync = target.chip.sync
        events = (sync.event_ids - 1, *sync.reserved_event_ids)
        yield from (_flagged(target, row, core, event) for core in target.chip.cores for event in events)
        return
    for case in () if row.barrier else cases(row, target.isa):
        elsewhere = range(1, max(len(role.spaces) for _, role in row.operands))
        yield from (p for place in elsewhere if (p := _first(target, case, SIZES, place)) is not None)
        small = _first(target, case, SIZES)
        if small is None:
            continue
        yield small
        longest = _first(target, case, tuple((1, 1 << n) for n in range(17, 8, -1)))
        furthest = (_stretched(small, 1 << n) for n in range(22, 9, -1))
        far = next((p for p in furthest if p is not None and _accepted(target, p)), None)
        yield from (p for p in (longest, far) if p is not None)


def _flagged(target: Target, row: Row, core: str, event: int) -> Program:
    """A flag between two engines of *core*."""
    first, second, *_ = (e.name for e in target.chip.per_core(core))
    return _program(core, Instruction(row.name, (), (("src", first), ("dst", second), ("event", Affine(event)))))


def _first(target: Target, case: Case, sizes: tuple[tuple[int, int], ...], place: int = 0) -> Program | None:
    """The first size that the rules accept, with operands in the memory at *place* of those that they may be in."""
    made = (_made(target, case, *size, place) for size in sizes)
    return next((p for p in made if p is not None and _accepted(target, p)), None)


def _accepted(target: Target, program: Program) -> bool:
    return not isinstance(said(lambda: verify(program, target.isa, target.chip)), str)


def _made(target: Target, case: Case, rows: int, columns: int, place: int) -> Program | None:
    """The case's instruction on operands one below the other from the ends of their memories; None: no room."""
    ends: dict[str, int] = {}
    operands: list[Operand] = []
    for (name, role), shape in zip(case.row.operands, case.shapes(rows, columns), strict=True):
        memory = target.chip.memories[role.spaces[min(place, len(role.spaces) - 1)]]
        taken = case.dtype if not role.dtypes or case.dtype in role.dtypes else role.dtypes[0]
        dtype = role.dtypes[0] if name == "index" else taken
        operand = Operand(
            memory.name, shape, contiguous(shape), dtype, Affine(), len(operands) if memory.main else None
        )
        if not memory.main:
            steps = (ends.get(memory.name, memory.nbytes) - operand.nbytes) // memory.alignment
            steps -= 1 - steps % 2  # an odd multiple of the alignment is none of twice as much
            if steps < 0:
                return None
            ends[memory.name] = steps * memory.alignment
            operand = evolve(operand, offset=Affine(steps * memory.alignment))
        operands.append(operand)
    instruction = Instruction(case.row.name, tuple(operands), tuple(case.scalars.items()))
    return _program(target.core_of(case.row), instruction)


def _program(core: str, instruction: Instruction) -> Program:
    params = tuple(Param(f"p{n}", "inout", ROOM) for n in range(max(1, len(instruction.operands))))
    return Program("sample", params, (Phase(core, (Nest((("i", 1),), (instruction,)),)),))


def _stretched(program: Program, pitch: int) -> Program | None:
    """The same with rows of *pitch* elements in main memory; None where nothing has rows there."""
    ((instruction, _),) = program.instructions()
    operands = tuple(
        evolve(o, stride=(*o.stride[:-2], pitch, 1)) if o.param is not None and len(o.shape) == 2 else o
        for o in instruction.operands
    )
    return (
        None
        if operands == instruction.operands
        else _program(program.phases[0].core, evolve(instruction, operands=operands))
    )
