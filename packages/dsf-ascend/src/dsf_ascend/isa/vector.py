"""V: the vector engine, 256 bytes a cycle over UB. [asc-devkit: vector API and its cycle tables]

It computes in fp16, fp32, int32 and int16; bf16 is cast to fp32 first, and int64 falls to the scalar unit. The
transcendental names of the high-level API (Sin, Tanh, Erf, ...) are priced as one pass of the Exp class each; how many
passes the vendor's library really makes is not published.
"""

from __future__ import annotations

from dsf.hdl import Chip
from dsf.isa import Isa
from dsf.isa.families import add_pointwise, add_reductions, add_scalar_forms, add_vector_moves
from dsf.isa.program import Affine, Instruction
from dsf.isa.rules import apart_or_the_same, limit, rows_of
from dsf_ascend.isa import fused, shuffle

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
SCALARS = {"add": "Adds", "mul": "Muls", "max": "Maxs", "min": "Mins"}
SHIFTS = {"shift_left": "ShiftLeft", "shift_right": "ShiftRight"}
REDUCTIONS = {"sum": "ReduceSum", "max": "ReduceMax", "min": "ReduceMin"}
INDICES = {"argmax": "ReduceMax.Index", "argmin": "ReduceMin.Index"}


def declare(isa: Isa) -> None:
    """Add the vector engine's rows."""
    rules = [repeats_fit, rows_on_blocks, apart_or_the_same]
    add_pointwise(isa, "V", "UB", ARITHMETIC, NUMBERS, rules, SOURCE)
    add_pointwise(isa, "V", "UB", TRANSCENDENTAL, FLOATS, rules, SOURCE)
    add_pointwise(isa, "V", "UB", LOGIC, MASKS, rules, SOURCE)
    add_pointwise(isa, "V", "UB", COMPARISONS, NUMBERS, rules, SOURCE)
    add_pointwise(isa, "V", "UB", {"where": "Select"}, NUMBERS, rules, SOURCE)
    add_scalar_forms(isa, "V", "UB", SCALARS, NUMBERS, rules, SOURCE)
    add_scalar_forms(isa, "V", "UB", SHIFTS, ("int16", "int32"), [shift_fits, *rules], SOURCE)
    compared = {key: f"CompareScalar.{key.upper()}" for key in COMPARISONS}
    add_scalar_forms(isa, "V", "UB", compared, FLOATS, rules, SOURCE)
    add_reductions(isa, "V", "UB", REDUCTIONS, FLOATS, SOURCE, rules)
    add_reductions(isa, "V", "UB", INDICES, FLOATS, SOURCE, rules)
    add_vector_moves(isa, "V", "UB", {"cast": "Cast"}, STORED, SOURCE, rules)
    add_vector_moves(isa, "V", "UB", {"fill": "Duplicate", "iota": "CreateVecIndex"}, NUMBERS, SOURCE, rules)
    fused.declare(isa, rules)
    shuffle.declare(isa, rules)


def repeats_fit(chip: Chip, ins: Instruction) -> str | None:
    """One instruction issues at most 255 repeats of 256 bytes for each row that it names."""
    repeats, size = limit(chip, "vector_repeats"), limit(chip, "vector_repeat_bytes")
    rows = ((o.shape[-1] if o.shape else 1, o.itemsize) for o in ins.operands)
    columns, itemsize = max(rows, key=lambda row: row[0] * row[1])
    if columns * itemsize > repeats * size:
        return f"a row of {columns} elements needs more than {repeats} repeats of {size} bytes"
    return None


def rows_on_blocks(chip: Chip, ins: Instruction) -> str | None:
    """Strides between repeats and blocks count 32 bytes, so rows that lie apart do so by a multiple of that."""
    size = limit(chip, "vector_block_bytes")
    for operand in ins.operands:
        pitch, _ = rows_of(operand)
        if pitch % size:
            return f"rows {pitch} bytes from each other in {operand}; expected a multiple of {size}"
    return None


def shift_fits(chip: Chip, ins: Instruction) -> str | None:
    """A number is shifted by fewer places than it has."""
    value, bits = dict(ins.scalars).get("value", 0), 8 * ins.operands[0].itemsize
    if isinstance(value, Affine) or (isinstance(value, int) and 0 <= value < bits):
        return None
    return f"value={value}; {ins.operands[0].dtype} is shifted by 0 to {bits - 1} places"
