"""What the 910B family's instructions compute, against the vendor's descriptions done in Python, number by number."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch

from dsf import errors
from dsf.isa.program import dtype_name
from dsf_ascend.isa import ISA
from dsf_ascend.isa.fractals import from_fractals, to_fractals

SEED = 0


def run(name: str, dst: torch.Tensor, *sources: torch.Tensor, **scalars: Any) -> torch.Tensor:
    """What the instruction leaves in *dst*; the form in place must agree, and in float64 so must the definition."""
    row = ISA[name]
    value = row.semantics(dst, *sources, **scalars)
    result = dst.clone().copy_(row.rounding(value, dtype_name(dst.dtype)) if row.rounding else value)
    assert row.fast is not None
    written = dst.clone()
    row.fast(written, *sources, **scalars)
    assert torch.equal(written.view(torch.uint8), result.view(torch.uint8))
    return result


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(SEED)).to(dtype)


# -- the cube ---------------------------------------------------------------------------------------------------------


def test_hf32_multiplies_what_is_left_of_its_operands() -> None:
    """11 mantissa bits: 1 + 2^-11 stays, 1 + 2^-12 is a tie, to even down and away from zero up."""
    one, acc = torch.ones(1, 1), torch.zeros(1, 1)
    for value, even, away in (
        (1 + 2**-11, 1 + 2**-11, 1 + 2**-11),
        (1 + 2**-12, 1.0, 1 + 2**-11),
        (1 + 2**-13, 1.0, 1.0),
    ):
        a = torch.full((1, 1), value)
        assert run("Mmad.hf32", acc, a, one, accumulate=0).item() == even
        assert run("Mmad.hf32.away", acc, a, one, accumulate=0).item() == away
        assert run("Mmad", acc, a, one, accumulate=0).item() == value


def test_hf32_products_are_those_of_rounded_operands() -> None:
    def short(x: float) -> Fraction:
        exponent = Fraction(2) ** (math.frexp(x)[1] - 12)
        return round(Fraction(x) / exponent) * exponent

    a, b = numbers(3, 5), numbers(5, 2) * 3
    wanted = [
        [sum(short(a[i, k].item()) * short(b[k, j].item()) for k in range(5)) for j in range(2)] for i in range(3)
    ]
    made = ISA["Mmad.hf32"].semantics(torch.zeros(3, 2).double(), a.double(), b.double(), accumulate=0)
    assert torch.allclose(
        made, torch.tensor([[float(x) for x in row] for row in wanted], dtype=torch.float64), rtol=1e-15, atol=0
    )


@pytest.mark.parametrize(("name", "low", "high"), [("Mmad.s8", -128, 127), ("Mmad.s4", -8, 7)])
def test_whole_products_are_exact_whatever_their_length(name: str, low: int, high: int) -> None:
    """Extremes and random ones, longer than one slab of float32; the reference is Python's."""
    a = torch.full((2, 2500), high, dtype=torch.int8)
    a[1] = torch.randint(low, high + 1, (2500,), generator=torch.Generator().manual_seed(1)).to(torch.int8)
    a[1, :3] = low
    b, acc = a.T.contiguous(), torch.tensor([[7, -7], [2**30, -(2**31)]], dtype=torch.int32)
    wanted = [[sum(x * y for x, y in zip(a[i].tolist(), a[j].tolist(), strict=True)) for j in (0, 1)] for i in (0, 1)]
    assert run(name, acc, a, b, accumulate=0).tolist() == wanted
    wrapped = [[(acc[i, j].item() + wanted[i][j] + 2**31) % 2**32 - 2**31 for j in (0, 1)] for i in (0, 1)]
    assert run(name, acc, a, b, accumulate=1).tolist() == wrapped
    bias = torch.tensor([100, -100], dtype=torch.int32)
    assert run(f"{name}.bias", acc, a, b, bias, accumulate=0).tolist() == [[x + 100, y - 100] for x, y in wanted]


def test_a_number_that_is_no_int4_stops_the_product() -> None:
    a, b, acc = torch.full((1, 2), 8, dtype=torch.int8), torch.ones(2, 1, dtype=torch.int8), torch.zeros(1, 1).int()
    for form in (ISA["Mmad.s4"].semantics, ISA["Mmad.s4"].fast, ISA["Mmad.s4"].lanes):
        assert form is not None
        with pytest.raises(errors.DtypeError, match=r"^DSF-N004: 8 \(number 0 of 2\) is no int4; expected -8 to 7"):
            form(acc, a, b, accumulate=0)


# -- out of L0C -------------------------------------------------------------------------------------------------------


def quantised(x: float, scale: float, offset: int, low: int, high: int) -> int:
    """The scale to 19 bits, cut off; the result to the nearest, halves to even."""
    kept = math.floor(Fraction(scale) / Fraction(2) ** (math.frexp(scale)[1] - 11)) * Fraction(2) ** (
        math.frexp(scale)[1] - 11
    )
    return min(max(round(Fraction(x) * kept + offset), low), high)


@pytest.mark.parametrize(("dtype", "low", "high"), [(torch.int8, -128, 127), (torch.uint8, 0, 255)])
@pytest.mark.parametrize("relu", [0, 1])
def test_fixpipe_quantises(dtype: torch.dtype, low: int, high: int, relu: int) -> None:
    floats, wholes = numbers(4, 8) * 50, (numbers(4, 8) * 5000).int()
    scales = [0.3, 1.7, 0.001, 3.0, 0.5, 0.25, 1.0, 2.5]
    for name, source in (("QF322B8_PRE", floats), ("REQ8", wholes)):
        kept = [[max(x, 0) if relu else x for x in row] for row in source.tolist()]
        dst = torch.zeros(4, 8, dtype=dtype)
        for scale in scales:
            wanted = [[quantised(x, scale, 5, low, high) for x in row] for row in kept]
            assert run(f"Fixpipe.{name}", dst, source, scale=scale, offset=5, relu=relu).tolist() == wanted
        each = torch.tensor(scales)
        wanted = [[quantised(x, s, -3, low, high) for x, s in zip(row, each.tolist(), strict=True)] for row in kept]
        assert run(f"Fixpipe.V{name}", dst, source, each, offset=-3, relu=relu).tolist() == wanted


def test_fixpipe_dequantises_to_float16_and_stops_at_its_largest() -> None:
    source, dst = torch.tensor([[3, -7, 2**31 - 1, -(2**31)]], dtype=torch.int32), torch.zeros(1, 4).half()
    assert run("Fixpipe.DEQF16", dst, source, scale=0.5).tolist() == [[1.5, -3.5, 65504.0, -65504.0]]
    assert run("Fixpipe.DEQF16", dst, source, scale=0.5, relu=1).tolist() == [[1.5, 0.0, 65504.0, 0.0]]
    scales = torch.tensor([1.0, 2.0, 2.0**-20, 2.0**-20])
    assert run("Fixpipe.VDEQF16", dst, source, scales).tolist() == [[3.0, -14.0, 2048.0, -2048.0]]


def test_a_scale_keeps_nineteen_bits() -> None:
    """1 + 2^-10 + 2^-11 has 12 mantissa bits: 1 + 2^-10 is left."""
    source, dst = torch.tensor([[1024]], dtype=torch.int32), torch.zeros(1, 1).half()
    assert run("Fixpipe.DEQF16", dst, source, scale=1 + 2**-10 + 2**-11).item() == 1025.0


def test_fixpipe_takes_the_positive_part_and_casts() -> None:
    source = torch.tensor([[1.0009765, -2.0, 3.5, math.nan]])
    assert run("Fixpipe", torch.zeros(1, 4).half(), source).tolist()[0][:3] == [1.0009765625, -2.0, 3.5]
    relu = run("Fixpipe", torch.zeros(1, 4).half(), source, relu=1)
    assert relu.tolist()[0][:3] == [1.0009765625, 0.0, 3.5]
    assert relu[0, 3].isnan()


# -- layouts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "columns", "width"), [(16, 32, 16), (5, 35, 16), (33, 8, 8), (1, 1, 32)])
def test_fractals_are_where_the_guide_puts_them_and_come_back(rows: int, columns: int, width: int) -> None:
    """Element (r, c) is number (c / C0 * rows + r) * C0 + c % C0; what is too much is zero."""
    matrix = torch.arange(1, rows * columns + 1).view(rows, columns)
    blocks = to_fractals(matrix, width)
    flat = [0] * (-(-columns // width) * rows * width)
    for r in range(rows):
        for c in range(columns):
            flat[(c // width * rows + r) * width + c % width] = r * columns + c + 1
    assert blocks.reshape(-1).tolist() == flat
    assert torch.equal(from_fractals(blocks, columns), matrix)


def test_nd2nz_and_nz2nd_are_each_others_inverse() -> None:
    matrix = numbers(7, 35, dtype=torch.float16)
    blocks = run("DataCopy.ND2NZ", torch.zeros(3, 7, 16).half(), matrix)
    assert torch.equal(run("DataCopy.NZ2ND", torch.zeros(7, 35).half(), blocks), matrix)
    assert torch.equal(run("Fixpipe.NZ", torch.zeros(3, 7, 16).half(), matrix.float()), blocks)


def test_rows_are_padded_and_cut() -> None:
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    padded = run("DataCopyPad.GM2UB", torch.zeros(2, 5), rows, left=1, value=9)
    assert padded.tolist() == [[9.0, 1.0, 2.0, 9.0, 9.0], [9.0, 3.0, 4.0, 9.0, 9.0]]
    assert run("DataCopyPad.UB2GM", torch.zeros(2, 2), padded).tolist() == [[9.0, 1.0], [9.0, 3.0]]


@pytest.mark.parametrize(("name", "wanted"), [("Add", [5.0, -1.0]), ("Max", [4.0, 1.0]), ("Min", [1.0, -2.0])])
def test_atomic_stores_combine_with_what_is_there(name: str, wanted: list[float]) -> None:
    assert run(f"DataCopy.Atomic{name}", torch.tensor([4.0, 1.0]), torch.tensor([1.0, -2.0])).tolist() == wanted


def test_results_may_be_added_to_what_is_there() -> None:
    """In float16 2049 is 2048, and so is 2048 + 1."""
    made = run("Fixpipe.AtomicAdd", torch.tensor([4.0, 2048.0]).half(), torch.tensor([1.5, 1.0]))
    assert made.tolist() == [5.5, 2048.0]
    whole = run("Fixpipe.AtomicAdd", torch.tensor([2**30], dtype=torch.int32), torch.tensor([3], dtype=torch.int32))
    assert whole.item() == 2**30 + 3


def test_a_load_may_transpose_or_fill() -> None:
    tile = numbers(16, 32)
    assert run("LoadDataWithTranspose.L0A", torch.zeros(32, 16), tile).tolist() == [
        list(c) for c in zip(*tile.tolist(), strict=True)
    ]
    assert run("InitConstValue.L0B", torch.zeros(2, 3), value=2.5).tolist() == [[2.5] * 3] * 2


@pytest.mark.parametrize(
    "scalars",
    [
        {"kernel_h": 1, "kernel_w": 1},
        {"kernel_h": 3, "kernel_w": 2},
        {"kernel_h": 2, "kernel_w": 3, "stride_h": 2, "stride_w": 3, "left": 2, "right": 1, "top": 1, "bottom": 0},
        {"kernel_h": 2, "kernel_w": 2, "dilation_h": 2, "dilation_w": 3, "left": 1},
    ],
)
def test_the_windows_of_an_image_are_a_convolutions(scalars: dict[str, int]) -> None:
    """Element by element: row = window, column = ((c1 * kernel_h + i) * kernel_w + j) * C0 + c0, zero outside."""
    c1, height, width, c0 = 2, 7, 9, 4
    image = numbers(c1, height, width, c0)
    s = {
        "stride_h": 1,
        "stride_w": 1,
        "dilation_h": 1,
        "dilation_w": 1,
        "left": 0,
        "right": 0,
        "top": 0,
        "bottom": 0,
    } | scalars
    high = (height + s["top"] + s["bottom"] - s["dilation_h"] * (s["kernel_h"] - 1) - 1) // s["stride_h"] + 1
    wide = (width + s["left"] + s["right"] - s["dilation_w"] * (s["kernel_w"] - 1) - 1) // s["stride_w"] + 1
    wanted = torch.zeros(high * wide, c1 * s["kernel_h"] * s["kernel_w"] * c0)
    for window in range(high * wide):
        for column in range(wanted.shape[1]):
            rest, z = divmod(column, c0)
            rest, j = divmod(rest, s["kernel_w"])
            channel, i = divmod(rest, s["kernel_h"])
            y = window // wide * s["stride_h"] + i * s["dilation_h"] - s["top"]
            x = window % wide * s["stride_w"] + j * s["dilation_w"] - s["left"]
            if 0 <= y < height and 0 <= x < width:
                wanted[window, column] = image[channel, y, x, z]
    for name in ("LoadData3D.L0A", "LoadData3D.L0B"):
        assert torch.equal(run(name, torch.zeros_like(wanted), image, **scalars), wanted)


# -- vectors ----------------------------------------------------------------------------------------------------------

X, Y, Z = [1.5, -2.0, 0.25, -8.0], [2.0, 3.0, -4.0, 0.5], [0.5, -1.0, 2.0, 16.0]
VECTORS: dict[str, tuple[list[float], dict[str, float], int]] = {
    "Adds": ([2.5, -1.0, 1.25, -7.0], {"value": 1.0}, 1),
    "Muls": ([3.0, -4.0, 0.5, -16.0], {"value": 2.0}, 1),
    "Maxs": ([1.5, 0.0, 0.25, 0.0], {"value": 0.0}, 1),
    "Mins": ([0.0, -2.0, 0.0, -8.0], {"value": 0.0}, 1),
    "Relu": ([1.5, 0.0, 0.25, 0.0], {}, 1),
    "LeakyRelu": ([1.5, -0.5, 0.25, -2.0], {"value": 0.25}, 1),
    "AddRelu": ([3.5, 1.0, 0.0, 0.0], {}, 2),
    "SubRelu": ([0.0, 0.0, 4.25, 0.0], {}, 2),
    "Axpy": ([3.5, -5.0, 2.5, 0.0], {"value": 2.0}, 1),  # z + 2 x
    "MulAddDst": ([3.5, -7.0, 1.0, 12.0], {}, 2),  # z + x y
    "FusedMulAdd": ([2.75, 5.0, -3.5, -127.5], {}, 2),  # z x + y
    "FusedMulAddRelu": ([2.75, 5.0, 0.0, 0.0], {}, 2),
    "Copy": (X, {}, 1),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("name", VECTORS)
def test_a_vector_instruction_computes_what_the_guide_says(name: str, dtype: torch.dtype) -> None:
    wanted, scalars, sources = VECTORS[name]
    operands = [torch.tensor(v, dtype=dtype) for v in (X, Y)[:sources]]
    assert run(name, torch.tensor(Z, dtype=dtype), *operands, **scalars).tolist() == wanted


def test_a_fused_product_and_sum_are_rounded_once() -> None:
    """(1 + 2^-10)^2 - (1 + 2^-9) is 2^-20: in float16 the product alone would have lost it."""
    a = torch.tensor([1 + 2**-10], dtype=torch.float16)
    b = torch.tensor([-(1 + 2**-9)], dtype=torch.float16)
    assert run("FusedMulAdd", a.clone(), a, b).item() == 2.0**-20
    assert run("MulAddDst", b.clone(), a, a).item() == 0.0


@pytest.mark.parametrize(("name", "wanted"), [("ShiftLeft", [4, -4, 28, -20]), ("ShiftRight", [0, -1, 1, -2])])
@pytest.mark.parametrize("dtype", [torch.int16, torch.int32])
def test_shifts_keep_the_sign(name: str, wanted: list[int], dtype: torch.dtype) -> None:
    assert run(name, torch.zeros(4, dtype=dtype), torch.tensor([1, -1, 7, -5], dtype=dtype), value=2).tolist() == wanted


@pytest.mark.parametrize(
    ("name", "wanted"), [("EQ", [0, 1, 0]), ("NE", [1, 0, 1]), ("LT", [1, 0, 0]), ("LE", [1, 1, 0]), ("GT", [0, 0, 1]),
                         ("GE", [0, 1, 1])]
)  # fmt: skip
def test_numbers_are_compared_with_a_number(name: str, wanted: list[int]) -> None:
    made = run(f"CompareScalar.{name}", torch.zeros(3, dtype=torch.bool), torch.tensor([1.0, 1.5, 2.0]), value=1.5)
    assert made.int().tolist() == wanted


def test_a_selection_may_take_a_number() -> None:
    mask = torch.tensor([True, False])
    assert run("Select.TensorScalar", torch.zeros(2), mask, torch.tensor([1.0, 2.0]), value=9.0).tolist() == [1.0, 9.0]


CASTS = {
    "RINT": [0, 2, 2, -2, -2, 127, -128, 0], "FLOOR": [0, 1, 2, -3, -2, 127, -128, 0],
    "CEIL": [1, 2, 3, -2, -1, 127, -128, 0],
    "ROUND": [1, 2, 3, -3, -2, 127, -128, 0], "TRUNC": [0, 1, 2, -2, -1, 127, -128, 0],
}  # fmt: skip


@pytest.mark.parametrize("mode", CASTS)
def test_a_cast_rounds_by_its_mode_and_saturates(mode: str) -> None:
    source = torch.tensor([0.5, 1.5, 2.5, -2.5, -1.75, 300.0, -math.inf, math.nan], dtype=torch.float16)
    assert run(f"Cast.{mode}", torch.zeros(8, dtype=torch.int8), source).tolist() == CASTS[mode]


def test_a_cast_to_odd_never_loses_that_something_was_cut_off() -> None:
    source = torch.tensor([1.0, 1 + 2**-20, 1 + 2**-10 + 2**-20, -1 - 2**-20])
    assert run("Cast.ODD", torch.zeros(4).half(), source).tolist() == [1.0, 1 + 2**-10, 1 + 2**-10, -1 - 2**-10]


def test_arithmetic_may_convert_on_its_way() -> None:
    a, b = torch.tensor([100.0, -3.0, 2.5], dtype=torch.float16), torch.tensor([100.0, 1.0, 1.0], dtype=torch.float16)
    assert run("MulCast", torch.zeros(3, dtype=torch.int8), a, b).tolist() == [127, -3, 2]
    assert run("AddReluCast", torch.zeros(3, dtype=torch.int8), a, b).tolist() == [127, 0, 4]
    assert run("SubReluCast", torch.zeros(3, dtype=torch.int8), a, b).tolist() == [0, 0, 2]
    wide = torch.tensor([80000, -5, 6], dtype=torch.int32)
    assert run("AddDeqRelu", torch.zeros(3).half(), wide, wide, scale=0.25).tolist() == [40000.0, 0.0, 3.0]
    short = torch.tensor([300, -300, 5], dtype=torch.int16)
    assert run("CastDeq", torch.zeros(3, dtype=torch.int8), short, scale=0.5, offset=1).tolist() == [127, -128, 4]


def test_reductions_of_repeats_blocks_and_pairs() -> None:
    a = torch.arange(64.0).view(2, 32)
    assert run("WholeReduceSum", torch.zeros(2, 1), a).tolist() == [[496.0], [1520.0]]
    assert run("WholeReduceMax", torch.zeros(2, 1), a).tolist() == [[31.0], [63.0]]
    assert run("WholeReduceMin", torch.zeros(2, 1), a).tolist() == [[0.0], [32.0]]
    assert run("RepeatReduceSum", torch.zeros(2, 1), a).tolist() == [[496.0], [1520.0]]
    assert run("BlockReduceSum", torch.zeros(2, 4), a)[0].tolist() == [28.0, 92.0, 156.0, 220.0]
    assert run("BlockReduceMax", torch.zeros(2, 4), a)[1].tolist() == [39.0, 47.0, 55.0, 63.0]
    assert run("BlockReduceMin", torch.zeros(2, 4), a)[1].tolist() == [32.0, 40.0, 48.0, 56.0]
    assert run("PairReduceSum", torch.zeros(2, 16), a)[0].tolist() == [float(4 * i + 1) for i in range(16)]


def test_a_sum_adds_neighbours_first_in_its_own_format() -> None:
    """In float16 1 is lost on 2048: 2048, 1, 1 and 1 make 2048 + 2 in pairs, and 2048 one after the other."""
    a = torch.tensor([[2048.0, 1.0, 1.0, 1.0]], dtype=torch.float16)
    assert run("WholeReduceSum", torch.zeros(1, 1).half(), a).item() == 2050.0
    a = torch.tensor([[1.0, 1.0, 2048.0, -2048.0]], dtype=torch.float16)  # 1 of halves: 1 + 2048 is 2048
    assert run("WholeReduceSum", torch.zeros(1, 1).half(), a).item() == 2.0
    a = torch.tensor([[2048.0, 1.0, 1.0]], dtype=torch.float16)
    assert run("WholeReduceSum", torch.zeros(1, 1).half(), a).item() == 2048.0


def test_numbers_move_to_other_places() -> None:
    a = torch.arange(256.0).half().view(16, 16)
    assert torch.equal(run("Transpose", torch.zeros(16, 16).half(), a), a.T)
    rows = torch.arange(512.0).half().view(16, 32)
    assert torch.equal(run("TransDataTo5HD", torch.zeros(32, 16).half(), rows), rows.T)
    one = torch.arange(8.0).view(8, 1)
    assert run("Brcb", torch.zeros(8, 8), one).tolist() == [[float(i)] * 8 for i in range(8)]


def test_numbers_and_blocks_are_gathered_by_index() -> None:
    a = torch.arange(40.0).view(5, 8)
    index = torch.tensor([39, 0, 8], dtype=torch.int32)
    assert run("Gather", torch.zeros(3), a, index).tolist() == [39.0, 0.0, 8.0]
    blocks = run("Gatherb", torch.zeros(8, 8), a, torch.tensor([4, 0, 4, 1, 0, 0, 0, 0], dtype=torch.int32))
    assert torch.equal(blocks[:4], a[[4, 0, 4, 1]])
    for name, dst in (("Gather", torch.zeros(3)), ("Gatherb", torch.zeros(3, 8))):
        with pytest.raises(errors.RowError, match=r"^DSF-X030: index 40 \(number 1 of 3\) is outside a table of"):
            run(name, dst, a, torch.tensor([0, 40, 1], dtype=torch.int32))


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [(1, [0, 2, 4, 6]), (2, [1, 3, 5, 7]), (3, [0, 4]), (4, [1, 5]), (5, [2, 6]), (6, [3, 7]), (7, list(range(8)))],
)
def test_a_pattern_takes_its_places(pattern: int, wanted: list[int]) -> None:
    assert run("GatherMask", torch.zeros(len(wanted)), torch.arange(8.0), pattern=pattern).tolist() == wanted


def test_a_mask_packs_what_it_takes_and_leaves_the_rest() -> None:
    mask = torch.tensor([False, True, False, True])
    made = run("GatherMask.Mask", torch.full((4,), 9.0), torch.tensor([1.0, 2.0, 3.0, 4.0]), mask)
    assert made.tolist() == [2.0, 4.0, 9.0, 9.0]


def test_scores_are_sorted_with_their_indices_and_merged() -> None:
    scores = numbers(3, 32)
    scores[0, 5] = scores[0, 3]  # equals keep their order
    index = torch.arange(96, dtype=torch.int32).view(3, 32) * 1000
    pairs = run("Sort32", torch.zeros(3, 32, 2), scores, index)
    labels = pairs[..., 1].contiguous().view(torch.int32)
    for row in range(3):
        wanted = sorted(zip(scores[row].tolist(), index[row].tolist(), strict=True), key=lambda pair: -pair[0])
        assert list(zip(pairs[row, :, 0].tolist(), labels[row].tolist(), strict=True)) == wanted
    for queues in (2, 3):
        made = run(f"MrgSort.{queues}", torch.zeros(32 * queues, 2), *pairs[:queues])
        every = [
            pair for row in range(queues) for pair in zip(pairs[row, :, 0].tolist(), labels[row].tolist(), strict=True)
        ]
        merged = made[:, 1].contiguous().view(torch.int32).tolist()
        assert list(zip(made[:, 0].tolist(), merged, strict=True)) == sorted(every, key=lambda pair: -pair[0])
    halves = [pairs[0, :16], pairs[0, 16:], pairs[1, :16], pairs[1, 16:]]
    four = run("MrgSort.4", torch.zeros(64, 2), *halves)
    assert torch.equal(four, run("MrgSort.2", torch.zeros(64, 2), pairs[0], pairs[1]))


def test_indices_survive_the_exact_mode_as_bits() -> None:
    scores, index = numbers(1, 32), torch.arange(32, dtype=torch.int32).view(1, 32) * 70_000_000 % (1 << 30)
    fast = ISA["Sort32"].semantics(torch.zeros(1, 32, 2), scores, index)
    exact = ISA["Sort32"].semantics(torch.zeros(1, 32, 2).double(), scores.double(), index)
    assert torch.equal(exact.float().view(torch.int32), fast.view(torch.int32))
