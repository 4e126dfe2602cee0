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
from dsf.isa import Affine, Instruction, Nest, Operand, Param, Phase, Program, Role
from dsf.isa.program import contiguous
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
        return [operand(s, (16,), "float16", offset=offset if s == space else 0) for s in (target, source)]

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


@pytest.mark.parametrize("event", [6, 7, 8])
def test_events_6_and_7_are_reserved(build: Build, event: int) -> None:
    build("AIC", "SetFlag", src="MTE2", dst="MTE1", event=5)
    with pytest.raises(
        errors.MachineError,
        match=f"^DSF-X002: test, line 4: SetFlag src=MTE2, dst=MTE1, event={event}: "
        rf"event ids {event}\.\.{event}; this chip has 0\.\.5 for each pair of engines$",
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
        match=r"^DSF-I005: test, line 4: Fixpipe .*: operand 'dst' must be in GM, got UB\[0x0\]\(16\)float16$",
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
    a, w = operand("L0A", (16, 32), "int8"), operand("L0B", (32, 16), "int8")
    build("AIC", "Mmad.s8", operand("L0C", (16, 16), "int32"), a, w, accumulate=0)
    with pytest.raises(errors.IsaError, match="operand 'c' must be int32, got"):
        build("AIC", "Mmad.s8", operand("L0C", (16, 16), "float32"), a, w, accumulate=0)


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
