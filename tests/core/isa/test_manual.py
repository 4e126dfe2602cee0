"""The manual is the table in words: nothing in it is written a second time."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from dsf import errors
from dsf.hdl import Chip
from dsf.isa import Instruction, Isa, Row, accumulate, read, write
from dsf.isa.laws import fixed
from dsf.isa.manual import Manual, OperandEntry, entry, manual
from dsf.isa.rules import one_dtype, one_shape


def twice_a_row(chip: Chip, row: Row, ins: Instruction) -> int:
    """Two cycles
    for each row."""
    return 2 * ins.operands[0].shape[0]


def at_most(chip: Chip, ins: Instruction, rows: int) -> str | None:
    """Not too many rows."""
    return None


def mend(dst: torch.Tensor, a: torch.Tensor, factor: float, times: int = 1) -> torch.Tensor:
    """dst = a, mended"""
    return a * factor


@pytest.fixture
def table() -> Isa:
    """An instruction of the invented chip's vector engine, one of its matrix engine, and the flags."""
    isa = Isa("small")
    isa.instruction(
        "vec", twice_a_row, rules=(one_shape, one_dtype(0, 1), partial(at_most, rows=3)), implements="mending",
        source="p. 7", opclass="exp", dst=write("sram", dtypes=("float16",)), a=read("sram", "acc"),
    )(mend)  # fmt: skip
    isa.instruction("mxu", fixed(3), name="Weld", dst=accumulate("acc"))(lambda dst: dst)
    isa.add_flags(fixed(5), "p. 9")
    return isa


@pytest.fixture
def book(table: Isa, chip: Chip) -> Manual:
    return manual(table, chip)


def test_an_instruction_is_explained_by_the_functions_that_are_run(table: Isa, chip: Chip) -> None:
    found = entry(table, chip, "mend")
    assert (found.name, found.engine, found.meaning, found.source) == ("mend", "vec", "dst = a, mended", "p. 7")
    assert found.operands == (
        OperandEntry("dst", "write", ("sram",), ("float16",)),
        OperandEntry("a", "read", ("sram", "acc"), ()),
    )
    assert found.scalars == (("factor", "float"), ("times", "int"))
    assert (found.cycles, found.opclass, found.implements) == ("Two cycles for each row.", "exp", "mending")


def test_every_rule_is_explained_also_one_that_another_function_made(table: Isa, chip: Chip) -> None:
    """What a factory makes has no docstring of its own, and a partial application has partial's."""
    assert entry(table, chip, "mend").constraints == (
        " ".join((one_shape.__doc__ or "").split()),
        "Operands 1 and 2 share one dtype of those listed: the unit converts nothing on the way.",
        "Not too many rows.",
    )
    assert entry(table, chip, "Weld").cycles == " ".join((fixed.__doc__ or "").split())


def test_engines_stand_in_the_hdls_order_and_those_without_instructions_are_left_out(book: Manual, chip: Chip) -> None:
    order = [name for name in chip.engines if name in ("vec", "mxu")]
    assert [chapter.engine for chapter in book.chapters] == order
    assert [e.name for chapter in book.chapters for e in chapter.entries] == (
        ["Weld", "mend"] if order[0] == "mxu" else ["mend", "Weld"]
    )


def test_what_any_engine_may_do_stands_apart_with_its_time(book: Manual) -> None:
    assert [(e.name, e.cycles) for e in book.anywhere] == [("SetFlag", "5, always"), ("WaitFlag", "5, always")]


def test_a_chapter_says_what_the_hdl_says_of_the_engine(book: Manual, chip: Chip) -> None:
    (chapter,) = [c for c in book.chapters if c.engine == "vec"]
    engine = chip.engines["vec"]
    assert (chapter.kind, chapter.hertz, chapter.startup_cycles) == ("vector", 10**9, engine.startup_cycles)
    assert chapter.cores == (("core", 8),)
    assert chapter.clock_origin == "estimate"
    assert [(r.opclass, dict(r.by_dtype)) for r in chapter.rates] == [
        (opclass, {dtype: str(rate) for dtype, rate in table.items()}) for opclass, table in engine.rates.items()
    ]
    assert {r.origin for r in chapter.rates} == {"estimate"}


def test_as_json_what_has_a_name_is_found_by_it(book: Manual) -> None:
    value = book.to_json()
    (chapter,) = [c for c in value["chapters"] if c["engine"] == "vec"]
    assert chapter["cores"] == {"core": 8}
    assert chapter["rates"]["exp"] == {"by_dtype": {"default": "16"}, "origin": "estimate"}
    assert chapter["entries"][0]["scalars"] == [{"name": "factor", "type": "float"}, {"name": "times", "type": "int"}]
    assert [e["name"] for e in value["anywhere"]] == ["SetFlag", "WaitFlag"]


def test_an_unknown_instruction_is_answered_with_the_nearest_whatever_their_case(table: Isa, chip: Chip) -> None:
    with pytest.raises(errors.UsageError, match=r"^DSF-I002: small: no instruction named 'MEN'; did you mean mend\?$"):
        entry(table, chip, "MEN")
    with pytest.raises(errors.UsageError, match=r"named 'xyz'; `dsf-cli isa acme-x1` lists all 4$"):
        entry(table, chip, "xyz")
