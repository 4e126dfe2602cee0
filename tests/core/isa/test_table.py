"""The table itself: one row per instruction, found by name and by primitive, printed whole."""

from __future__ import annotations

import pytest
import torch

from dsf import errors
from dsf.hdl import Chip
from dsf.isa import Instruction, Isa, Row, read, write
from dsf.isa.laws import fixed


def double(dst: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """dst = a + a"""
    return a + a


@pytest.fixture
def small() -> Isa:
    """An instruction set of one instruction."""
    isa = Isa("small")
    isa.instruction("V", fixed(3), implements="twice", source="p. 12", dst=write("UB"), a=read("UB", "L1"))(double)
    return isa


def test_a_declaration_is_a_row(small: Isa) -> None:
    row = small["double"]
    assert (row.name, row.engine, row.summary, row.source) == ("double", "V", "dst = a + a", "p. 12")
    assert [(name, role.mode, role.spaces) for name, role in row.operands] == [
        ("dst", "write", ("UB",)),
        ("a", "read", ("UB", "L1")),
    ]
    assert row.semantics(torch.empty(2), torch.tensor([1.0, 2.0])).tolist() == [2.0, 4.0]


def test_a_declared_function_stays_a_function(small: Isa) -> None:
    assert small["double"].semantics is double


def test_an_instruction_is_declared_once(small: Isa) -> None:
    with pytest.raises(errors.IsaError, match=r"^DSF-I001: small: instruction 'double' is declared twice$"):
        small.add(small["double"])


def test_a_name_in_no_row_is_answered_with_the_nearest(small: Isa) -> None:
    with pytest.raises(
        errors.IsaError, match=r"^DSF-I002: small: no instruction named 'duble'; did you mean double\?$"
    ):
        small["duble"]


def test_rows_are_found_by_the_primitive_they_serve(small: Isa, isa: Isa) -> None:
    assert [row.name for row in small.serving("twice")] == ["double"]
    assert list(small.serving("thrice")) == []
    assert [row.name for row in isa.serving("add")] == ["v.add", "s.add"]


def test_a_flag_stands_in_the_queue_of_the_engine_that_meets_it(isa: Isa) -> None:
    scalars = (("src", "din"), ("dst", "vec"), ("event", 0))
    assert isa.engine_of(Instruction("SetFlag", (), scalars)) == "din"
    assert isa.engine_of(Instruction("WaitFlag", (), scalars)) == "vec"


def test_flags_have_no_value(isa: Isa) -> None:
    with pytest.raises(AssertionError, match="a flag has no value"):
        isa["SetFlag"].semantics()


def test_the_manual_has_one_line_for_each_instruction(isa: Isa) -> None:
    title, *lines = str(isa).splitlines()
    assert title == f"generic(acme-x1): {len(isa.rows)} instructions"
    assert [line.split()[0] for line in lines] == list(isa.rows)
    (add,) = [line for line in lines if line.startswith("  v.add ")]
    assert add.split() == ["v.add", "vec", "dst:sram,", "a:sram,", "b:sram", "dst", "=", "add(a,", "b)"]


def test_every_row_says_what_it_does_and_where_that_is_known_from(isa: Isa, chip: Chip) -> None:
    for row in isa.rows.values():
        assert row.summary, row.name
        assert row.source, row.name
        assert row.engine in chip.engines if row.flag is None else row.engine == ""


def test_a_row_may_name_only_memories_that_exist(isa: Isa, chip: Chip) -> None:
    for row in isa.rows.values():
        for _, role in row.operands:
            assert role.spaces, row.name
            assert set(role.spaces) <= set(chip.memories), row.name


def test_the_written_operand_is_the_first_and_the_only_one(isa: Isa) -> None:
    for row in isa.rows.values():
        modes = [role.mode for _, role in row.operands]
        assert row.flag or (modes[0] in ("write", "accumulate") and set(modes[1:]) <= {"read"}), row.name


def test_a_row_is_a_value_that_is_compared_by_identity(small: Isa) -> None:
    row = small["double"]
    assert isinstance(row, Row)
    assert {row: 1}[row] == 1


def scaled(dst: torch.Tensor, *sources: torch.Tensor, factor: float, steps: int = 1) -> torch.Tensor:
    """dst = the sum of the sources, times factor"""
    return sum(sources) * factor


def test_the_scalars_of_a_row_are_what_its_semantics_take_beside_the_operands(small: Isa, isa: Isa) -> None:
    small.instruction("V", fixed(1), dst=write("UB"), a=read("UB"), b=read("UB"))(scaled)
    assert small["scaled"].scalars == (("factor", "float"), ("steps", "int"))
    assert small["double"].scalars == ()
    assert isa["matmul"].scalars == (("accumulate", "int"),)
    assert isa["SetFlag"].scalars == (("src", "str"), ("dst", "str"), ("event", "int"))
