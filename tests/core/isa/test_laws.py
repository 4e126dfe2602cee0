"""Cycle laws against arithmetic by hand, on the invented chip.

Its numbers: hbm to sram 64 B a cycle after 64 cycles, acc to sram 128 after 16; vec starts in 8 cycles, then does 64
float16 or 32 float32 elements a cycle, 16 of the exp class, 8 of a reduction; the scalar engine does one element in 8
cycles; mxu starts in 16 cycles, then does 2048 multiply-accumulates of float16 a cycle in tiles of 16 x 16 x 16.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest

from dsf import errors
from dsf.hdl import Chip
from dsf.isa import Affine, Instruction, Isa, Operand
from dsf.isa.laws import rate
from dsf.isa.program import contiguous


def operand(space: str, shape: Sequence[int], dtype: str, stride: Sequence[int] | None = None) -> Operand:
    dims = tuple(shape)
    return Operand(space, dims, tuple(stride or contiguous(dims)), dtype, Affine(), 0 if space == "hbm" else None)


def cycles(chip: Chip, isa: Isa, name: str, *operands: Operand) -> int:
    return isa[name].cycles(chip, isa[name], Instruction(name, operands))


def vector(chip: Chip, isa: Isa, name: str, dtype: str, shape: Sequence[int], count: int = 2) -> int:
    return cycles(chip, isa, name, *(operand("sram", shape, dtype) for _ in range(count)))


@pytest.mark.parametrize(
    ("name", "dtype", "count", "wanted"),
    [
        ("v.add", "float16", 3, 8 + 16),  # 1024 / 64
        ("v.add", "float32", 3, 8 + 32),
        ("v.mul", "bfloat16", 3, 8 + 16),
        ("v.exp", "float16", 2, 8 + 64),  # 1024 / 16
        ("v.div", "float32", 3, 8 + 64),
        ("v.fill", "float32", 1, 8 + 32),
        ("s.add", "int64", 3, 8192),
    ],
)
def test_a_vector_instruction_takes_its_elements_over_its_rate(
    chip: Chip, isa: Isa, name: str, dtype: str, count: int, wanted: int
) -> None:
    assert vector(chip, isa, name, dtype, (1024,), count) == wanted


def test_a_part_of_a_cycle_is_a_cycle(chip: Chip, isa: Isa) -> None:
    assert [vector(chip, isa, "v.exp", "float32", (n,)) for n in (1, 16, 17)] == [9, 9, 10]


def test_rows_that_lie_apart_are_taken_one_by_one(chip: Chip, isa: Isa) -> None:
    """10 rows of 40 float32: densely 400 / 32 = 12.5 cycles, apart 10 times 2."""
    dense, apart = operand("sram", (10, 40), "float32"), operand("sram", (10, 40), "float32", (64, 1))
    assert cycles(chip, isa, "v.neg", dense, dense) == 8 + 13
    assert cycles(chip, isa, "v.neg", apart, dense) == 8 + 20
    assert cycles(chip, isa, "v.neg", dense, apart) == 8 + 20


def test_what_is_broadcast_costs_nothing_extra(chip: Chip, isa: Isa) -> None:
    tile, one = operand("sram", (10, 64), "float32"), operand("sram", (10, 64), "float32", (0, 0))
    row = operand("sram", (10, 64), "float32", (0, 1))
    assert cycles(chip, isa, "v.add", tile, tile, one) == 8 + 20
    assert cycles(chip, isa, "v.add", tile, tile, row) == 8 + 20


def test_a_matrix_by_columns_is_as_dense_as_one_by_rows(chip: Chip, isa: Isa) -> None:
    turned = operand("sram", (10, 64), "float32", (1, 10))
    assert cycles(chip, isa, "v.neg", turned, turned) == 8 + 20


def test_the_wider_format_of_a_cast_sets_its_rate(chip: Chip, isa: Isa) -> None:
    narrow, wide = operand("sram", (1024,), "float16"), operand("sram", (1024,), "float32")
    assert cycles(chip, isa, "v.cast", narrow, wide) == cycles(chip, isa, "v.cast", wide, narrow) == 8 + 32
    assert cycles(chip, isa, "v.cast", narrow, narrow) == 8 + 16


def test_a_reduction_is_paid_by_what_it_reads(chip: Chip, isa: Isa) -> None:
    """4 x 100 float32 at 8 a cycle."""
    result, source = operand("sram", (4, 1), "float32"), operand("sram", (4, 100), "float32")
    assert cycles(chip, isa, "v.reduce.sum", result, source) == 8 + 50


@pytest.mark.parametrize(
    ("source", "target", "wanted"),
    [
        (operand("hbm", (32, 64), "float16"), operand("sram", (32, 64), "float16"), 64 + 64),  # 4096 / 64
        (operand("hbm", (1,), "float16"), operand("sram", (1,), "float16"), 64 + 1),
        (operand("hbm", (32, 8), "float16", (576, 1)), operand("sram", (32, 8), "float16"), 64 + 32),
        (operand("hbm", (32, 8), "float16"), operand("sram", (32, 8), "float16", (32, 1)), 64 + 32),
        (operand("hbm", (8, 64), "float16", (0, 1)), operand("sram", (8, 64), "float16"), 64 + 16),
        (operand("acc", (64, 64), "float32"), operand("hbm", (64, 64), "float16"), 64 + 128),  # the narrower: 8192 / 64
        (operand("acc", (64, 64), "float32"), operand("sram", (64, 64), "float32"), 16 + 128),  # 16384 / 128
        (operand("hbm", (0, 8), "float16"), operand("sram", (0, 8), "float16"), 64),
    ],
)
def test_a_copy_starts_up_and_moves_whole_bursts(
    chip: Chip, isa: Isa, source: Operand, target: Operand, wanted: int
) -> None:
    """A row of 16 bytes that lies apart on either side moves 64 bytes, the alignment of sram."""
    assert cycles(chip, isa, f"copy.{source.space}.{target.space}", target, source) == wanted


def test_every_gathered_row_starts_up_on_its_own(chip: Chip, isa: Isa) -> None:
    """Ten rows of 64 float16: ten times 64 cycles, and 1280 bytes at 64 a cycle."""
    found, table = operand("sram", (10, 64), "float16"), operand("hbm", (5000, 64), "float16")
    index = operand("sram", (10, 1), "int64")
    assert cycles(chip, isa, "gather", found, table, index) == 640 + 20


@pytest.mark.parametrize(
    ("m", "k", "n", "dtype", "macs", "wanted"),
    [
        (16, 16, 16, "float16", 4096, 16 + 2),
        (1, 16, 16, "float16", 4096, 16 + 2),  # a row costs a tile
        (17, 17, 17, "float16", 32768, 16 + 16),
        (64, 128, 64, "bfloat16", 524288, 16 + 256),
        (16, 8, 16, "float32", 2048, 16 + 4),  # tiles of k = 8, 512 a cycle
        (16, 9, 16, "float32", 4096, 16 + 8),
    ],
)
def test_a_product_is_padded_to_tiles_and_paid_by_them(
    chip: Chip, isa: Isa, m: int, k: int, n: int, dtype: str, macs: int, wanted: int
) -> None:
    c, a, w = operand("acc", (m, n), "float32"), operand("sram", (m, k), dtype), operand("sram", (k, n), dtype)
    count = isa["matmul"].macs
    assert count is not None
    assert count(chip, Instruction("matmul", (c, a, w))) == macs
    assert cycles(chip, isa, "matmul", c, a, w) == wanted


def test_flags_take_no_time(chip: Chip, isa: Isa) -> None:
    assert cycles(chip, isa, "SetFlag") == cycles(chip, isa, "WaitFlag") == 0


def test_a_rate_is_the_classs_own_or_the_default(chip: Chip) -> None:
    vec, mxu = chip.engines["vec"], chip.engines["mxu"]
    assert rate(vec, "exp", "float16") == 16
    assert rate(vec, "add", "float16") == 64  # no row for add
    assert rate(vec, "add", "int64") == 32  # no number for int64
    assert rate(chip.engines["sca"], "div", "int64") == Fraction(1, 8)
    with pytest.raises(errors.IsaError, match=r"^DSF-I003: engine mxu: the HDL states no rate of 'mac' for float64$"):
        rate(mxu, "mac", "float64")
