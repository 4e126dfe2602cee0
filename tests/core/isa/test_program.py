"""Programs as values: affine arithmetic, operands, listings, blocks and counts, against hand-made examples."""

from __future__ import annotations

import pytest

from dsf.isa import Affine, Instruction, Loop, Nest, Operand, Param, Phase, Program
from dsf.isa.program import Term, contiguous

ROW, COLUMN = Affine(0, (Term("i", 1),)), Affine(0, (Term("j", 1),))


def test_an_affine_value_is_its_constant_and_the_steps_of_its_variables() -> None:
    value = 64 + ROW * 4096 + COLUMN * 128
    assert value.at({"i": 0, "j": 0}) == 64
    assert value.at({"i": 2, "j": 3}) == 8640  # 64 + 8192 + 384


def test_a_variable_modulo_two_alternates() -> None:
    half = (ROW % 2) * 1024 + 16
    assert [half.at({"i": i}) for i in range(5)] == [16, 1040, 16, 1040, 16]


def test_scaling_an_affine_value_scales_every_part() -> None:
    assert Affine(15, (Term("i", 3, 2), Term("j", 3))) == ((ROW % 2) + COLUMN + 5) * 3
    assert Affine(3, (Term("i", 3),)) == 3 * (ROW + 1)


@pytest.mark.parametrize(
    ("value", "counts", "extremes"),
    [
        (ROW * 8 + 2, {"i": 5}, (2, 34)),
        ((ROW % 2) * 8, {"i": 5}, (0, 8)),
        ((ROW % 4) * 8, {"i": 3}, (0, 16)),  # the loop ends before the modulus is reached
        (ROW * -8 + 100, {"i": 5}, (68, 100)),
        (ROW * 8 + COLUMN * -2, {"i": 3, "j": 4}, (-6, 16)),
        (Affine(7), {}, (7, 7)),
    ],
)
def test_extremes_are_the_least_and_the_largest_value_in_the_loops(
    value: Affine, counts: dict[str, int], extremes: tuple[int, int]
) -> None:
    assert value.extremes(counts) == extremes


def test_only_a_bare_variable_can_alternate() -> None:
    with pytest.raises(AssertionError):
        (ROW * 2) % 2
    with pytest.raises(AssertionError):
        (ROW + 1) % 2


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Affine(), "0x0"),
        (Affine(4096), "0x1000"),
        (ROW * 64 + 32, "0x20+0x40*i"),
        (ROW + COLUMN * 2, "i+0x2*j"),
        ((ROW % 2) * 32768, "0x8000*(i%2)"),
        (ROW % 2 + 0, "(i%2)"),
    ],
)
def test_an_affine_value_reads_as_it_is_computed(value: Affine, text: str) -> None:
    assert str(value) == text


def operand(shape: tuple[int, ...], stride: tuple[int, ...], dtype: str = "float16") -> Operand:
    return Operand("sram", shape, stride, dtype, Affine(64))


@pytest.mark.parametrize(
    ("window", "nbytes", "reach"),
    [
        (operand((16, 64), (64, 1)), 2048, 2048),
        (operand((16, 64), (100, 1)), 2048, 3128),  # (15 * 100 + 63 + 1) * 2
        (operand((16, 64), (0, 1)), 2048, 128),  # one row that stands for sixteen
        (operand((16, 64), (1, 16), "float32"), 4096, 4096),  # by columns
        (operand((), (), "int64"), 8, 8),
        (operand((0, 64), (64, 1)), 0, 0),
        (operand((3, 0), (64, 1)), 0, 0),
    ],
)
def test_reach_ends_with_the_last_element_and_nbytes_leave_out_the_gaps(
    window: Operand, nbytes: int, reach: int
) -> None:
    assert (window.nbytes, window.reach) == (nbytes, reach)


def test_an_operand_reads_as_place_shape_and_format() -> None:
    assert str(operand((16, 64), (64, 1))) == "sram[0x40](16,64)float16"
    assert str(operand((16, 64), (100, 1))) == "sram[0x40](16,64:100,1)float16"
    in_main = Operand("hbm", (8,), (1,), "int8", ROW * 8, 1)
    assert str(in_main) == "hbm.p1[0x8*i](8)int8"


def test_contiguous_strides_are_row_major_and_never_zero() -> None:
    assert contiguous((2, 3, 4)) == (12, 4, 1)
    assert contiguous((2, 0, 4)) == (4, 4, 1)
    assert contiguous(()) == ()


def test_blocks_are_counted_with_the_last_variable_fastest() -> None:
    nest = Nest((("i", 2), ("j", 3)), ())
    assert nest.blocks == 6
    assert [(e["i"], e["j"]) for e in nest.coordinates()] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_a_nest_without_variables_is_one_block() -> None:
    assert Nest((), ()).blocks == 1
    assert list(Nest((), ()).coordinates()) == [{}]


COPY = Instruction("copy", (operand((8,), (1,)),), (("value", 0.5),))
WAIT = Instruction("WaitFlag", (), (("src", "din"), ("dst", "vec"), ("event", ROW % 2)))
PROGRAM = Program(
    "sample",
    (Param("x", "in", 512), Param("y", "out", 256)),
    (
        Phase("core", (Nest((("i", 4), ("j", 2)), (COPY, Loop("r0", 3, (WAIT, Loop("r1", 5, (COPY,)))), COPY)),)),
        Phase("core", (Nest((("i", 7),), (COPY,)), Nest((("i", 1),), (COPY,)))),
    ),
)


def test_a_listing_numbers_every_line_and_indents_what_is_inside() -> None:
    assert PROGRAM.listing() == (
        "   1 program sample(in x:512, out y:256)\n"
        "   2   phase core\n"
        "   3     blocks i<4 j<2\n"
        "   4       copy sram[0x40](8)float16, value=0.5\n"
        "   5       loop r0<3\n"
        "   6         WaitFlag src=din, dst=vec, event=[(i%2)]\n"
        "   7         loop r1<5\n"
        "   8           copy sram[0x40](8)float16, value=0.5\n"
        "   9       copy sram[0x40](8)float16, value=0.5\n"
        "  10   phase core\n"
        "  11     blocks i<7\n"
        "  12       copy sram[0x40](8)float16, value=0.5\n"
        "  13     blocks i<1\n"
        "  14       copy sram[0x40](8)float16, value=0.5"
    )


def test_every_instruction_counts_as_often_as_its_loops_and_blocks_say() -> None:
    assert [(ins.name, times) for ins, times in PROGRAM.instructions()] == [
        ("copy", 8), ("WaitFlag", 24), ("copy", 120), ("copy", 8), ("copy", 7), ("copy", 1),
    ]  # fmt: skip


def test_two_programs_that_say_the_same_are_one_value() -> None:
    again = Program("sample", PROGRAM.params, (PROGRAM.phases[0], Phase("core", PROGRAM.phases[1].nests)))
    assert again == PROGRAM
    assert {PROGRAM: "known"}[again] == "known"
