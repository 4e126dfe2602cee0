"""Matrix products: exact whole numbers of any length, numbers that change on their way in, a bias to start from."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from attrs import evolve

from dsf.hdl import Chip, FrozenDict, Rule
from dsf.isa import Affine, Instruction, Isa, Operand
from dsf.isa.products import INT4, INT8, Product, WholeProduct, add_matrix

K = 3000  # beyond two slabs of int8


@pytest.fixture
def numbers() -> tuple[torch.Tensor, torch.Tensor]:
    """Two int8 matrices whose sums are odd and far beyond 2^24, where float32 has even numbers only."""
    a, b = torch.full((2, K), 127, dtype=torch.int8), torch.full((K, 3), 127, dtype=torch.int8)
    a[1, ::2], b[::3, 1], b[0] = -128, -127, 126
    return a, b


def wanted(a: torch.Tensor, b: torch.Tensor) -> list[list[int]]:
    columns = b.T.tolist()
    return [[sum(x * y for x, y in zip(row, column, strict=True)) for column in columns] for row in a.tolist()]


def test_products_of_int8_are_exact_in_every_form(numbers: tuple[torch.Tensor, torch.Tensor]) -> None:
    a, b = numbers
    product, c = WholeProduct(longest=INT8), torch.zeros(2, 3, dtype=torch.int32)
    assert max(abs(n) for row in wanted(a, b) for n in row) > 2**24
    assert product.semantics(c, a, b, accumulate=0).tolist() == wanted(a, b)
    product.fast(c, a, b, accumulate=0)
    assert c.tolist() == wanted(a, b)
    product.fast(c, a, b, accumulate=1)
    assert c.tolist() == [[2 * n for n in row] for row in wanted(a, b)]
    lanes = torch.zeros(2, 2, 3, dtype=torch.int32)
    product.lanes(lanes, torch.stack([a, a.flip(0)]), torch.stack([b, b]), accumulate=0)
    assert lanes.tolist() == [wanted(a, b), wanted(a, b)[::-1]]


def test_a_sum_of_whole_numbers_wraps_like_an_int32(numbers: tuple[torch.Tensor, torch.Tensor]) -> None:
    a, b = numbers
    full = torch.full((2, 3), 2**31 - 1, dtype=torch.int32)
    after = [[(n + 2**31 - 1 + 2**31) % 2**32 - 2**31 for n in row] for row in wanted(a, b)]
    product = WholeProduct(longest=INT8)
    assert product.semantics(full, a, b, accumulate=1).tolist() == after
    product.fast(full, a, b, accumulate=1)
    assert full.tolist() == after


def test_no_slab_is_longer_than_float32_sums_exactly() -> None:
    assert INT8 * 128 * 128 == INT4 * 8 * 8 == 2**24


def test_what_enters_is_what_is_multiplied() -> None:
    a, b, c = torch.tensor([[1.75, -2.5]]), torch.tensor([[1.25], [1.0]]), torch.zeros(1, 1)
    product = Product(torch.trunc)
    assert product.semantics(c, a, b, accumulate=0).item() == 1 - 2
    product.fast(c, a, b, accumulate=0)
    assert c.item() == -1.0
    product.fast(c, a, b, accumulate=1)
    assert c.item() == -2.0


def test_a_bias_starts_the_sum_and_is_left_out_afterwards() -> None:
    a, b, bias = torch.ones(2, 3), torch.ones(3, 2), torch.tensor([10.0, 20.0])
    product, c = Product(), torch.full((2, 2), 100.0)
    assert product.on_bias(c, a, b, bias, accumulate=0).tolist() == [[13.0, 23.0]] * 2
    assert product.on_bias(c, a, b, bias, accumulate=1).tolist() == [[103.0, 103.0]] * 2
    lanes = torch.zeros(4, 2, 2)
    product.lanes_on_bias(lanes, a.expand(4, 2, 3), b.expand(4, 3, 2), bias.expand(4, 2), accumulate=0)
    assert lanes.tolist() == [[[13.0, 23.0]] * 2] * 4


# What the description says of them


@pytest.fixture
def product(chip: Chip) -> Callable[[str], Instruction]:
    """A product on the invented chip's table, of these operands."""
    acc = {"int8": "int32"}

    def product(dtype: str) -> Instruction:
        places = (("acc", acc.get(dtype, "float32")), ("sram", dtype), ("sram", dtype))
        operands = (Operand(space, (16, 16), (16, 1), kind, Affine()) for space, kind in places)
        return Instruction("matmul.int32" if dtype == "int8" else "matmul", tuple(operands), (("accumulate", 0),))

    return product


def refusals(chip: Chip, isa: Isa, ins: Instruction, **changes: Rule) -> list[str]:
    """What the rules of *ins* say where the chip's numerics are changed."""
    dtypes = FrozenDict({**chip.numerics.dtypes, **changes})
    changed = evolve(chip, numerics=evolve(chip.numerics, dtypes=dtypes))
    return [text for rule in isa[ins.name].rules if (text := rule(changed, ins))]


def test_a_product_is_added_up_as_the_description_says(
    chip: Chip, isa: Isa, product: Callable[[str], Instruction]
) -> None:
    assert refusals(chip, isa, product("float16")) == refusals(chip, isa, product("int8")) == []
    narrow = evolve(chip.numerics.dtypes["float16"], accumulate="float16")
    assert refusals(chip, isa, product("bfloat16"), float16=narrow) == []
    assert refusals(chip, isa, product("float16"), float16=narrow) == [
        "products of float16 added up in float32; acme-x1 adds them up in float16"
    ]


def test_a_product_of_a_form_needs_a_chip_that_has_it(chip: Chip, product: Callable[[str], Instruction]) -> None:
    table = Isa("toy")
    add_matrix(table, "mxu", "matmul", "acc", "sram", "sram", ["float32"], form="tf32")
    assert refusals(chip, table, product("float32"), tf32=Rule("native", "host", "float32")) == []
    assert refusals(chip, table, product("float32")) == ["acme-x1 has no products of tf32 (host)"]
