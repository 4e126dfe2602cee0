"""V: the vector engine, 256 bytes a cycle over UB. [asc-devkit: vector API and its cycle tables]

It computes in fp16, fp32, int32 and int16; bf16 is cast to fp32 first, and int64 falls to the scalar unit. The
transcendental names of the high-level API (Sin, Tanh, Erf, ...) are priced as one pass of the Exp class each; how many
passes the vendor's library really makes is not published.
"""

from __future__ import annotations

from dsf.hdl import Chip
from dsf.isa import Isa
from dsf.isa.families import add_pointwise, add_reductions, add_vector_moves
from dsf.isa.program import Instruction
from dsf.isa.rules import limit

__all__ = ["declare"]

SOURCE = "asc-devkit guide, vector instruction throughput"
FLOATS = ("float16", "float32")
NUMBERS = (*FLOATS, "int32", "int16")
MASKS = ("bool", "uint8", "int16")
STORED = ("float16", "float32", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")

ARITHMETIC = {"add": "Add", "sub": "Sub", "mul": "Mul", "max": "Max", "min": "Min", "abs": "Abs", "neg": "Neg"}
TRANSCENDENTAL = {
    "div": "Div", "exp": "Exp", "log": "Ln", "sqrt": "Sqrt", "rsqrt": "Rsqrt", "reciprocal": "Reciprocal",
    "sin": "Sin", "cos": "Cos", "tanh": "Tanh", "erf": "Erf", "sigmoid": "Sigmoid", "pow": "Power",
    "floor": "Floor", "ceil": "Ceil", "round": "Round", "trunc": "Trunc", "sign": "Sign",
    "exp2": "Exp2", "expm1": "Expm1", "log2": "Log2", "log1p": "Log1p", "tan": "Tan", "fmod": "Fmod",
}  # fmt: skip
LOGIC = {"and": "And", "or": "Or", "xor": "Xor", "not": "Not"}
COMPARISONS = {
    "eq": "Compare.EQ", "ne": "Compare.NE", "lt": "Compare.LT",
    "le": "Compare.LE", "gt": "Compare.GT", "ge": "Compare.GE",
}  # fmt: skip
REDUCTIONS = {"sum": "ReduceSum", "max": "ReduceMax", "min": "ReduceMin"}
INDICES = {"argmax": "ReduceMax.Index", "argmin": "ReduceMin.Index"}


def declare(isa: Isa) -> None:
    """Add the vector engine's rows."""
    rules = [repeats_fit]
    add_pointwise(isa, "V", "UB", ARITHMETIC, NUMBERS, rules, SOURCE)
    add_pointwise(isa, "V", "UB", TRANSCENDENTAL, FLOATS, rules, SOURCE)
    add_pointwise(isa, "V", "UB", LOGIC, MASKS, rules, SOURCE)
    add_pointwise(isa, "V", "UB", COMPARISONS, NUMBERS, rules, SOURCE)
    add_pointwise(isa, "V", "UB", {"where": "Select"}, NUMBERS, rules, SOURCE)
    add_reductions(isa, "V", "UB", REDUCTIONS, FLOATS, SOURCE, rules)
    add_reductions(isa, "V", "UB", INDICES, FLOATS, SOURCE, rules)
    add_vector_moves(isa, "V", "UB", {"cast": "Cast"}, STORED, SOURCE, rules)
    add_vector_moves(isa, "V", "UB", {"fill": "Duplicate", "iota": "CreateVecIndex"}, NUMBERS, SOURCE, rules)


def repeats_fit(chip: Chip, ins: Instruction) -> str | None:
    """One instruction issues at most 255 repeats of 256 bytes for each row that it names."""
    repeats, size = limit(chip, "vector_repeats"), limit(chip, "vector_repeat_bytes")
    rows = ((o.shape[-1] if o.shape else 1, o.itemsize) for o in ins.operands)
    columns, itemsize = max(rows, key=lambda row: row[0] * row[1])
    if columns * itemsize > repeats * size:
        return f"a row of {columns} elements needs more than {repeats} repeats of {size} bytes"
    return None
