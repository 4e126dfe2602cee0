"""What operands must be to each other, rule by rule: None where it holds, else what is wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from dsf.hdl import Chip
from dsf.isa import Affine, Instruction, Operand
from dsf.isa.program import Term, contiguous
from dsf.isa.rules import apart_or_the_same, rows_of, scalars_fit


def window(
    shape: Sequence[int], at: int = 0, stride: Sequence[int] | None = None, dtype: str = "float32", variable: str = "",
    space: str = "sram",
) -> Operand:  # fmt: skip
    terms = (Term(variable, 64),) if variable else ()
    return Operand(space, tuple(shape), tuple(stride or contiguous(tuple(shape))), dtype, Affine(at, terms))


@pytest.mark.parametrize(
    ("written", "source", "allowed"),
    [
        (window((4, 16)), window((4, 16)), True),
        (window((4, 16)), window((4, 16), 256), True),  # beside each other
        (window((4, 16)), window((4, 16), 252), False),
        (window((4, 16), 64), window((4, 16)), False),
        (window((4, 16)), window((4, 16), dtype="float16"), False),  # the same start, other numbers
        (window((4, 16)), window((4, 16), space="acc"), True),
        (window((4, 4), stride=(16, 1)), window((4, 4), 16, (16, 1)), True),  # columns of one matrix
        (window((4, 4), stride=(16, 1)), window((4, 4), 48, (16, 1)), True),
        (window((4, 4), stride=(16, 1)), window((4, 4), 56, (16, 1)), False),  # wraps into the next row
        (window((4, 4), stride=(16, 1)), window((4, 4), 8, (16, 1)), False),
        (window((4, 16)), window((4, 16), stride=(0, 0)), False),  # the first number of what is written, broadcast
        (window((1, 1)), window((4, 16)), True),  # a sum that takes its row's first place
        (window((4, 16), variable="r"), window((4, 16), 64), True),  # nobody knows where r stands
        (window((4, 16), variable="r"), window((4, 16), 64, variable="r"), False),
        (window((0, 16)), window((4, 16), 8), True),
    ],
)
def test_windows_lie_apart_or_are_the_same(chip: Chip, written: Operand, source: Operand, allowed: bool) -> None:
    said = apart_or_the_same(chip, Instruction("x", (written, source)))
    assert said == (None if allowed else f"{written} overlaps {source} in part; expected all of it or nothing")


@pytest.mark.parametrize(
    ("operand", "wanted"),
    [
        (window((4, 16)), (0, 256)), (window((4, 16), stride=(64, 1)), (256, 64)), (window((7,)), (0, 28)),
        (window((4, 1), stride=(8, 1)), (32, 4)), (window((2, 3, 4), stride=(100, 10, 1)), (0, 16)),
        (window((4, 16), stride=(0, 1)), (0, 64)),
    ],
)  # fmt: skip
def test_a_window_of_rows_has_a_pitch_and_a_width(operand: Operand, wanted: tuple[int, int]) -> None:
    assert rows_of(operand) == wanted


@pytest.mark.parametrize(
    ("dtype", "value", "said"),
    [
        ("float16", 0.5, None), ("float16", 0.1, "the nearest is 0.0999755859375"), ("float16", math.inf, None),
        ("float16", math.nan, None), ("float16", 70000, "the nearest is inf"), ("float32", 0.1, "the nearest is"),
        ("bfloat16", 257, "the nearest is 256.0"), ("int16", 5, None), ("int16", 5.0, None),
        ("int16", 0.5, "expected a whole number"), ("int8", 128, "expected -128 to 127"), ("bool", True, None),
        ("bool", 2, "expected 0 to 1"), ("int16", Affine(0, (Term("r", 1),)), None),
    ],
)  # fmt: skip
def test_a_number_in_an_instruction_is_one_of_its_format(
    chip: Chip, dtype: str, value: float | Affine, said: str | None
) -> None:
    found = scalars_fit(chip, Instruction("x", (window((4,), dtype=dtype),) * 2, (("value", value),)))
    if said is None:
        assert found is None
    else:
        assert found is not None
        assert found.startswith(f"value={value} is no {dtype}; {said}")
