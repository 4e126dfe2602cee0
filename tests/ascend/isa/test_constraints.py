"""The hard operand constraints of the asc-devkit guide, broken on purpose.

Start addresses: UB and L1 32 B, L0A and L0B 512 B, L0C 64 B, BT 64 B. Sizes (ini): L0A and L0B 64 KiB, L0C 128, L1 512,
UB 192, BT 1. Repeats 255 of 256 B. Gaps of DataCopy up to 65535 blocks of 32 B. Event ids 0 to 7, of which 6 and 7 are
reserved.
"""

from __future__ import annotations

from collections.abc import Callable
from re import escape

import pytest

from dsf import errors
from dsf.hdl import Chip
from dsf.isa import Affine, Instruction, Loop, Nest, Operand, Param, Phase, Program, Role
from dsf.isa.program import Term, contiguous
from dsf.isa.verify import verify
from dsf_ascend.isa import ISA

Build = Callable[..., None]


def operand(
    space: str, shape: tuple[int, ...], dtype: str, stride: tuple[int, ...] | None = None, offset: int = 0
) -> Operand:
    return Operand(space, shape, stride or contiguous(shape), dtype, Affine(offset), 0 if space == "GM" else None)


@pytest.fixture
def build(chip: Chip) -> Build:
    """Verifies a program of one instruction, on a core of this kind."""

    def build(core: str, name: str, *operands: Operand, **scalars: float) -> None:
        ins = Instruction(name, operands, tuple(scalars.items()))
        program = Program("test", (Param("x", "inout", 64 << 20),), (Phase(core, (Nest((), (ins,)),)),))
        verify(program, ISA, chip)

    return build


@pytest.mark.parametrize(
    ("core", "name", "target", "source", "space", "align"),
    [
        ("AIV", "DataCopy.GM2UB", "UB", "GM", "UB", 32),
        ("AIC", "DataCopy.GM2L1", "L1", "GM", "L1", 32),
        ("AIC", "LoadData.L12L0A", "L0A", "L1", "L0A", 512),
        ("AIC", "LoadData.L12L0B", "L0B", "L1", "L0B", 512),
        ("AIC", "DataCopy.L12BT", "BT", "L1", "BT", 64),
        ("AIC", "Fixpipe", "GM", "L0C", "L0C", 64),
    ],
)
def test_a_tile_starts_where_the_guide_allows(
    build: Build, core: str, name: str, target: str, source: str, space: str, align: int
) -> None:
    def places(offset: int) -> list[Operand]:
        return [
            operand(s, (16,), "float32" if s == "L0C" else "float16", offset=offset if s == space else 0)
            for s in (target, source)
        ]

    build(core, name, *places(3 * align))
    role = "dst" if space == target else "src"
    with pytest.raises(
        errors.MachineError,
        match=f"^DSF-X005: test, line 4: .*: operand '{role}' starts off a multiple of {align} bytes in {space}$",
    ):
        build(core, name, *places(3 * align + align // 2))


@pytest.mark.parametrize(
    ("space", "nbytes"), [("L0A", 65536), ("L0B", 65536), ("L0C", 131072), ("L1", 524288), ("UB", 196608), ("BT", 1024)]
)
def test_no_instruction_takes_an_operand_larger_than_the_memory_it_names(
    build: Build, chip: Chip, space: str, nbytes: int
) -> None:
    """Every operand of every row that may lie there: filling the memory it is in bounds, one element more it is not."""
    for name, place, core in operands_in(chip, space):
        label = ISA[name].operands[place][0]
        for extra in (0, 1):
            made = [smallest(r) for _, r in ISA[name].operands]
            size = nbytes // made[place].itemsize + extra
            made[place] = operand(space, (size,), made[place].dtype)
            said = f"operand '{label}' spans bytes 0 to {size * made[place].itemsize}, {space} has {nbytes}"
            if extra:
                with pytest.raises(errors.MachineError, match=f"^DSF-X004: test, line 4: .*: {said}$"):
                    build(core, name, *made)
            else:
                assert said not in complaint(build, core, name, made), name


def operands_in(chip: Chip, space: str) -> list[tuple[str, int, str]]:
    """(row, place, kind of core) of every operand that may lie in *space*."""
    core = chip.memories[space].core
    assert core is not None
    found = [
        (row.name, place, core)
        for row in ISA.rows.values()
        for place, (_, role) in enumerate(row.operands)
        if space in role.spaces
    ]
    assert found
    return found


def smallest(role: Role) -> Operand:
    return operand(role.spaces[0], (1,), role.dtypes[0] if role.dtypes else "float16")


def complaint(build: Build, core: str, name: str, operands: list[Operand]) -> str:
    """What else is wrong with an instruction whose operands are in bounds: their shapes do not agree."""
    try:
        build(core, name, *operands)
    except errors.ProgramError as error:
        return error.sentence
    return ""


@pytest.mark.parametrize(
    ("name", "dtype", "count", "most"),
    [
        ("Add", "float16", 3, 32640), ("Exp", "float32", 2, 16320), ("Duplicate", "int32", 1, 16320),
        ("Cast", "float16", 2, 32640),
    ],
)  # fmt: skip
def test_a_row_takes_255_repeats_of_256_bytes_at_most(
    build: Build, name: str, dtype: str, count: int, most: int
) -> None:
    for columns, fits in ((most, True), (most + 1, False)):
        tiles = [operand("UB", (columns,), dtype)] * count
        scalars = {"value": 0} if name == "Duplicate" else {}
        if fits:
            build("AIV", name, *tiles, **scalars)
            continue
        said = f"a row of {columns} elements needs more than 255 repeats of 256 bytes"
        with pytest.raises(errors.MachineError, match=f"^DSF-X006: test, line 4: {name} .*: {said}$"):
            build("AIV", name, *tiles, **scalars)


def test_a_reduction_takes_255_repeats_as_well(build: Build) -> None:
    result = operand("UB", (1, 1), "float32")
    build("AIV", "ReduceSum", result, operand("UB", (1, 16320), "float32"))
    with pytest.raises(errors.MachineError, match=r": a row of 16321 elements needs more than 255 repeats"):
        build("AIV", "ReduceSum", result, operand("UB", (1, 16321), "float32"))


def test_many_rows_are_many_repeats_each_within_the_limit(build: Build) -> None:
    tile = operand("UB", (64, 512), "float32")
    build("AIV", "Add", tile, tile, tile)


@pytest.mark.parametrize(("name", "target"), [("DataCopy.GM2UB", "UB"), ("DataCopy.UB2GM", "GM")])
def test_the_gap_between_rows_fits_its_field(build: Build, name: str, target: str) -> None:
    """Rows of 64 bytes: the next one may start 65535 x 32 bytes behind the end of the last, 2097120."""
    near, far = (operand("GM", (2, 32), "float16", ((64 + 2097120 + extra) // 2, 1)) for extra in (0, 2))
    tile = operand("UB", (2, 32), "float16")
    build("AIV", name, *((tile, near) if target == "UB" else (near, tile)))
    said = "a gap of 2097122 bytes between rows exceeds 65535 blocks of 32 bytes; copy row by row"
    with pytest.raises(errors.MachineError, match=f"^DSF-X006: test, line 4: {name} .*: {escape(said)}$"):
        build("AIV", name, *((tile, far) if target == "UB" else (far, tile)))


def test_a_single_row_has_no_gap(build: Build) -> None:
    build("AIV", "DataCopy.GM2UB", operand("UB", (1, 32), "float16"), operand("GM", (1, 32), "float16", (8_000_000, 1)))


@pytest.mark.parametrize(("event", "kept"), [(6, ", and keeps 6 for itself"), (7, ", and keeps 7 for itself"), (8, "")])
def test_events_6_and_7_are_reserved(build: Build, event: int, kept: str) -> None:
    build("AIC", "SetFlag", src="MTE2", dst="MTE1", event=5)
    with pytest.raises(
        errors.MachineError,
        match=f"^DSF-X002: test, line 4: SetFlag src=MTE2, dst=MTE1, event={event}: "
        rf"event ids {event}\.\.{event}; this chip has 0\.\.5 for each pair of engines{kept}$",
    ):
        build("AIC", "SetFlag", src="MTE2", dst="MTE1", event=event)


def test_cube_and_vector_cores_have_their_own_memories_and_engines(build: Build) -> None:
    """They exchange data through main memory only."""
    half = operand("UB", (16,), "float16")
    with pytest.raises(errors.MachineError, match=r"^DSF-X001: test, line 4: Add .*: engine V is not on core AIC$"):
        build("AIC", "Add", half, half, half)
    with pytest.raises(
        errors.MachineError, match=r"^DSF-X003: test, line 4: DataCopy.GM2UB .*: operand 'dst': core AIC has no UB$"
    ):
        build("AIC", "DataCopy.GM2UB", half, operand("GM", (16,), "float16"))
    with pytest.raises(
        errors.IsaError,
        match=r"^DSF-I005: test, line 4: Fixpipe .*: operand 'dst' must be in GM or L1, got UB\[0x0\]\(16\)float16$",
    ):
        build("AIC", "Fixpipe", half, operand("L0C", (16,), "float32"))
    with pytest.raises(errors.MachineError, match=r"^DSF-X001: .*: dst=V is no engine of core AIC$"):
        build("AIC", "SetFlag", src="M", dst="V", event=0)


@pytest.mark.parametrize("dtype", ["bfloat16", "int64", "int8"])
def test_the_vector_unit_adds_fp16_fp32_int32_and_int16_only(build: Build, dtype: str) -> None:
    tile = operand("UB", (16,), dtype)
    with pytest.raises(
        errors.IsaError,
        match=f"^DSF-I006: .*: operand 'dst' must be float16 or float32 or int32 or int16, got .*{dtype}$",
    ):
        build("AIV", "Add", tile, tile, tile)


def test_the_cube_takes_no_mixed_operands(build: Build) -> None:
    acc = operand("L0C", (16, 16), "float32")
    a, w = operand("L0A", (16, 16), "float16"), operand("L0B", (16, 16), "bfloat16")
    with pytest.raises(errors.MachineError, match=r": one dtype for all, not float16 and bfloat16; cast first$"):
        build("AIC", "Mmad", acc, a, w, accumulate=0)


def test_int8_products_go_to_int32_and_only_there(build: Build) -> None:
    a, w = operand("L0A", (16, 32), "int8"), operand("L0B", (32, 32), "int8")
    build("AIC", "Mmad.s8", operand("L0C", (16, 32), "int32"), a, w, accumulate=0)
    with pytest.raises(errors.IsaError, match="operand 'c' must be int32, got"):
        build("AIC", "Mmad.s8", operand("L0C", (16, 32), "float32"), a, w, accumulate=0)


def test_a_product_of_int8_is_a_multiple_of_32_wide(build: Build) -> None:
    operands = operand("L0C", (16, 48), "int32"), operand("L0A", (16, 32), "int8"), operand("L0B", (32, 48), "int8")
    said = "48 columns of int8; expected a multiple of 32"
    with pytest.raises(errors.MachineError, match=f"^DSF-X006: test, line 4: Mmad.s8 .*: {said}$"):
        build("AIC", "Mmad.s8", *operands, accumulate=0)


def test_a_bias_is_as_long_as_the_result_is_wide(build: Build) -> None:
    acc, a, w = (
        operand("L0C", (8, 32), "float32"),
        operand("L0A", (8, 16), "float16"),
        operand("L0B", (16, 32), "float16"),
    )
    build("AIC", "Mmad.bias", acc, a, w, operand("BT", (32,), "float32"), accumulate=0)
    said = escape("no product of (8, 16) and (16, 32) on a bias (16,) is (8, 32)")
    with pytest.raises(errors.MachineError, match=f"{said}$"):
        build("AIC", "Mmad.bias", acc, a, w, operand("BT", (16,), "float32"), accumulate=0)


def ub(*shape: int, dtype: str = "float16", offset: int = 0, stride: tuple[int, ...] | None = None) -> Operand:
    return operand("UB", shape, dtype, stride, offset)


def l1(*shape: int, dtype: str = "float16") -> Operand:
    return operand("L1", shape, dtype)


REFUSED: dict[str, tuple[str, tuple[Operand, ...], dict[str, object], str]] = {
    "overlap": ("Add", (ub(64), ub(64, offset=32), ub(64)), {},
        "UB[0x0](64)float16 overlaps UB[0x20](64)float16 in part; expected all of it or nothing"),
    "overlap-cast": ("Cast", (ub(64, dtype="float32"), ub(64)), {},
        "UB[0x0](64)float32 overlaps UB[0x0](64)float16 in part; expected all of it or nothing"),
    "overlap-rows": ("Add",
        (ub(4, 24, stride=(64, 1)), ub(4, 24, offset=32, stride=(64, 1)), ub(4, 24, offset=1024)), {},
        "UB[0x0](4,24:64,1)float16 overlaps UB[0x20](4,24:64,1)float16 in part; expected all of it or nothing"),
    "stride": ("Add", (ub(4, 8, stride=(24, 1)), ub(4, 8, offset=512), ub(4, 8, offset=512)), {},
        "rows 48 bytes from each other in UB[0x0](4,8:24,1)float16; expected a multiple of 32"),
    "one block": ("DataCopy.GM2L1.Indexed",
        (operand("L1", (16, 16), "float16"), operand("GM", (4, 16, 32), "float16"), operand("GM", (1,), "int32")), {},
        "(16, 16) of (4, 16, 32) by (1,); expected one block by (1)"),
    "scalar": ("Muls", (ub(64), ub(64, offset=256)), {"value": 0.1},
        "value=0.1 is no float16; the nearest is 0.0999755859375"),
    "scalar-whole": ("Adds", (ub(64, dtype="int16"), ub(64, dtype="int16", offset=256)), {"value": 0.5},
        "value=0.5 is no int16; expected a whole number"),
    "scalar-range": ("Adds", (ub(64, dtype="int16"), ub(64, dtype="int16", offset=256)), {"value": 40000},
        "value=40000 is no int16; expected -32768 to 32767"),
    "scalar-condition": ("Select.TensorScalar", (ub(8), ub(8, dtype="bool", offset=64), ub(8, offset=128)),
        {"value": 1e9}, "value=1000000000.0 is no float16; the nearest is inf"),
    "shift": ("ShiftLeft", (ub(64, dtype="int16"), ub(64, dtype="int16", offset=256)), {"value": 16},
        "value=16; int16 is shifted by 0 to 15 places"),
    "repeat-length": ("WholeReduceSum", (ub(2, 1), ub(2, 129, offset=256)), {},
        "a row of 258 bytes; one repeat has 256"),
    "repeat-count": ("WholeReduceMax", (ub(256, 1), ub(256, 16, offset=1024)), {}, "256 repeats; expected 255 at most"),
    "repeat-shape": ("RepeatReduceSum", (ub(2, 2), ub(2, 64, offset=256)), {},
        "(2, 64) leaves one number for each row, not (2, 2)"),
    "block": ("BlockReduceSum", (ub(2, 2), ub(2, 40, offset=256)), {},
        "(2, 40) leaves one number for each block of 16, not (2, 2)"),
    "pair": ("PairReduceSum", (ub(2, 3), ub(2, 7, offset=256)), {},
        "(2, 7) leaves one number for each pair, not (2, 3)"),
    "square": ("Transpose", (ub(16, 8), ub(8, 16, offset=512)), {}, "expected (16, 16) for both"),
    "5hd": ("TransDataTo5HD", (ub(24, 16), ub(16, 24, offset=1024)), {},
        "expected 16 rows of whole blocks of 16 and their transpose, not (16, 24)"),
    "brcb": ("Brcb", (ub(4, 16), ub(4, 1, offset=512)), {}, "expected (8 n, 16) of (8 n, 1), not (4, 16) of (4, 1)"),
    "gather": ("Gather", (ub(8), ub(8, offset=64), ub(4, dtype="int32", offset=128)), {},
        "(8,) takes as many indices, not (4,)"),
    "gatherb": ("Gatherb", (ub(8, 16), ub(4, 8, offset=512), ub(8, dtype="int32", offset=1024)), {},
        "expected (8 n, 16) from (m, 16) by (8 n), not (8, 16) from (4, 8) by (8,)"),
    "pattern": ("GatherMask", (ub(8), ub(32, offset=64)), {"pattern": 8}, "pattern=8; expected 1 to 7"),
    "pattern-length": ("GatherMask", (ub(8), ub(32, offset=64)), {"pattern": 1},
        "pattern 1 leaves one of 2 of each row of (32,), not (8,)"),
    "mask-rows": ("GatherMask.Mask", (ub(2, 8), ub(2, 8, offset=64), ub(2, 8, dtype="bool", offset=128)), {},
        "expected one dimension, not (2, 8)"),
    "sort": ("Sort32", (ub(1, 16, 2, dtype="float32"), ub(1, 16, dtype="float32", offset=512),
        ub(1, 16, dtype="int32", offset=1024)), {}, "expected (n, 32, 2) of (n, 32) and (n, 32)"),
    "merge": ("MrgSort.2", (ub(9, 2, dtype="float32"), ub(4, 2, dtype="float32", offset=512),
        ub(4, 2, dtype="float32", offset=1024)), {}, "queues (4, 2), (4, 2) make (8, 2), not (9, 2)"),
    "convert": ("AddReluCast", (ub(8), ub(8, offset=64), ub(8, offset=128)), {},
        "no conversion from float16 to float16; there is float16 to int8, float32 to float16, int16 to int8"),
    "round-mode": ("Cast.ODD", (ub(8), ub(8, dtype="bfloat16", offset=64)), {},
        "operand 'a' must be float32, got UB[0x40](8)bfloat16"),
    "round-pair": ("Cast.RINT", (ub(8, dtype="int64"), ub(8, offset=64)), {},
        "no conversion from float16 to int64; there is "),
    "fractal": ("Mmad.fractal", (operand("L0C", (2, 16, 16), "float32"), operand("L0A", (1, 4, 16, 16), "float16"),
        operand("L0B", (4, 1, 16, 16), "float16")), {"accumulate": 0, "m": 16, "k": 64, "n": 32},
        "m=16, k=64, n=32 are ((2, 16, 16), (1, 4, 16, 16), (4, 2, 16, 16)) in fractals, not "
        "((2, 16, 16), (1, 4, 16, 16), (4, 1, 16, 16))"),
    "fixpipe-way": ("Fixpipe", (operand("GM", (8, 8), "bfloat16"), operand("L0C", (8, 8), "int32")), {},
        "no way from int32 to bfloat16 in GM; there is float32 to bfloat16"),
    "fixpipe-l1": ("Fixpipe", (l1(8, 8, dtype="float32"), operand("L0C", (8, 8), "float32")), {},
        "no way from float32 to float32 in L1; there is float32 to bfloat16, float32 to float16"),
    "fixpipe-nz": ("Fixpipe.NZ", (operand("GM", (1, 8, 16), "float16"), operand("L0C", (8, 32), "float32")), {},
        "(8, 32) of float16 are (2, 8, 16) in fractals, not (1, 8, 16)"),
    "fixpipe-scale": ("Fixpipe.DEQF16", (operand("GM", (8, 8), "float16"), operand("L0C", (8, 8), "int32")),
        {"scale": 0.0}, "scale=0.0; expected a number above zero"),
    "fixpipe-scales": ("Fixpipe.VREQ8", (operand("GM", (8, 8), "int8"), operand("L0C", (8, 8), "int32"),
        operand("FB", (4,), "float32")), {}, "no scales (4,) of (8, 8) to (8, 8); one for each column"),
    "fb": ("DataCopy.L12FB", (operand("FB", (8,), "float16"), l1(8)), {}, "FB holds scales in float32, not float16"),
    "nd2nz": ("DataCopy.ND2NZ", (l1(2, 8, 16), operand("GM", (8, 33), "float16")), {},
        "(8, 33) of float16 are (3, 8, 16) in fractals, not (2, 8, 16)"),
    "nd2nz-stride": ("DataCopy.ND2NZ", (l1(1, 2, 16), operand("GM", (2, 16), "float16", (65536, 1))), {},
        "65536 elements from row to row; expected 65535 at most"),
    "nz2nd": ("DataCopy.NZ2ND", (operand("GM", (8, 33), "float16"), ub(2, 8, 16)), {},
        "(8, 33) of float16 are (3, 8, 16) in fractals, not (2, 8, 16)"),
    "pad-shape": ("DataCopyPad.GM2UB", (ub(2, 16), operand("GM", (2, 20), "float16")), {},
        "(2, 20) with 0 on its left does not fill (2, 16)"),
    "pad-width": ("DataCopyPad.GM2UB", (ub(2, 48), operand("GM", (2, 20), "float16")), {},
        "0 on the left and 28 on the right; expected less than a block of 32 bytes each"),
    "pad-block": ("DataCopyPad.GM2L1", (l1(2, 24), operand("GM", (2, 20), "float16")), {},
        "rows of 24 are no blocks of 32 bytes"),
    "pad-cut": ("DataCopyPad.UB2GM", (operand("GM", (2, 8), "float16"), ub(2, 32)), {},
        "(2, 8) of (2, 32); a row loses less than a block of 32 bytes"),
    "transpose-squares": ("LoadDataWithTranspose.L0B", (operand("L0B", (16, 24), "float16"), l1(24, 16)), {},
        "(24, 16) is not made of squares of 16"),
    "transpose-bytes": ("LoadDataWithTranspose.L0A",
        (operand("L0A", (16, 16), "int8"), l1(16, 16, dtype="int8")), {}, "(16, 16) is not made of squares of 32"),
    "transpose-shape": ("LoadDataWithTranspose.L0A", (operand("L0A", (16, 16), "float16"), l1(32, 16)), {},
        "(32, 16) transposed is no (16, 16)"),
    "image": ("LoadData3D.L0A", (operand("L0A", (4, 16), "float16"), l1(1, 2, 2, 8)), {"kernel_h": 1, "kernel_w": 1},
        "an image is (C1, H, W, 16), not (1, 2, 2, 8)"),
    "image-windows": ("LoadData3D.L0A", (operand("L0A", (4, 64), "float16"), l1(1, 3, 3, 16)),
        {"kernel_h": 2, "kernel_w": 2, "stride_w": 2}, "the windows of (1, 3, 3, 16) make (2, 64), not (4, 64)"),
    "image-size": ("LoadData3D.L0B", (operand("L0B", (4, 64), "float16"), l1(1, 3, 3, 16)),
        {"kernel_h": 4, "kernel_w": 1}, "no window of 4 x 1 fits (1, 3, 3, 16)"),
    "image-step": ("LoadData3D.L0B", (operand("L0B", (4, 64), "float16"), l1(1, 3, 3, 16)),
        {"kernel_h": 1, "kernel_w": 1, "stride_h": 0}, "expected kernels, strides and dilations from 1 on"),
    "constant": ("InitConstValue.L0A", (operand("L0A", (100,), "float16"),), {"value": 1},
        "200 bytes of L0A; expected a multiple of 512"),
    "constant-number": ("InitConstValue.L1", (l1(16),), {"value": 1e6},
        "value=1000000.0 is no float16; the nearest is inf"),
    "block-index": ("DataCopy.GM2L1.Indexed",
        (l1(16, 16), operand("GM", (4, 16, 8), "float16"), operand("GM", (1,), "int32")), {},
        "(16, 16) of (4, 16, 8) by (1,); expected one block by (1)"),
    "take-index": ("Scalar.take", (ub(4, 8), ub(4, 16, offset=512), ub(4, 9, dtype="int32", offset=1024)), {},
        "(4, 8) takes as many indices, not (4, 9)"),
    "put-rows": ("Scalar.put", (ub(4, 16), ub(3, 8, offset=512), ub(3, 8, dtype="int32", offset=1024)), {},
        "rows of (4, 16) and of (3, 8) differ"),
    "barrier": ("PipeBarrier", (), {"pipe": "V"},
        "pipe=V; expected ALL, as a single engine's queue is in order by itself"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_an_instruction_that_breaks_a_rule_is_refused_with_the_rule(build: Build, chip: Chip, name: str) -> None:
    row, operands, scalars, said = REFUSED[name]
    cores = {chip.memories[o.space].core for o in operands} - {None} or {"AIV"}
    with pytest.raises(errors.ProgramError, match=rf"^DSF-[XI]00\d: test, line 4: {row}") as error:
        build(*cores, row, *operands, **scalars)
    assert said in error.value.sentence


HELD = {
    "DataCopyPad.GM2UB": ((ub(16, 48), operand("GM", (16, 35), "float16")), {"left": 2, "value": 1.5}, "left"),
    "GatherMask": ((ub(8), ub(32, offset=64)), {"pattern": 4}, "pattern"),
    "Mmad.fractal": (
        (operand("L0C", (2, 16, 16), "float32"), operand("L0A", (1, 4, 16, 16), "float16"),
         operand("L0B", (4, 2, 16, 16), "float16")),
        {"accumulate": 0, "m": 16, "k": 64, "n": 32}, "k",
    ),
    "LoadData3D.L0A": (
        (operand("L0A", (20, 96), "float16"), l1(1, 9, 8, 16)),
        {"kernel_h": 3, "kernel_w": 2, "stride_h": 2, "stride_w": 2, "right": 1, "top": 1, "bottom": 1}, "stride_w",
    ),
}  # fmt: skip
"""Instructions that hold whole numbers, with one of them."""


@pytest.mark.parametrize("name", HELD)
def test_a_number_that_an_instruction_holds_may_be_written_as_an_address_but_not_depend_on_a_loop(
    build: Build, chip: Chip, name: str
) -> None:
    """A listing's 0x2 is an expression without loops; [r0] is one with a loop."""
    operands, scalars, which = HELD[name]
    core = "AIV" if operands[0].space == "UB" else "AIC"
    build(core, name, *operands, **{**scalars, which: Affine(scalars[which])})
    varying = Instruction(name, operands, tuple({**scalars, which: Affine(0, (Term("r0", 1),))}.items()))
    nest = Nest((), (Loop("r0", 3, (varying,)),))
    program = Program("test", (Param("x", "inout", 64 << 20),), (Phase(core, (nest,)),))
    with pytest.raises(errors.MachineError, match=rf"^DSF-X006: .*{which}=r0 depends on a loop; expected a number$"):
        verify(program, ISA, chip)


def test_every_row_with_rules_of_its_own_is_refused_in_some_test() -> None:
    """Shared rules (one shape, one dtype) are tested with the table's first rows."""
    tested = {rule for row, *_ in REFUSED.values() for rule in ISA[row].rules}
    shared = {"rule", "one_shape", "fits_written", "repeats_fit", "product_shapes", "reduced_shape", "whole_steps",
              "gap_fits_the_field", "whole_fractals"}  # fmt: skip
    missing = {rule.__name__ for row in ISA.rows.values() for rule in row.rules if rule not in tested}
    assert missing <= shared


def test_what_lies_beside_or_on_each_other_wholly_is_no_overlap(build: Build) -> None:
    build("AIV", "Add", ub(64), ub(64), ub(64))
    build("AIV", "Add", ub(64), ub(64, offset=128), ub(64))
    half, other = ub(4, 16, stride=(64, 1)), ub(4, 16, offset=32, stride=(64, 1))
    build("AIV", "Add", half, other, other)
    build("AIV", "Adds", half, half, value=-0.5)


def test_an_infinity_is_a_number_of_every_float(build: Build) -> None:
    build("AIV", "Maxs", ub(64), ub(64), value=float("-inf"))
