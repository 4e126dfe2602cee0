"""Every row of every installed table: its in-place form is its semantics, and several lanes are one after the other.

Operands are made from the row's roles alone, in each format that the row takes, dense and in padded rows as kernels
place them; a memory that the table calls wide holds 16-bit numbers in float32, rounded. All forms are equal bit for
bit, but for products of fractions: the order in which a product's terms are added is the host library's own and differs
with its shapes and strides from one processor to the next, so these are equal within what an order can change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from attrs import frozen

from dsf import hdl
from dsf.generic.isa import isa as generic_isa
from dsf.isa import Isa, Role, Row
from dsf.isa.program import dtype_name

DTYPES = ("float16", "bfloat16", "float32", "int64", "int32", "int16", "int8", "uint8", "bool", "float8_e4m3fn",
          "float8_e5m2")  # fmt: skip
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
        if wanted in SHAPES:
            return SHAPES[wanted](rows, columns, 32 // getattr(torch, self.dtype).itemsize)
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
            return torch.randint(0, 8, shape).to(getattr(torch, role.dtypes[0]))
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
    if "float" in dtype:
        return torch.randn(shape).to(getattr(torch, dtype))
    return torch.randint(1, 7, shape).to(getattr(torch, dtype))


def fractals(block: int) -> list[tuple[int, ...]]:
    """c (5, 20), a (5, 20) and b (20, 20) in the cube's orders."""
    return [(2, 16, 16), (1, -(-20 // block), 16, block), (-(-20 // block), 2, 16, block)]


SHAPES: dict[str, Callable[[int, int, int], list[tuple[int, ...]]]] = {
    "matmul.fractal": lambda r, c, block: fractals(block),
    "matmul.fractal.bias": lambda r, c, block: [*fractals(block), (20,)],
    "store.matrix.nz": lambda r, c, block: [(-(-c // block), r, block), (r, c)],
    "load.nz": lambda r, c, block: [(-(-c // block), r, block), (r, c)],
    "store.nd": lambda r, c, block: [(r, c), (-(-c // block), r, block)],
    "load.padded": lambda r, c, block: [(r, c + 3), (r, c)],
    "store.padded": lambda r, c, block: [(r, c), (r, c + 3)],
    "load.a.transposed": lambda r, c, block: [(c, r), (r, c)],
    "load.b.transposed": lambda r, c, block: [(c, r), (r, c)],
    "load.a.windows": lambda r, c, block: [(5 * 4, 2 * 6 * block), (2, 9, 8, block)],
    "load.b.windows": lambda r, c, block: [(5 * 4, 2 * 6 * block), (2, 9, 8, block)],
    **dict.fromkeys(("repeat.sum", "repeat.max", "repeat.min"), lambda r, c, block: [(r, 1), (r, c)]),
    **dict.fromkeys(("block.sum", "block.max", "block.min"), lambda r, c, block: [(r, 3), (r, 3 * block)]),
    "pair.sum": lambda r, c, block: [(r, c), (r, 2 * c)],
    "transpose.square": lambda r, c, block: [(16, 16), (16, 16)],
    "transpose.rows": lambda r, c, block: [(c, 16), (16, c)],
    "broadcast.blocks": lambda r, c, block: [(8 * r, block), (8 * r, 1)],
    "gather.elements": lambda r, c, block: [(r, c), (4, 40), (r, c)],
    "gather.block": lambda r, c, block: [(r, c), (9, r, c), (1,)],
    "take": lambda r, c, block: [(r, c), (r, 40), (r, c)],
    **dict.fromkeys(("put", "put.add"), lambda r, c, block: [(r, 40), (r, c), (r, c)]),
    "gather.blocks": lambda r, c, block: [(8 * r, block), (40, block), (8 * r,)],
    "gather.pattern": lambda r, c, block: [(r, c), (r, 4 * c)],
    "gather.mask": lambda r, c, block: [(r * c,)] * 3,
    "sort.rows": lambda r, c, block: [(r, 32, 2), (r, 32), (r, 32)],
    "sort.merge2": lambda r, c, block: [(r + c, 2), (r, 2), (c, 2)],
    "sort.merge3": lambda r, c, block: [(2 * r + c, 2), (r, 2), (c, 2), (r, 2)],
    "sort.merge4": lambda r, c, block: [(2 * r + 2 * c, 2), (r, 2), (c, 2), (r, 2), (c, 2)],
    **dict.fromkeys(
        ("store.matrix.vqf322b8", "store.matrix.vreq8", "store.matrix.vdeqf16"),
        lambda r, c, block: [(r, c), (r, c), (c,)],
    ),
}
"""Shapes of rows that ask for their own, for so many rows, columns and numbers to 32 bytes."""

WINDOWS = {"kernel_h": 3, "kernel_w": 2, "stride_h": 2, "stride_w": 2, "dilation_h": 1, "dilation_w": 1, "left": 0,
           "right": 1, "top": 1, "bottom": 1}  # fmt: skip
QUANTS: list[dict[str, Any]] = [{"scale": 0.75, "offset": 3}, {"scale": 0.01, "offset": 0, "relu": 1}]
SCALARS: dict[str, list[dict[str, Any]]] = {
    "fill": [{"value": 3}],
    "iota": [{"start": 5, "step": 2}],
    "store.matrix": [{}, {"relu": 1}],
    "store.matrix.nz": [{}, {"relu": 1}],
    "store.matrix.qf322b8": QUANTS,
    "store.matrix.req8": QUANTS,
    "store.matrix.deqf16": [{"scale": 0.75}, {"scale": 0.75, "relu": 1}],
    "store.matrix.vqf322b8": [{"offset": 3}, {"offset": 0, "relu": 1}],
    "store.matrix.vreq8": [{"offset": 3}, {"offset": 0, "relu": 1}],
    "store.matrix.vdeqf16": [{}, {"relu": 1}],
    "load.padded": [{"left": 1, "value": 2}, {}],
    "load.a.windows": [WINDOWS],
    "load.b.windows": [WINDOWS],
    "gather.pattern": [{"pattern": 3}, {"pattern": 6}],
    "shift_left.scalar": [{"value": 2}],
    "shift_right.scalar": [{"value": 1}],
    "leaky_relu": [{"value": 0.5}],
    "axpy": [{"value": -1.5}],
    "convert.adddeqrelu": [{"scale": 0.25}],
    "convert.castdeq": [{"scale": 0.25, "offset": -2}],
}


def scalars_of(row: Row) -> list[dict[str, Any]]:
    """The scalars to try a row with."""
    wanted = row.implements or ""
    if wanted.startswith("matmul"):
        sizes = {"m": 5, "k": 20, "n": 20} if "fractal" in wanted else {}
        return [{"accumulate": 0, **sizes}, {"accumulate": 1, **sizes}]
    if wanted in SCALARS:
        known = dict(row.scalars)
        return [scalars for scalars in SCALARS[wanted] if scalars.keys() <= known.keys()]
    return [{"value": 2}] if wanted.endswith(".scalar") or wanted.startswith("fill.") else [{}]


def cases(row: Row, isa: Isa) -> Iterator[Case]:
    """The row in every format that it takes."""
    roles = [role for _, role in row.operands]
    governing = next((r for r in (roles[1:] or roles) if r.dtypes != ("bool",)), roles[0])
    for dtype in DTYPES:
        if not governing.dtypes or dtype in governing.dtypes:
            for scalars in scalars_of(row):
                yield Case(isa, row, dtype, scalars)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def unlike(case: Case, got: torch.Tensor, wanted: torch.Tensor, operands: list[torch.Tensor]) -> str:
    """What tells *got* from *wanted*, which *operands* led to; nothing where they are the same."""
    if not (case.row.implements or "").startswith("matmul") or not got.is_floating_point():
        return "" if torch.equal(bits(got), bits(wanted)) else f"{case}: other bits"
    still, sizes = torch.zeros_like(wanted), [o.float().abs().to(o.dtype) for o in operands[1:]]
    size = 2 * case.row.semantics(still, *sizes, **case.scalars) + wanted.abs()  # what was there is no more than this
    terms = 64  # k is less
    apart = (got - wanted).abs()
    return "" if (apart <= terms * 2.0**-24 * size).all() else f"{case}: up to {apart.max().item()} apart"


def meant(case: Case, operands: list[torch.Tensor]) -> torch.Tensor:
    """What the semantics leave in the written operand."""
    result = operands[0].clone(memory_format=torch.contiguous_format)
    value, rounding = case.row.semantics(*operands, **case.scalars), case.row.rounding
    return result.copy_(rounding(value, dtype_name(result.dtype)) if rounding else value)


ROWS = [(row, table(name)) for name in TABLES for row in table(name).rows.values() if not row.synchronises]
COMPUTING = [
    (r, isa) for r, isa in ROWS
    if r.implements != "cast" and r.rounding is None and len({o.spaces for _, o in r.operands}) == 1
]  # fmt: skip
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
                assert not unlike(case, operands[0], wanted, operands)


@each_row
def test_lanes_are_one_core_after_the_other_bit_for_bit(row: Row, isa: Isa) -> None:
    for case in cases(row, isa):
        for rows, columns in ((1, 33), (7, 1), (7, 33), (2, 3), (24, 40)):
            operands = case.operands(rows, columns, padded=True, lanes=3)
            alone = [meant(case, [o[lane] for o in operands]) for lane in range(3)]
            if row.lanes is not None:
                row.lanes(*operands, **case.scalars)
                for lane, wanted in enumerate(alone):
                    assert not unlike(case, operands[0][lane], wanted, [o[lane] for o in operands]), f"{rows}x{columns}"


def test_most_rows_have_a_form_in_place_and_one_for_lanes() -> None:
    """Without them the comparisons above would compare nothing."""
    assert sum(row.fast is not None for row, _ in ROWS) > 0.9 * len(ROWS)
    assert sum(row.lanes is not None for row, _ in ROWS) > 0.9 * len(ROWS)
