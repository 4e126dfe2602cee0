"""Every instruction that SmolLM2 uses acts: spoil what it computes and logits change, double its cycles and the
predicted time does, delete it where it has no value and the program breaks the rules of order."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from tests.sensitivity.bench import said, with_isa
from tests.sensitivity.conftest import CHIPS, Table
from tests.sensitivity.fields import chip_of, document_of
from tests.sensitivity.steps import SPOILERS, Step, deleted, doubled, replaced, small_model, smollm2, spoilt, step

from dsf.disassembly import disassemble
from dsf.isa import Row
from dsf.isa.program import torch_dtype
from dsf.plugins import View, registry


@cache
def view_of(chip: str) -> View:
    return registry().view(chip_of(document_of(chip)))


def dtype_of(chip: str) -> torch.dtype:
    return torch_dtype(view_of(chip).chip.numerics.preferred)


@cache
def used(chip: str) -> Step:
    """A step of the real model."""
    return step(view_of(chip), smollm2(dtype_of(chip)), "timing")


@cache
def small(chip: str, fidelity: str = "isa", exact: bool = False) -> Step:
    """A step of the small model, nothing spoilt."""
    return step(view_of(chip), small_model(dtype_of(chip)), fidelity, exact)


def rows_of(chip: str, valued: bool) -> list[Row]:
    """The rows of the instructions that SmolLM2 uses: those with a value, or those that synchronise."""
    rows = [view_of(chip).isa()[name] for name in used(chip).instructions]
    return [row for row in rows if row.synchronises != valued]


def with_row(chip: str, row: Row) -> View:
    return with_isa(view_of(chip), replaced(view_of(chip).isa(), row))


def unlike(chip: str, row: Row, exact: bool) -> str | None:
    """The way of spoiling *row* that changed the logits; None if none did. An error is a change too."""
    forms = ("semantics",) if exact else ("semantics", "fast", "lanes")
    for how, spoil in SPOILERS.items():
        wrong = with_row(chip, spoilt(row, spoil, forms))
        found = said(lambda wrong=wrong: step(wrong, small_model(dtype_of(chip)), "isa", exact))
        if isinstance(found, str) or not found.computes_as(small(chip, exact=exact)):
            return how
    return None


def later(chip: str, row: Row) -> float | None:
    """The device time of a step with the cycles of *row* doubled, in ms; None if it is as before."""
    found = step(with_row(chip, doubled(row)), small_model(dtype_of(chip)), "timing").device_milliseconds
    return found if found != small(chip, "timing").device_milliseconds else None


@pytest.mark.parametrize("chip", CHIPS)
def test_the_small_model_uses_what_the_real_one_uses(chip: str) -> None:
    assert used(chip).instructions == small(chip).instructions
    assert len(used(chip).instructions) > 20


@pytest.mark.parametrize("exact", [False, True], ids=["fast", "exact"])
@pytest.mark.parametrize("chip", CHIPS)
def test_a_spoilt_instruction_changes_the_logits(chip: str, exact: bool, table: Table) -> None:
    silent = []
    for row in rows_of(chip, valued=True):
        how = unlike(chip, row, exact)
        if how is None:
            silent.append(row.name)
        else:
            table.add(f"{chip} {row.name}", how, f"the logits{' (exact)' if exact else ''}")
    assert silent == [], f"{chip}: the logits are the same without the results of {', '.join(silent)}"


@pytest.mark.parametrize("chip", CHIPS)
def test_twice_the_cycles_change_the_predicted_time(chip: str, table: Table) -> None:
    silent, before = [], small(chip, "timing").device_milliseconds
    for row in rows_of(chip, valued=True):
        found = later(chip, row)
        if found is None:
            silent.append(row.name)
        else:
            table.add(f"{chip} {row.name}", "cycles x 2", f"device time, {before:.6f} to {found:.6f} ms")
    assert silent == [], f"{chip}: the time is the same with twice the cycles of {', '.join(silent)}"


@pytest.mark.parametrize("chip", CHIPS)
def test_a_program_without_a_flag_is_refused(chip: str, table: Table) -> None:
    """Every program that has it is refused without it."""
    unnoticed = []
    rows = rows_of(chip, valued=False)
    assert rows
    for row in rows:
        having = [p for p in used(chip).programs if any(ins.name == row.name for ins, _ in p.instructions())]
        broken = [disassemble(deleted(program, row.name), view_of(chip)).findings for program in having]
        unnoticed += [f"{row.name} in {p.name}" for p, found in zip(having, broken, strict=True) if not found]
        table.add(f"{chip} {row.name}", f"deleted from {len(having)} programs", broken[0][0][:80])
    assert unnoticed == []


# the other way: what is dead is found


def test_an_instruction_that_no_program_has_is_found() -> None:
    """A row of the table that SmolLM2 does without: whatever becomes of it, nothing changes."""
    chip = CHIPS[0]
    isa = view_of(chip).isa()
    dead = next(row for row in isa.rows.values() if not row.synchronises and row.name not in used(chip).instructions)
    assert unlike(chip, dead, exact=False) is None
    assert later(chip, dead) is None


def test_a_program_is_only_broken_by_what_is_deleted() -> None:
    for program in used(CHIPS[0]).programs:
        assert deleted(program, "no such instruction") == program
        assert disassemble(program, view_of(CHIPS[0])).findings == ()
