"""A listing says all that its program holds, and a text that is no listing is answered with a line and a column."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.core.isa.drawn import ROWS, instruction_of, program_of, programs, same

from dsf import errors
from dsf.isa import Affine, Instruction, Loop, Nest, Operand, Param, Phase, Program, Row
from dsf.isa.assembly import parse
from dsf.isa.binary import decode, encode
from dsf.isa.program import MOST_LOOPS, Term

quickly = settings(max_examples=100, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
briefly = settings(quickly, max_examples=3)
R = Affine(0, (Term("r0", 1),))


@quickly
@given(programs)
def test_every_program_reads_back_from_its_listing(program: Program) -> None:
    assert same(parse(program.listing()), program)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
@briefly
@given(data=st.data())
def test_every_instruction_reads_back_from_its_listing_and_its_bytes(data: st.DataObject, row: Row) -> None:
    program = program_of(data.draw(instruction_of(row)))
    assert same(parse(program.listing()), program)
    assert same(decode(encode(program)), program)


def test_a_listing_reads_back_without_its_numbers_with_remarks_and_with_empty_lines() -> None:
    program = program_of(Instruction("fill", (), (("value", "a # b"),)))
    text = (
        "# who made this\n\n" + "\n".join("  " * depth + line + "  # why" for depth, line in program.lines()) + "\r\n"
    )
    assert parse(text) == program
    assert parse(program.listing() + "\n") == program


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (16, "16"),
        (-1, "-1"),
        (Affine(16), "0x10"),
        (Affine(-16), "-0x10"),
        (R + 16, "[0x10+r0]"),
        (R % 2, "[(r0%2)]"),
        (0.5, "0.5"),
        (1e-05, "1e-05"),
        (1e22, "1e+22"),
        (-math.inf, "-inf"),
        (True, "True"),
        ("True", '"True"'),
        ("nan", '"nan"'),
        ("0x10", '"0x10"'),
        ("MTE2", "MTE2"),
        ("r0+r1", '"r0+r1"'),
        ("two words", '"two words"'),
        ("", '""'),
    ],
)
def test_a_scalar_is_written_so_that_its_type_is_seen(value: object, written: str) -> None:
    ins = Instruction("fill", (), (("k", value),))  # type: ignore[arg-type]
    assert str(ins) == f"fill k={written}"
    assert same(parse(program_of(ins).listing()), program_of(ins))


def test_a_nan_is_read_as_a_nan() -> None:
    program = parse(program_of(Instruction("fill", (), (("value", math.nan),))).listing())
    assert [math.isnan(dict(ins.scalars)["value"]) for ins, _ in program.instructions()] == [True, True]  # type: ignore[arg-type]


def test_a_name_that_would_read_as_something_else_is_quoted() -> None:
    assert str(Instruction("loop")) == '"loop"'
    assert str(Operand("GM.p0", (2,), (1,), "int8", Affine())) == '"GM.p0"[0x0](2)int8'
    assert str(Param("a b", "in", 8)) == 'in "a b":8'


def nested(depth: int) -> Program:
    body: tuple[Instruction | Loop, ...] = (Instruction("nop"),)
    for level in reversed(range(depth)):
        body = (Loop(f"r{level}", 1, body),)
    return Program("deep", (), (Phase("core", (Nest((), body),)),))


def test_as_many_loops_as_may_be_inside_each_other_read_back_and_one_more_has_no_listing() -> None:
    deep = nested(MOST_LOOPS)
    assert parse(deep.listing()) == deep
    with pytest.raises(errors.IsaError, match=r"^DSF-I020: more than 64 loops inside each other; a listing cannot "):
        nested(MOST_LOOPS + 1).listing()


@pytest.mark.parametrize(
    ("scalar", "sentence"),
    [
        (None, r"^DSF-I020: None is no whole number of 64 bits; a listing cannot say that$"),
        (1 << 63, r"^DSF-I020: 0x8000000000000000 is no whole number of 64 bits; a listing cannot say that$"),
        ((1, 2), r"^DSF-I020: \(1, 2\) is no whole number of 64 bits; a listing cannot say that$"),
        ("\ud800", r"^DSF-I020: the name '\\ud800' is no text; a listing cannot say that$"),
    ],
)
def test_what_no_program_may_hold_has_no_listing(scalar: object, sentence: str) -> None:
    with pytest.raises(errors.IsaError, match=sentence):
        program_of(Instruction("fill", (), (("k", scalar),))).listing()  # type: ignore[arg-type]


HEAD = "program p(in x:8)\n  phase core\n    blocks i<2\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "line 1, column 1: found the end of the line; expected a program"),
        ("# nothing\n", "line 2, column 1: found the end of the line; expected a program"),
        ("phase core", "line 1, column 1: found 'phase core'; expected 'program'"),
        ("  program p()", "line 1, column 3: found 'program p()'; expected 'program NAME(...)' without indentation"),
        ("program p", "line 1, column 10: found the end of the line; expected '('"),
        ("program p(in x)", "line 1, column 15: found ')'; expected ':'"),
        ("program p(in x:8", "line 1, column 17: found the end of the line; expected ')'"),
        ("program p() extra", "line 1, column 13: found 'extra'; expected the end of the line, or a remark after #"),
        ("program p()\nprogram q()", "line 2, column 1: found 'program q()'; expected 'phase' after 2 spaces"),
        ("program p()\n   phase core", "line 2, column 4: found 'phase core'; expected an even number of spaces "
         "before it, not 3"),
        ("program p()\n  Add", "line 2, column 3: found 'Add'; expected 'phase'"),
        ("program p()\n  phase core\n      Add", "line 3, column 7: found 'Add'; expected an indentation of 2 to 4 "
         "spaces"),
        (HEAD + "      loop r0<x", "line 4, column 15: found 'x'; expected a count"),
        (HEAD + "      loop r0", "line 4, column 14: found the end of the line; expected '<'"),
        (HEAD + "      phase core", "line 4, column 7: found 'phase core'; expected an instruction or a loop; a phase "
         "is indented less"),
        (HEAD + "      Add 7", "line 4, column 11: found '7'; expected an operand, like UB[0x0](16,64)float16, or a "
         "scalar, like value=0.5"),
        (HEAD + "      Add UB[0x0](16", "line 4, column 21: found the end of the line; expected ')'"),
        (HEAD + "      Add UB[0x0](16)", "line 4, column 22: found the end of the line; expected a number format"),
        (HEAD + "      Add UB[i+8](16)int8", "line 4, column 17: found '](16)int8'; expected '*' and a variable; the "
         "constant comes first"),
        (HEAD + "      Add UB[(i*2)](16)int8", "line 4, column 16: found '*2)](16)int8'; expected '%'"),
        (HEAD + "      Add k=", "line 4, column 13: found the end of the line; expected a value: a number, [an affine "
         "one], True, False, or text"),
        (HEAD + "      Add k=1, UB[0x0](16)int8", "line 4, column 16: found 'UB[0x0](16)int8'; expected a scalar, like "
         "value=0.5; operands come before them"),
        (HEAD + "      Add k=16abc", "line 4, column 13: found '16abc'; expected a whole number of 64 bits"),
        (HEAD + "      Add k=99999999999999999999", "line 4, column 13: found '99999999999999999999'; expected a whole "
         "number of 64 bits"),
        (HEAD + '      Add k="\\ud800"', "line 4, column 13: found '\"\\ud800\"'; expected a JSON string"),
        (HEAD + '      Add k="open', "line 4, column 13: found '\"open'; expected a value: a number, [an affine one], "
         "True, False, or text"),
        (HEAD + "      Add\x1b[2J", "line 4, column 10: found '?[2J'; expected an operand, like "
         "UB[0x0](16,64)float16, or a scalar, like value=0.5"),
    ],
)  # fmt: skip
def test_what_is_no_listing_is_answered_with_line_column_found_and_expected(text: str, sentence: str) -> None:
    with pytest.raises(errors.ListingError, match=f"^DSF-I021: {re.escape(sentence)}$"):
        parse(text)


def test_one_loop_too_many_is_named_with_its_line() -> None:
    text = "\n".join(["program p()", "  phase core", "    blocks", *("  " * n + "loop i<1" for n in range(3, 3000))])
    with pytest.raises(errors.ListingError, match=rf"^DSF-I021: line {4 + MOST_LOOPS}, column 1: .* at most 64 loops"):
        parse(text)


def judged(text: str) -> None:
    """A program, or a sentence with a line of the text; nothing else."""
    try:
        program, sentence = parse(text), ""
    except errors.ListingError as refusal:
        program, sentence = None, refusal.sentence
    if program is not None:
        assert parse(program.listing()).listing() == program.listing()
        return
    match = re.match(r"line (\d+), column (\d+): found .*; expected .*", sentence)
    assert match is not None
    assert 1 <= int(match[1]) <= text.count("\n") + 1


@quickly
@given(st.one_of(st.text(), st.text(alphabet=' \n()[]<>:,.=+*%"\\#-0123456789xaefilnpr')))
def test_any_text_is_a_program_or_a_sentence(text: str) -> None:
    judged(text)
    judged(HEAD + "      " + text)


@quickly
@given(programs, st.data())
def test_a_listing_that_was_damaged_is_a_program_or_a_sentence(program: Program, data: st.DataObject) -> None:
    text = program.listing()
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 6)))
        piece = st.one_of(st.text(max_size=4), st.sampled_from(("\n", "  ", "loop i<4", "[", "]", '"', "9" * 5000)))
        text = text[:start] + data.draw(piece) + text[end:]
    judged(text)


@pytest.mark.parametrize(
    "piece", ["(", "[", "9", '"', "\\", "+", ",", "a", " ", "\n", "0x", "-", "1e", "#", "UB[0x0]("]
)
def test_a_very_long_line_is_answered_too(piece: str) -> None:
    for before in ("", "program p(", HEAD + "      ", HEAD + "      Add ", HEAD + "      Add k=", HEAD + "    Add UB["):
        judged(before + piece * 20_000)
