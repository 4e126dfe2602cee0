"""Cycles of the 910B family's instructions against the vendor's formulas, computed by hand.

asc-devkit guides: Mmad takes dt + ceil16(m) ceil16(n) ceil_k0(k) / (16 x 16 x cube_k), cube_k = 32 for int8, 16 for
float16 and bfloat16, 4 for float32; LoadData moves 256 B a cycle to L0A and 128 to L0B, L1 to BT 32; vector rates per
class and format. ini AICoreMemoryRates: L2 to a core 110 B a cycle, L2 write 86, UB to main memory 64. The start-up
cycles are the description's: 16 for Mmad and L1 paths, 85 for main memory, 14 for vectors.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dsf.hdl import Chip
from dsf.isa import Affine, Instruction, Operand
from dsf.isa.program import contiguous
from dsf_ascend.isa import ISA

MMAD, PATH, MAIN, VECTOR = 16, 16, 85, 14
Cycles = Callable[..., int]


def test_start_up_cycles_are_those_of_the_description(chip: Chip) -> None:
    assert chip.engines["M"].startup_cycles == MMAD
    assert chip.engines["V"].startup_cycles == VECTOR
    assert {chip.paths[p].startup_cycles for p in (("L1", "L0A"), ("L1", "L0B"), ("L1", "BT"))} == {PATH}
    assert {chip.paths[p].startup_cycles for p in (("GM", "L1"), ("GM", "UB"), ("UB", "GM"), ("L0C", "GM"))} == {MAIN}


@pytest.mark.parametrize(
    ("m", "k", "n", "dtype", "wanted"),
    [
        (16, 16, 16, "float16", 1),
        (1, 1, 1, "float16", 1),
        (17, 16, 16, "float16", 2),
        (16, 17, 16, "float16", 2),
        (128, 64, 256, "float16", 512),  # 8 x 16 x 4 fractals
        (128, 64, 256, "bfloat16", 512),
        (16, 8, 16, "float32", 2),  # 16 x 16 x 8 / (16 x 16 x 4)
        (16, 16, 16, "float32", 4),
        (128, 64, 256, "float32", 2048),
    ],
)
def test_mmad_takes_one_fractal_a_cycle(cycles: Cycles, m: int, k: int, n: int, dtype: str, wanted: int) -> None:
    operands = ("L0C", (m, n), "float32"), ("L0A", (m, k), dtype), ("L0B", (k, n), dtype)
    assert cycles("Mmad", *operands) == MMAD + wanted
    assert cycles("Mmad.bias", *operands, ("BT", (n,), "float32")) == MMAD + wanted


@pytest.mark.parametrize(("m", "k", "n", "wanted"), [(16, 32, 16, 1), (16, 33, 16, 2), (128, 64, 256, 256)])
def test_mmad_of_int8_takes_twice_the_depth_a_cycle(cycles: Cycles, m: int, k: int, n: int, wanted: int) -> None:
    operands = ("L0C", (m, n), "int32"), ("L0A", (m, k), "int8"), ("L0B", (k, n), "int8")
    assert cycles("Mmad.s8", *operands) == MMAD + wanted


@pytest.mark.parametrize(
    ("name", "m", "k", "n", "dtype", "macs"),
    [
        ("Mmad", 16, 16, 16, "float16", 4096),
        ("Mmad", 17, 1, 1, "float16", 8192),
        ("Mmad", 16, 8, 16, "float32", 2048),
        ("Mmad.s8", 1, 33, 1, "int8", 16384),
        ("Mmad.bias", 1, 16, 16, "float16", 4096),
    ],
)
def test_multiply_accumulates_count_with_their_padding(
    chip: Chip, name: str, m: int, k: int, n: int, dtype: str, macs: int
) -> None:
    shapes = [(m, n), (m, k), (k, n), (n,)][: len(ISA[name].operands)]
    formats = [ISA[name].operands[0][1].dtypes[0], dtype, dtype, "float32"]
    operands = tuple(Operand("L0A", s, contiguous(s), d, Affine()) for s, d in zip(shapes, formats, strict=False))
    count = ISA[name].macs
    assert count is not None
    assert count(chip, Instruction(name, operands)) == macs


def test_only_products_count_as_matrix_work() -> None:
    assert all((row.macs is not None) == (row.engine == "M") for row in ISA.rows.values())


@pytest.mark.parametrize(
    ("name", "target", "source", "wanted"),
    [
        ("LoadData.L12L0A", ("L0A", (64, 64), "float16"), ("L1", (64, 64), "float16"), PATH + 32),  # 8192 / 256
        ("LoadData.L12L0B", ("L0B", (64, 64), "float16"), ("L1", (64, 64), "float16"), PATH + 64),  # 8192 / 128
        ("DataCopy.L12BT", ("BT", (128,), "float32"), ("L1", (128,), "float32"), PATH + 16),  # 512 / 32
        ("DataCopy.GM2L1", ("L1", (110, 64), "float16"), ("GM", (110, 64), "float16"), MAIN + 128),  # 14080 / 110
        ("DataCopy.GM2UB", ("UB", (1100,), "int8"), ("GM", (1100,), "int8"), MAIN + 11),  # 1120 / 110, whole blocks
        ("DataCopy.UB2GM", ("GM", (1024,), "float32"), ("UB", (1024,), "float32"), MAIN + 64),  # 4096 / 64
        ("Fixpipe", ("GM", (86, 64), "float16"), ("L0C", (86, 64), "float32"), MAIN + 128),  # 11008 / 86
        ("Fixpipe", ("GM", (86, 64), "float32"), ("L0C", (86, 64), "float32"), MAIN + 256),
    ],
)
def test_a_copy_takes_its_bytes_over_the_path(
    cycles: Cycles,
    name: str,
    target: tuple[str, tuple[int, ...], str],
    source: tuple[str, tuple[int, ...], str],
    wanted: int,
) -> None:
    assert cycles(name, target, source) == wanted


def test_a_strided_copy_moves_whole_blocks_of_32_bytes(cycles: Cycles) -> None:
    """64 rows of 10 bytes: 2048 bytes at 110 a cycle, wherever the gaps are."""
    dense, apart = (64, 5), ("GM", (64, 5), "float16", (576, 1))
    assert cycles("DataCopy.GM2UB", ("UB", dense, "float16"), apart) == MAIN + 19
    assert cycles("DataCopy.UB2GM", apart, ("UB", dense, "float16")) == MAIN + 32


@pytest.mark.parametrize(
    ("name", "dtype", "count", "rate"),
    [
        ("Add", "float16", 3, 128), ("Add", "float32", 3, 64), ("Add", "int16", 3, 128), ("Add", "int32", 3, 64),
        ("Mul", "float16", 3, 128), ("Max", "float32", 3, 64), ("Abs", "float16", 2, 128),
        ("Exp", "float16", 2, 32), ("Exp", "float32", 2, 32), ("Ln", "float32", 2, 32), ("Sqrt", "float16", 2, 32),
        ("Div", "float16", 3, 32), ("Div", "float32", 3, 32),
        ("Rsqrt", "float16", 2, 128), ("Rsqrt", "float32", 2, 64), ("Reciprocal", "float32", 2, 64),
        ("Duplicate", "float16", 1, 128),
    ],
)  # fmt: skip
def test_a_vector_instruction_takes_its_elements_over_the_guides_rate(
    cycles: Cycles, name: str, dtype: str, count: int, rate: int
) -> None:
    assert cycles(name, *[("UB", (3840,), dtype)] * count) == VECTOR + 3840 // rate


@pytest.mark.parametrize(("dtype", "wanted"), [("float16", 210), ("float32", 420)])
def test_a_reduction_takes_seven_cycles_a_repeat(cycles: Cycles, dtype: str, wanted: int) -> None:
    """128 / 7 or 64 / 7 elements a cycle over 3840."""
    assert cycles("ReduceSum", ("UB", (1, 1), dtype), ("UB", (1, 3840), dtype)) == VECTOR + wanted
    assert cycles("ReduceMax", ("UB", (1, 1), dtype), ("UB", (1, 3840), dtype)) == VECTOR + wanted


@pytest.mark.parametrize(
    ("to", "source", "rate"),
    [
        ("float16", "float32", 64), ("float32", "float16", 64), ("bfloat16", "float32", 64), ("float16", "int16", 128),
        ("float16", "int8", 128), ("int64", "int32", 32), ("int32", "int64", 32), ("float32", "int64", 32),
    ],
)  # fmt: skip
def test_a_cast_goes_by_its_wider_format_and_int64_by_32(cycles: Cycles, to: str, source: str, rate: int) -> None:
    assert cycles("Cast", ("UB", (3840,), to), ("UB", (3840,), source)) == VECTOR + 3840 // rate


def test_a_selection_and_a_comparison_go_at_the_rate_of_their_numbers(cycles: Cycles) -> None:
    half, mask = ("UB", (3840,), "float16"), ("UB", (3840,), "bool")
    assert cycles("Select", half, mask, half, half) == VECTOR + 30
    assert cycles("Compare.LT", mask, half, half) == VECTOR + 30


def test_the_scalar_unit_takes_33_cycles_an_element(cycles: Cycles) -> None:
    """The guide's measurement: 67108864 additions in 1239689 us on one core at 1.8 GHz are 33.25 cycles each."""
    assert cycles("Scalar.add", *[("UB", (100,), "int64")] * 3) == 3300


def test_gathered_rows_start_up_one_by_one(cycles: Cycles) -> None:
    """Ten rows of 1100 bytes."""
    found, table = ("UB", (10, 550), "float16"), ("GM", (49152, 550), "float16")
    assert cycles("DataCopy.Gather", found, table, ("UB", (10, 1), "int64")) == 10 * MAIN + 100


@pytest.mark.parametrize(
    ("name", "form", "m", "k", "n", "wanted"),
    [
        ("Mmad.hf32", "float32", 16, 8, 16, 1),  # cube_k = 8
        ("Mmad.hf32", "float32", 128, 64, 256, 1024),
        ("Mmad.hf32.away", "float32", 128, 64, 256, 1024),
        ("Mmad.s4", "int8", 16, 64, 16, 1),  # cube_k = 64
        ("Mmad.s4", "int8", 128, 64, 256, 128),
        ("Mmad.s4", "int8", 16, 65, 16, 2),
    ],
)
def test_hf32_and_int4_go_at_their_own_rates(
    cycles: Cycles, name: str, form: str, m: int, k: int, n: int, wanted: int
) -> None:
    acc = "int32" if form == "int8" else "float32"
    operands = ("L0C", (m, n), acc), ("L0A", (m, k), form), ("L0B", (k, n), form)
    assert cycles(name, *operands) == MMAD + wanted
    assert cycles(f"{name}.bias", *operands, ("BT", (n,), acc)) == MMAD + wanted


@pytest.mark.parametrize(
    ("name", "dtype", "count", "rate"),
    [
        ("Adds", "float16", 2, 128), ("Muls", "float32", 2, 64), ("Relu", "float16", 2, 128),
        ("Copy", "float16", 2, 128),
        ("MulAddDst", "float16", 3, 64), ("MulAddDst", "float32", 3, 32), ("Axpy", "float16", 2, 64),
        ("FusedMulAdd", "float16", 3, 128), ("FusedMulAdd", "float32", 3, 64), ("FusedMulAddRelu", "float32", 3, 64),
    ],
)  # fmt: skip
def test_composite_instructions_go_at_the_guides_rates(
    cycles: Cycles, name: str, dtype: str, count: int, rate: int
) -> None:
    assert cycles(name, *[("UB", (3840,), dtype)] * count) == VECTOR + 3840 // rate


def test_shuffles_go_at_the_guides_rates(cycles: Cycles) -> None:
    """Transpose 128 elements a cycle, Gather 5, Gatherb 42 or 21, GatherMask 64 or 32, Sort32 and MrgSort 2."""
    half, pairs = ("UB", (40, 16), "float16"), ("UB", (16, 2), "float32")
    assert cycles("Transpose", ("UB", (16, 16), "float16"), ("UB", (16, 16), "float16")) == VECTOR + 2
    assert cycles("TransDataTo5HD", ("UB", (64, 16), "float16"), ("UB", (16, 64), "float16")) == VECTOR + 8
    assert cycles("Gather", half, half, ("UB", (40, 16), "int32")) == VECTOR + 128
    assert cycles("Gatherb", half, half, ("UB", (40,), "int32")) == VECTOR + 16  # 640 / 42
    assert cycles("Gatherb", *[("UB", (40, 8), "float32")] * 2, ("UB", (40,), "int32")) == VECTOR + 16  # 320 / 21
    assert cycles("GatherMask", ("UB", (20, 16), "float16"), half) == VECTOR + 10
    assert cycles("GatherMask", ("UB", (20, 8), "float32"), ("UB", (20, 16), "float32")) == VECTOR + 10
    assert cycles("Sort32", ("UB", (4, 32, 2), "float32"), ("UB", (4, 32), "float32"), ("UB", (4, 32), "int32")) == (
        VECTOR + 64
    )
    assert cycles("MrgSort.2", ("UB", (32, 2), "float32"), pairs, pairs) == VECTOR + 32


@pytest.mark.parametrize("name", ["WholeReduceSum", "BlockReduceMax", "PairReduceSum", "RepeatReduceSum"])
def test_every_reduction_is_paid_by_what_it_reads(cycles: Cycles, name: str) -> None:
    """30 repeats of 128 float16, seven cycles each."""
    assert cycles(name, ("UB", (30, 1), "float16"), ("UB", (30, 128), "float16")) == VECTOR + 210


@pytest.mark.parametrize(
    ("name", "space", "stride", "wanted"),
    [
        ("LoadData3D.L0A", "L0A", 1, 32), ("LoadData3D.L0B", "L0B", 1, 64),  # 8192 / 256, / 128
        ("LoadData3D.L0A", "L0A", 2, 16 * 4), ("LoadData3D.L0A", "L0A", 3, 16 * 5),  # 512 / (n + 2): 16 fractals
        ("LoadData3D.L0B", "L0B", 2, 16 * 6), ("LoadData3D.L0B", "L0B", 3, 16 * 7),  # 512 / (n + 4)
    ],
)  # fmt: skip
def test_windows_that_lie_apart_load_more_slowly(chip: Chip, name: str, space: str, stride: int, wanted: int) -> None:
    dst, src = (64, 64), (1, 8, 8, 16)
    operands = tuple(
        Operand(s, shape, contiguous(shape), "float16", Affine()) for s, shape in ((space, dst), ("L1", src))
    )
    ins = Instruction(name, operands, (("kernel_h", 2), ("kernel_w", 2), ("stride_w", stride)))
    assert ISA[name].cycles(chip, ISA[name], ins) == PATH + wanted


def test_loads_that_transpose_and_constants_go_at_their_paths_rates(cycles: Cycles) -> None:
    assert cycles("LoadDataWithTranspose.L0A", ("L0A", (64, 64), "float16"), ("L1", (64, 64), "float16")) == PATH + 32
    assert cycles("LoadDataWithTranspose.L0B", ("L0B", (64, 64), "float16"), ("L1", (64, 64), "float16")) == PATH + 64
    assert cycles("InitConstValue.L0A", ("L0A", (64, 64), "float16")) == PATH + 32
    assert cycles("InitConstValue.L0B", ("L0B", (64, 64), "float16")) == PATH + 64
    assert cycles("InitConstValue.L1", ("L1", (55, 64), "float16")) == MAIN + 64


def test_results_leave_l0c_at_64_elements_a_cycle(cycles: Cycles) -> None:
    """To L1, in the 2 bytes that they have on arrival; to main memory 86 bytes a cycle, of which int8 fills 64."""
    assert cycles("Fixpipe", ("L1", (64, 64), "float16"), ("L0C", (64, 64), "float32")) == PATH + 64
    assert cycles("Fixpipe", ("GM", (43, 64), "float16"), ("L0C", (43, 64), "float32")) == MAIN + 64
    assert cycles("Fixpipe.REQ8", ("GM", (43, 64), "int8"), ("L0C", (43, 64), "int32")) == MAIN + 43
    assert cycles("DataCopy.L12FB", ("FB", (64,), "float32"), ("L1", (64,), "float32")) == PATH + 8


def test_flags_are_free(cycles: Cycles) -> None:
    assert cycles("SetFlag") == cycles("WaitFlag") == 0


def test_no_product_beats_the_peak(chip: Chip, cycles: Cycles) -> None:
    """A tile as large as L0A, L0B and L0C allow: 353.9 TFLOPS are 24 cores x 1.8 GHz x 8192 FLOP a cycle."""
    m, k, n = 128, 128, 256
    took = cycles("Mmad", ("L0C", (m, n), "float32"), ("L0A", (m, k), "float16"), ("L0B", (k, n), "float16"))
    flops = 2 * m * k * n * 24 * 1.8e9 / took
    assert 0.98 * 353.9e12 < flops < 353.9e12
    assert chip.peak_flops("float16") == 353_894_400_000_000
