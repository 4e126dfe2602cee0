"""Every row of every installed table: its in-place form is its semantics, and several lanes are one after the other.

Operands are made from the row's roles alone, in each format that the row takes, dense and in padded rows as kernels
place them; a memory that the table calls wide holds 16-bit numbers in float32, rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from attrs import frozen

from dsf import hdl
from dsf.generic.isa import isa as generic_isa
from dsf.isa import Isa, Role, Row

DTYPES = ("float16", "bfloat16", "float32", "int64", "int32", "int16", "int8", "uint8", "bool")
PITCH = 64  # elements from one row of a padded operand to the next


@cache
def table(name: str) -> Isa:
    if name == "generic":
        return generic_isa(hdl.load("acme-x1"))
    from dsf_ascend.isa import ISA

    return ISA


TABLES = ["generic", *(["ascend"] if find_spec("dsf_ascend") else [])]


@frozen(eq=False)
class Case:
    """One row in one format, with the scalars that its primitive has."""

    isa: Isa
    row: Row
    dtype: str
    scalars: dict[str, Any]

    def __str__(self) -> str:
        extra = ",".join(f"{k}={v}" for k, v in self.scalars.items())
        return f"{self.isa.name}-{self.row.name}-{self.dtype}{'-' + extra if extra else ''}"

    def shapes(self, rows: int, columns: int) -> list[tuple[int, ...]]:
        """The shapes of the operands: what the row's rules ask for."""
        wanted = self.row.implements or ""
        if wanted.startswith("matmul"):
            return [(rows, columns), (rows, 24), (24, columns), (columns,)][: len(self.row.operands)]
        if wanted == "gather":
            return [(rows, columns), (40, columns), (rows, 1)]
        if wanted == "scatter":
            return [(40, columns), (rows, columns), (rows, 1)]
        if wanted.startswith("reduce."):
            return [(rows, 1), (rows, columns)]
        return [(rows, columns)] * len(self.row.operands)

    def operands(self, rows: int = 7, columns: int = 33, padded: bool = False, lanes: int = 0) -> list[torch.Tensor]:
        """Random operands; with *lanes*, as many of each along a leading dimension."""
        shapes = self.shapes(rows, columns)
        lead = (lanes,) if lanes else ()
        made = [
            self._operand(role, name, (*lead, *shape), padded)
            for (name, role), shape in zip(self.row.operands, shapes, strict=True)
        ]
        if self.row.implements == "scatter":  # every row has a place of its own
            made[2] = torch.stack([torch.randperm(40)[:rows] for _ in range(max(lanes, 1))]).view(*lead, rows, 1)
        return made

    def _operand(self, role: Role, name: str, shape: tuple[int, ...], padded: bool) -> torch.Tensor:
        dtype = self.dtype if not role.dtypes or self.dtype in role.dtypes else role.dtypes[0]
        if name == "index":
            return torch.randint(0, 40, shape)
        tensor = random(dtype, shape)
        if self.isa.wide & set(role.spaces) and dtype in ("float16", "bfloat16"):
            tensor = tensor.float()
        if padded and len(shape) > 1 and shape[-1] <= PITCH:
            room = torch.zeros((*shape[:-1], PITCH), dtype=tensor.dtype)
            room[..., : shape[-1]] = tensor
            tensor = room[..., : shape[-1]]
        return tensor


def random(dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    if dtype == "bool":
        return torch.rand(shape) > 0.5
    if dtype in ("float16", "bfloat16", "float32"):
        return torch.randn(shape).to(getattr(torch, dtype))
    return torch.randint(1, 7, shape).to(getattr(torch, dtype))


SCALARS: dict[str, list[dict[str, Any]]] = {
    "matmul": [{"accumulate": 0}, {"accumulate": 1}],
    "matmul.bias": [{"accumulate": 0}, {"accumulate": 1}],
    "fill": [{"value": 3}],
    "iota": [{"start": 5, "step": 2}],
}


def cases(row: Row, isa: Isa) -> Iterator[Case]:
    """The row in every format that it takes."""
    roles = [role for _, role in row.operands]
    governing = [r for r in (roles[1:] or roles) if r.dtypes != ("bool",)] or roles[:1]
    for dtype in DTYPES:
        if all(not r.dtypes or dtype in r.dtypes for r in governing):
            for scalars in SCALARS.get(row.implements or "", [{}]):
                yield Case(isa, row, dtype, scalars)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def meant(case: Case, operands: list[torch.Tensor]) -> torch.Tensor:
    """What the semantics leave in the written operand."""
    result = operands[0].clone(memory_format=torch.contiguous_format)
    return result.copy_(case.row.semantics(*operands, **case.scalars))


ROWS = [(row, table(name)) for name in TABLES for row in table(name).rows.values() if not row.flag]
COMPUTING = [(r, isa) for r, isa in ROWS if r.implements != "cast" and len({o.spaces for _, o in r.operands}) == 1]
each_row = pytest.mark.parametrize(("row", "isa"), ROWS, ids=[f"{isa.name}-{row.name}" for row, isa in ROWS])


@each_row
def test_semantics_give_the_written_operand_and_change_nothing_else(row: Row, isa: Isa) -> None:
    tried = list(cases(row, isa))
    assert tried
    for case in tried:
        operands = case.operands()
        before = [bits(o).clone() for o in operands]
        value = row.semantics(*operands, **case.scalars)
        assert value.shape == operands[0].shape, str(case)
        assert all(torch.equal(bits(o), b) for o, b in zip(operands, before, strict=True)), str(case)


@pytest.mark.parametrize(("row", "isa"), COMPUTING, ids=[f"{isa.name}-{row.name}" for row, isa in COMPUTING])
def test_semantics_compute_in_the_written_operands_format(row: Row, isa: Isa) -> None:
    """Nothing is promoted to a wider format on the way, which the machine would then round a second time."""
    for case in cases(row, isa):
        operands = case.operands()
        assert row.semantics(*operands, **case.scalars).dtype == operands[0].dtype, str(case)


@each_row
def test_the_fast_form_is_the_semantics_bit_for_bit(row: Row, isa: Isa) -> None:
    for case in cases(row, isa):
        for padded in (False, True):
            operands = case.operands(padded=padded)
            wanted = meant(case, operands)
            if row.fast is not None:
                row.fast(*operands, **case.scalars)
                assert torch.equal(bits(operands[0]), bits(wanted)), str(case)


@each_row
def test_lanes_are_one_core_after_the_other_bit_for_bit(row: Row, isa: Isa) -> None:
    for case in cases(row, isa):
        for rows, columns in ((1, 33), (7, 1), (7, 33), (2, 3), (24, 40)):
            operands = case.operands(rows, columns, padded=True, lanes=3)
            alone = [meant(case, [o[lane] for o in operands]) for lane in range(3)]
            if row.lanes is not None:
                row.lanes(*operands, **case.scalars)
                for lane, wanted in enumerate(alone):
                    assert torch.equal(bits(operands[0][lane]), bits(wanted)), f"{case} {rows}x{columns}"


def test_most_rows_have_a_form_in_place_and_one_for_lanes() -> None:
    """Without them the comparisons above would compare nothing."""
    assert sum(row.fast is not None for row, _ in ROWS) > 0.9 * len(ROWS)
    assert sum(row.lanes is not None for row, _ in ROWS) > 0.9 * len(ROWS)
