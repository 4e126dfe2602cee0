"""Rules that hold for every program of a chip, checked once when it is built: nothing here runs it.

Each operand stands in a memory that its instruction may name and that its core has, in a dtype that the instruction
takes, aligned, inside the memory (or inside its parameter), over the whole extent of the loops around it.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsf import errors
from dsf.hdl import Chip
from dsf.isa.program import Affine, Instruction, Loop, Operand, Program
from dsf.isa.table import Isa, Role, Row

__all__ = ["verify"]

Counts = dict[str, int]


def verify(program: Program, isa: Isa, chip: Chip) -> None:
    """Raise a MachineError or IsaError with the listing's line for the first rule that *program* breaks."""
    for line, core, counts, ins in _walk(program):
        problem = _problem(program, isa, chip, core, counts, ins)
        if problem:
            code, text = problem
            kind = errors.IsaError if code.startswith("DSF-I") else errors.MachineError
            raise kind(code, f"{program.name}, line {line}: {ins}: {text}")


def _walk(program: Program) -> Iterator[tuple[int, str, Counts, Instruction]]:
    """Every instruction with its line in the listing, its core and the counts of the loops around it."""
    line = 1
    for phase in program.phases:
        line += 1
        for nest in phase.nests:
            line += 1
            for line, counts, ins in _walk_body(nest.body, dict(nest.variables), line):
                if ins is not None:
                    yield line, phase.core, counts, ins


def _walk_body(
    body: tuple[Instruction | Loop, ...], counts: Counts, line: int
) -> Iterator[tuple[int, Counts, Instruction | None]]:
    for item in body:
        line += 1
        if isinstance(item, Loop):
            yield line, counts, None
            for line, inner, ins in _walk_body(item.body, {**counts, item.variable: item.count}, line):
                yield line, inner, ins
        else:
            yield line, counts, item


def _problem(
    program: Program, isa: Isa, chip: Chip, core: str, counts: Counts, ins: Instruction
) -> tuple[str, str] | None:
    row = isa[ins.name]
    if row.flag is not None:
        return _flag_problem(chip, core, counts, ins)
    if core not in chip.engines[row.engine].core:
        return "DSF-X001", f"engine {row.engine} is not on core {core}"
    if len(ins.operands) != len(row.operands):
        return "DSF-I004", f"{len(ins.operands)} operands, expected {len(row.operands)}"
    for operand, (name, role) in zip(ins.operands, row.operands, strict=True):
        problem = (
            _role_problem(name, role, operand)
            or _place_problem(program, chip, core, name, operand)
            or _extent_problem(program, chip, counts, name, operand)
        )
        if problem:
            return problem
    return _rule_problem(chip, row, ins)


def _flag_problem(chip: Chip, core: str, counts: Counts, ins: Instruction) -> tuple[str, str] | None:
    scalars = dict(ins.scalars)
    for side in ("src", "dst"):
        engine = chip.engines.get(str(scalars[side]))
        if engine is None or core not in engine.core:
            return "DSF-X001", f"{side}={scalars[side]} is no engine of core {core}"
    event = scalars["event"]
    low, high = event.extremes(counts) if isinstance(event, Affine) else (int(event), int(event))
    if low < 0 or high >= chip.sync.event_ids:
        return (
            "DSF-X002",
            f"event ids {low}..{high}; this chip has 0..{chip.sync.event_ids - 1} for each pair of engines",
        )
    return None


def _role_problem(name: str, role: Role, operand: Operand) -> tuple[str, str] | None:
    if operand.space not in role.spaces:
        return "DSF-I005", f"operand '{name}' must be in {' or '.join(role.spaces)}, got {operand}"
    if role.dtypes and operand.dtype not in role.dtypes:
        return "DSF-I006", f"operand '{name}' must be {' or '.join(role.dtypes)}, got {operand}"
    return None


def _place_problem(program: Program, chip: Chip, core: str, name: str, operand: Operand) -> tuple[str, str] | None:
    memory = chip.memories[operand.space]
    if operand.param is None and memory.scope == "chip":
        return "DSF-I007", f"operand '{name}' is in {memory.name} but names no parameter"
    if memory.core is not None and core not in memory.core:
        return "DSF-X003", f"operand '{name}': core {core} has no {memory.name}"
    if any(n < 0 for n in operand.shape) or any(s < 0 for s in operand.stride):
        return "DSF-I008", f"operand '{name}' has a negative size or stride"
    return None


def _extent_problem(
    program: Program, chip: Chip, counts: Counts, name: str, operand: Operand
) -> tuple[str, str] | None:
    memory = chip.memories[operand.space]
    low, high = operand.offset.extremes(counts)
    param = program.params[operand.param] if operand.param is not None else None
    size, what = (param.nbytes, f"parameter {param.name}") if param else (memory.nbytes, memory.name)
    if low < 0 or high + operand.reach > size:
        return "DSF-X004", f"operand '{name}' spans bytes {low} to {high + operand.reach}, {what} has {size}"
    if param is None:
        steps = [operand.offset.const, *(t.step for t in operand.offset.terms)]
        if any(step % memory.alignment for step in steps):
            return "DSF-X005", f"operand '{name}' starts off a multiple of {memory.alignment} bytes in {memory.name}"
    return None


def _rule_problem(chip: Chip, row: Row, ins: Instruction) -> tuple[str, str] | None:
    for rule in row.rules:
        text = rule(chip, ins)
        if text:
            return "DSF-X006", text
    return None
