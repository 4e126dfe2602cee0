"""Programs that nobody wrote, for hypothesis: whatever a program may hold, and each row of a table on operands."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

from hypothesis import strategies as st

from dsf import hdl
from dsf.generic.isa import isa as generic_isa
from dsf.isa import Affine, Instruction, Isa, Loop, Nest, Operand, Param, Phase, Program, Row
from dsf.isa.program import Term, contiguous

DTYPES = ("float16", "bfloat16", "float32", "int64", "int32", "int8", "uint8", "bool")

ODD = (
    "", " ", "a b", "loop", "program", "phase", "blocks", "True", "False", "nan", "inf", "-inf", "GM.p0", "0x10", "12",
    "1e5", "#", "a#b", '"', "\\", "é", "\n", "\x00", "r0+r1", "(i%2)", "a,b", "a=b", "x[", "名",
)  # fmt: skip
names = st.one_of(st.sampled_from(("x", "r0", "GM", "Mmad.s8", "MTE2", "_a1.b")), st.sampled_from(ODD), st.text())
whole = st.one_of(st.integers(-3, 70000), st.integers(-(1 << 63), (1 << 63) - 1))
some = {"max_size": 3}
affines = st.builds(Affine, whole, st.lists(st.builds(Term, names, whole, whole), **some).map(tuple))
sizes = st.lists(whole, **some).map(tuple)
operands = st.builds(Operand, names, sizes, sizes, names, affines, st.none() | whole)
scalars = st.one_of(st.booleans(), whole, st.floats(allow_nan=False), names, affines)
instructions = st.builds(
    Instruction, names, st.lists(operands, **some).map(tuple), st.lists(st.tuples(names, scalars), **some).map(tuple)
)
bodies = st.recursive(
    st.lists(instructions, **some).map(tuple),
    lambda inner: st.lists(st.one_of(instructions, st.builds(Loop, names, whole, inner)), **some).map(tuple),
    max_leaves=6,
)
nests = st.builds(Nest, st.lists(st.tuples(names, whole), **some).map(tuple), bodies)
phases = st.builds(Phase, names, st.lists(nests, max_size=2).map(tuple))
programs = st.builds(
    Program, names, st.lists(st.builds(Param, names, names, whole), **some).map(tuple),
    st.lists(phases, max_size=2).map(tuple),
)  # fmt: skip


@cache
def table(name: str) -> Isa:
    """The table of the invented chip, or of the Ascends."""
    if name == "generic":
        return generic_isa(hdl.load("acme-x1"))
    from dsf_ascend.isa import ISA

    return ISA


TABLES = ["generic", *(["ascend"] if find_spec("dsf_ascend") else [])]
ROWS = {f"{table(name).name}-{row.name}": row for name in TABLES for row in table(name).rows.values()}

VALUES = {
    "int": st.one_of(st.integers(-5, 1 << 40), st.builds(Affine, st.integers(0, 9)), affines),
    "float": st.floats(allow_nan=False) | st.integers(-9, 9),
    "str": names,
    "bool": st.booleans(),
}


@st.composite
def instruction_of(draw: st.DrawFn, row: Row) -> Instruction:
    """*row* on operands in its memories and formats, with all its scalars."""
    windows = []
    for _, role in row.operands:
        shape = tuple(draw(st.lists(st.integers(1, 300), min_size=1, max_size=3)))
        stride = draw(st.none() | st.lists(st.integers(0, 999), min_size=len(shape), max_size=len(shape)).map(tuple))
        space, dtype = draw(st.sampled_from(role.spaces)), draw(st.sampled_from(role.dtypes or DTYPES))
        windows.append(
            Operand(space, shape, stride or contiguous(shape), dtype, draw(affines), draw(st.none() | whole))
        )
    values = tuple((name, draw(VALUES[kind])) for name, kind in row.scalars)
    return Instruction(row.name, tuple(windows), values)


def program_of(instruction: Instruction) -> Program:
    """A program of that one instruction, in a loop and outside it."""
    body = (instruction, Loop("r0", 3, (instruction,)))
    return Program("sample", (Param("x", "in", 64),), (Phase("core", (Nest((("i", 2),), body),)),))


def same(a: object, b: object) -> bool:
    """Equal in value and in type, all the way down: True, 1 and 1.0 differ, and so do 0.0 and -0.0."""
    return a == b and repr(a) == repr(b)
