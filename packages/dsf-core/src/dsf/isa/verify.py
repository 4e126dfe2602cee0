"""Rules that hold for every program of a chip, checked once when it is built: nothing here runs it.

Each operand stands in a memory that its instruction may name and that its core has, in a dtype that the instruction
takes, aligned, inside the memory (or inside its parameter), over the whole extent of the loops around it; what is
written names no place twice. Each instruction has the scalars that its row asks for, and no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from inspect import Signature, signature
from itertools import count

from attrs import frozen

from dsf import errors
from dsf.hdl import Chip
from dsf.isa.crew import CORE, PART, Crew, crew_of
from dsf.isa.program import Affine, Instruction, Loop, Nest, Operand, Param, Phase, Program, known_dtype
from dsf.isa.rules import repeats
from dsf.isa.table import Isa, Role, Row

__all__ = ["verify"]

Counts = dict[str, int]

MOST_DIMENSIONS = 16  # of a window; kernels have four. Beyond, copies of it cannot be compared in sensible time
MOST_COUNTERS = 16  # variables of a nest, and loops inside each other; kernels have five
PARAM_ROLES = ("in", "out", "inout", "workspace")


def verify(program: Program, isa: Isa, chip: Chip) -> None:
    """Raise a MachineError or IsaError with the listing's line for the first rule that *program* breaks."""
    for param in program.params:
        if said := _param_problem(param):
            raise errors.IsaError("DSF-I012", f"{program.name}, line 1: parameter {param.name}: {said}")
    for line, core, scope, item in _walk(program):
        if isinstance(item, Instruction):
            problem = _problem(program, isa, chip, core, scope, item)
        else:
            problem = _count_problem(chip, core, scope, item)
        if problem:
            code, text = problem
            kind = errors.IsaError if code.startswith("DSF-I") else errors.MachineError
            raise kind(code, f"{program.name}, line {line}: {item}: {text}")


def _param_problem(param: Param) -> str | None:
    if param.role not in PARAM_ROLES:
        return f"its role is {param.role!r}; expected one of {', '.join(PARAM_ROLES)}"
    if type(param.nbytes) is not int or param.nbytes < 0:
        return f"has {param.nbytes!r} bytes; expected a whole number that is not negative"
    return None


@frozen
class Scope:
    """The counts of the variables around an instruction: of its block, and of the loops inside the block as well."""

    block: Counts
    all: Counts


def _walk(program: Program) -> Iterator[tuple[int, str, Scope, Instruction | Loop | Nest | Phase]]:
    """Every instruction, loop, nest and phase with its line in the listing, its core and the loops around it."""
    lines = count(1)
    next(lines)
    for phase in program.phases:
        yield next(lines), phase.core, Scope({}, {}), phase
        for nest in phase.nests:
            block = dict(nest.variables)
            yield next(lines), phase.core, Scope(block, block), nest
            for line, scope, item in _walk_body(nest.body, Scope(block, block), lines):
                yield line, phase.core, scope, item


def _walk_body(
    body: tuple[Instruction | Loop, ...], scope: Scope, lines: Iterator[int]
) -> Iterator[tuple[int, Scope, Instruction | Loop]]:
    for item in body:
        yield next(lines), scope, item
        if isinstance(item, Loop):
            yield from _walk_body(item.body, Scope(scope.block, {**scope.all, item.variable: item.count}), lines)


def _count_problem(chip: Chip, core: str, scope: Scope, item: Loop | Nest | Phase) -> tuple[str, str] | None:
    if isinstance(item, Phase):
        known = ", ".join((*chip.cores, *chip.teams))
        there = core in chip.cores or core in chip.teams
        return None if there else ("DSF-X001", f"{chip.name} has no core {core}; its cores are {known}")
    if isinstance(item, Nest):
        if any(n < 1 for _, n in item.variables):
            return "DSF-I009", "a nest has at least one block; leave it out instead"
        if len(item.variables) > MOST_COUNTERS:
            return "DSF-I009", f"{len(item.variables)} variables count blocks; expected at most {MOST_COUNTERS}"
        return _twice([name for name, _ in item.variables])
    if item.count < 1:
        return "DSF-I009", "a loop runs at least once; leave it out instead"
    if len(scope.all) - len(scope.block) == MOST_COUNTERS:
        return "DSF-I009", f"a loop inside {MOST_COUNTERS} others; expected at most {MOST_COUNTERS} inside each other"
    return _twice([*scope.all, item.variable])


def _twice(variables: list[str]) -> tuple[str, str] | None:
    again = next((name for n, name in enumerate(variables) if name in (*variables[:n], CORE, PART)), None)
    return ("DSF-I010", f"'{again}' counts already; take another name") if again is not None else None


def _problem(
    program: Program, isa: Isa, chip: Chip, core: str, scope: Scope, ins: Instruction
) -> tuple[str, str] | None:
    row = isa.rows.get(ins.name)
    if row is None:
        return "DSF-I002", isa.unknown(ins.name)
    crew = crew_of(chip, core)
    scope = _around(crew, scope, ins)
    if stray := _stray_variable(scope.all, ins):
        return "DSF-I010", f"'{stray}' is counted by no loop around it"
    if any(t.modulus < 0 for value in _affines(ins) for t in value.terms):
        return "DSF-I010", "a modulus is above zero"
    if row.flag is not None:
        return _flag_problem(chip, crew, scope, ins)
    if crew.is_team and row.barrier:
        return "DSF-X001", f"{row.name} joins the engines of one core; in a team's phase flags order them"
    member = crew.member(ins)
    if member not in chip.engines[row.engine].core:
        return "DSF-X001", f"engine {row.engine} is not on core {member}"
    if len(ins.operands) != len(row.operands):
        return "DSF-I004", f"{len(ins.operands)} operands, expected {len(row.operands)}"
    for operand, (name, role) in zip(ins.operands, row.operands, strict=True):
        problem = (
            _role_problem(name, role, operand)
            or _place_problem(program, chip, member, name, operand)
            or _extent_problem(program, chip, scope.all, name, operand)
            or _block_problem(chip, scope, name, operand)
            or _own_problem(program, name, operand)
            or (_written_problem(program, name, operand) if role.mode != "read" else None)
        )
        if problem:
            return problem
    return _scalar_problem(row, ins) or _rule_problem(chip, row, ins)


def _around(crew: Crew, scope: Scope, ins: Instruction) -> Scope:
    """*scope* with the two variables that no listing counts, for an instruction that names one of them."""
    if not any(t.variable in (CORE, PART) for value in _affines(ins) for t in value.terms):
        return scope
    own = {CORE: crew.count}
    if (number := crew.number(crew.member(ins))) > 1:
        own[PART] = number
    return Scope({**scope.block, **own}, {**scope.all, **own})


def _own_problem(program: Program, name: str, operand: Operand) -> tuple[str, str] | None:
    """Who takes a block is open, so that only what nobody asks for afterwards may lie by it."""
    if operand.param is None or program.params[operand.param].role == "workspace":
        return None
    if not any(t.variable == CORE for t in operand.offset.terms):
        return None
    return "DSF-X008", f"operand '{name}' lies by the core that takes the block; only a workspace may"


def _stray_variable(counts: Counts, ins: Instruction) -> str | None:
    """A loop variable that is used outside its loop."""
    return next((t.variable for value in _affines(ins) for t in value.terms if t.variable not in counts), None)


def _affines(ins: Instruction) -> list[Affine]:
    """All of an instruction that may depend on loop variables."""
    return [o.offset for o in ins.operands] + [v for _, v in ins.scalars if isinstance(v, Affine)]


def _flag_problem(chip: Chip, crew: Crew, scope: Scope, ins: Instruction) -> tuple[str, str] | None:
    scalars = dict(ins.scalars)
    if missing := [name for name in ("src", "dst", "event") if name not in scalars]:
        return "DSF-I004", f"a flag names src, dst and event; missing: {', '.join(missing)}"
    for side in ("src", "dst"):
        member, queue = crew.split(str(scalars[side]))
        engine = chip.engines.get(queue)
        if engine is None or member not in engine.core or member not in dict(crew.members):
            return "DSF-X001", f"{side}={scalars[side]} is no engine of core {crew.name}"
    number = scalars["event"]
    if not isinstance(number, int | Affine):
        return "DSF-I011", f"event={number} is no event id; expected a whole number"
    event = number if isinstance(number, Affine) else Affine(number)
    if shared := [t.variable for t in event.terms if t.variable in scope.block]:
        return "DSF-X007", f"the event id depends on {shared[0]}, which counts blocks; blocks are independent"
    low, high = event.extremes(scope.all)
    if crew.split(str(scalars["src"]))[0] != crew.split(str(scalars["dst"]))[0]:
        ids = chip.sync.cross_core_flag_ids
        found = f"flag ids {low}..{high} between cores; this chip has 0..{ids - 1}"
        return ("DSF-X002", found) if low < 0 or high >= ids else None
    if low < 0 or high >= chip.sync.event_ids:
        kept = [str(number) for number in chip.sync.reserved_event_ids if low <= number <= high]
        return (
            "DSF-X002",
            f"event ids {low}..{high}; this chip has 0..{chip.sync.event_ids - 1} for each pair of engines"
            + (f", and keeps {' and '.join(kept)} for itself" if kept else ""),
        )
    return None


def _role_problem(name: str, role: Role, operand: Operand) -> tuple[str, str] | None:
    if operand.space not in role.spaces:
        return "DSF-I005", f"operand '{name}' must be in {' or '.join(role.spaces)}, got {operand}"
    if role.dtypes and operand.dtype not in role.dtypes:
        return "DSF-I006", f"operand '{name}' must be {' or '.join(role.dtypes)}, got {operand}"
    if not known_dtype(operand.dtype):
        return "DSF-I006", f"operand '{name}' is of no number format that DSF knows, got {operand}"
    return None


def _place_problem(program: Program, chip: Chip, core: str, name: str, operand: Operand) -> tuple[str, str] | None:
    memory = chip.memories[operand.space]
    if operand.param is None and memory.scope == "chip":
        return "DSF-I007", f"operand '{name}' is in {memory.name} but names no parameter"
    if operand.param is not None and not memory.main:
        return "DSF-I007", f"operand '{name}' is in {memory.name} but names a parameter; parameters are in main memory"
    if operand.param is not None and not 0 <= operand.param < len(program.params):
        return "DSF-I007", f"operand '{name}' names parameter {operand.param}; the program has {len(program.params)}"
    if len(operand.shape) != len(operand.stride):
        return "DSF-I008", f"operand '{name}' has {len(operand.shape)} sizes and {len(operand.stride)} strides"
    if len(operand.shape) > MOST_DIMENSIONS:
        return "DSF-I008", f"operand '{name}' has {len(operand.shape)} sizes; expected at most {MOST_DIMENSIONS}"
    if memory.core is not None and core != memory.core:
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
    align = operand.itemsize if param is not None else memory.alignment
    if any(step % align for step in (operand.offset.const, *(t.step for t in operand.offset.terms))):
        return "DSF-X005", f"operand '{name}' starts off a multiple of {align} bytes in {memory.name}"
    return None


def _block_problem(chip: Chip, scope: Scope, name: str, operand: Operand) -> tuple[str, str] | None:
    """On chip, a block stands where every other does: which core takes it, and after which, is open."""
    shared = [t.variable for t in operand.offset.terms if t.variable in scope.block]
    if operand.param is None and shared:
        return (
            "DSF-X008",
            f"operand '{name}' is in {operand.space} at an address that depends on {shared[0]}, which counts blocks; "
            "blocks are independent",
        )
    return None


def _written_problem(program: Program, name: str, operand: Operand) -> tuple[str, str] | None:
    param = program.params[operand.param] if operand.param is not None else None
    if param is not None and param.role == "in":
        return "DSF-I012", f"operand '{name}' is written, but parameter {param.name} is 'in'; declare it out or inout"
    if repeats(operand):
        return "DSF-X009", f"operand '{name}' writes the same bytes more than once; a place is written by one element"
    return None


_FITS: dict[str, tuple[type, ...]] = {"int": (int, Affine), "float": (int, float, Affine), "str": (str,)}
"""The values that a scalar may have, by the type that the row's semantics state."""


@lru_cache(maxsize=4096)
def _signature(row: Row) -> Signature:
    return signature(row.semantics)


def _scalar_problem(row: Row, ins: Instruction) -> tuple[str, str] | None:
    scalars = dict(ins.scalars)
    if len(scalars) != len(ins.scalars):
        return "DSF-I011", "a scalar is given twice"
    try:
        _signature(row).bind(*ins.operands, **scalars)
    except TypeError as mismatch:
        wanted = ", ".join(f"{name} ({kind})" for name, kind in row.scalars) or "none"
        return "DSF-I011", f"{mismatch}; its scalars are: {wanted}"
    for name, kind in row.scalars if scalars else ():
        if name in scalars and not isinstance(scalars[name], _FITS.get(kind, object)):
            return "DSF-I011", f"{name}={scalars[name]} is no {kind}"
    return None


def _rule_problem(chip: Chip, row: Row, ins: Instruction) -> tuple[str, str] | None:
    for rule in row.rules:
        text = rule(chip, ins)
        if text:
            return "DSF-X006", text
    return None
