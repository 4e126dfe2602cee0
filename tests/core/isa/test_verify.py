"""Every rule of a program, broken on purpose: the whole sentence is the interface.

The invented chip: sram 1 MiB and acc 256 KiB per core, both in units of 64 bytes; event ids 0 to 15.
"""

from __future__ import annotations

from collections.abc import Callable
from re import escape

import pytest
from attrs import evolve

from dsf import errors
from dsf.hdl import Chip
from dsf.isa import Affine, Builder, Instruction, Isa, Loop, Nest, Operand, Param, Phase, Program, Role
from dsf.isa.program import Term
from dsf.isa.verify import verify


@pytest.fixture
def refused(block: Builder) -> Callable[..., None]:
    """Emits one instruction into line 4 of the listing and expects this refusal of the program."""

    def refused(said: str, name: str, *operands: Operand, line: int = 4, **scalars: float) -> None:
        block(name, *operands, **scalars)
        text = str(Instruction(name, operands, tuple(scalars.items())))
        code, sentence = said.split(": ", 1)
        with pytest.raises(errors.ProgramError, match=f"^{escape(f'{code}: test, line {line}: {text}: {sentence}')}$"):
            finish(block)

    return refused


def finish(b: Builder) -> Program:
    """Close the block that the fixture has opened, and verify the program."""
    nest = Nest((("i", 1),), tuple(b._bodies[-1]))
    program = Program(b.name, tuple(b._params), (Phase("core", (nest,)),))
    verify(program, b.isa, b.chip)
    return program


def test_a_program_that_keeps_the_rules_is_built(block: Builder) -> None:
    block("copy.hbm.sram", block.on("sram", 64, (32, 64), "float16"), block.gm(0, 0, (32, 64), "float16"))
    assert len(list(finish(block).instructions())) == 1


def test_an_unknown_instruction_is_answered_with_the_nearest_names(refused: Callable[..., None]) -> None:
    refused(
        "DSF-I002: generic(acme-x1): no instruction named 'v.sigmoyd'; did you mean v.sigmoid or s.sigmoid?",
        "v.sigmoyd",
    )


def test_an_instruction_like_none_is_answered_with_where_all_are_listed(block: Builder, isa: Isa) -> None:
    block("Mmad3D")
    count = len(isa.rows)
    said = f"generic(acme-x1): no instruction named 'Mmad3D'; `dsf-cli isa` lists all {count}"
    with pytest.raises(errors.IsaError, match=f"^DSF-I002: test, line 4: Mmad3D: {escape(said)}$"):
        finish(block)


def test_a_missing_operand_is_counted(refused: Callable[..., None], b: Builder) -> None:
    refused("DSF-I004: 1 operands, expected 2", "v.exp", b.on("sram", 0, (8,), "float32"))


def test_an_operand_in_a_memory_that_the_instruction_does_not_take_is_named(
    refused: Callable[..., None], b: Builder
) -> None:
    tiles = b.on("sram", 0, (16,), "float32"), b.on("acc", 64, (16,), "float32")
    refused("DSF-I005: operand 'a' must be in sram, got acc[0x40](16)float32", "v.exp", *tiles)


def test_an_operand_in_a_format_that_the_instruction_does_not_take_is_named(
    refused: Callable[..., None], b: Builder
) -> None:
    tiles = b.on("sram", 0, (16,), "int32"), b.on("sram", 64, (16,), "int32")
    floats = "bfloat16 or float16 or float32"
    refused(f"DSF-I006: operand 'dst' must be {floats}, got sram[0x0](16)int32", "v.exp", *tiles)


def test_a_start_off_the_memorys_alignment_is_refused(refused: Callable[..., None], b: Builder) -> None:
    refused(
        "DSF-X005: operand 'dst' starts off a multiple of 64 bytes in sram",
        "v.fill", b.on("sram", 96, (16,), "float32"), value=0,
    )  # fmt: skip


def test_a_step_off_the_memorys_alignment_is_refused(block: Builder) -> None:
    with block.loop(3) as r:
        block("v.fill", block.on("sram", r * 32, (8,), "float32"), value=0)
    with pytest.raises(
        errors.MachineError,
        match=r"^DSF-X005: test, line 5: v.fill sram\[0x20\*r0\]\(8\)float32, value=0: "
        r"operand 'dst' starts off a multiple of 64 bytes in sram$",
    ):
        finish(block)


def test_main_memory_is_addressed_in_whole_elements(refused: Callable[..., None], b: Builder) -> None:
    refused(
        "DSF-X005: operand 'src' starts off a multiple of 2 bytes in hbm",
        "copy.hbm.sram", b.on("sram", 0, (16,), "float16"), b.gm(0, 3, (16,), "float16"),
    )  # fmt: skip


def test_an_operand_beyond_the_end_of_its_memory_is_refused(refused: Callable[..., None], b: Builder) -> None:
    refused(
        "DSF-X004: operand 'dst' spans bytes 1048512 to 1048640, sram has 1048576",
        "v.fill", b.on("sram", 1048512, (32,), "float32"), value=0,
    )  # fmt: skip


def test_an_operand_before_the_start_of_its_memory_is_refused(refused: Callable[..., None], b: Builder) -> None:
    refused(
        "DSF-X004: operand 'dst' spans bytes -64 to 0, sram has 1048576",
        "v.fill", b.on("sram", -64, (16,), "float32"), value=0,
    )  # fmt: skip


def test_bounds_hold_in_the_last_iteration_as_well(block: Builder) -> None:
    """17 tiles of 64 KiB: the last one starts at the end of 1 MiB."""
    with block.loop(17) as r:
        block("v.fill", block.on("sram", r * 65536, (16384,), "float32"), value=0)
    with pytest.raises(
        errors.MachineError,
        match=r"^DSF-X004: test, line 5: v.fill sram\[0x10000\*r0\]\(16384\)float32, value=0: "
        r"operand 'dst' spans bytes 0 to 1114112, sram has 1048576$",
    ):
        finish(block)


def test_bounds_of_a_buffer_that_alternates_are_those_of_its_halves(block: Builder) -> None:
    with block.loop(1000) as r:
        block("v.fill", block.on("sram", (r % 2) * 524288, (131072,), "float32"), value=0)
    finish(block)


def test_a_parameter_is_as_long_as_it_says(chip: Chip, isa: Isa) -> None:
    """Blocks 0 to 3 of 1024 bytes fit 4096; in block 4 the copy reads beyond the end."""
    b = Builder("test", isa, chip)
    b.param("x", "in", 4096)
    with b.phase("core"), b.nest(i=5) as (i,):
        b("copy.hbm.sram", b.on("sram", 0, (512,), "float16"), b.gm(0, i * 1024, (512,), "float16"))
    with pytest.raises(
        errors.MachineError,
        match=r"^DSF-X004: test, line 4: copy.hbm.sram sram\[0x0\]\(512\)float16, hbm.p0\[0x400\*i\]\(512\)float16: "
        r"operand 'src' spans bytes 0 to 5120, parameter x has 4096$",
    ):
        b.build()


def test_an_empty_operand_spans_nothing(block: Builder) -> None:
    block("copy.hbm.sram", block.on("sram", 1048576, (0, 8), "float16"), block.gm(0, 4096, (0, 8), "float16"))
    finish(block)


def test_main_memory_is_reached_through_parameters_only(refused: Callable[..., None], b: Builder) -> None:
    refused(
        "DSF-I007: operand 'src' is in hbm but names no parameter",
        "copy.hbm.sram", b.on("sram", 0, (16,), "float16"), b.on("hbm", 0, (16,), "float16"),
    )  # fmt: skip


def test_a_parameter_is_no_way_into_on_chip_memory(refused: Callable[..., None]) -> None:
    """Else its length, not the memory's, would be the bound."""
    refused(
        "DSF-I007: operand 'dst' is in sram but names a parameter; parameters are in main memory",
        "v.fill", Operand("sram", (16,), (1,), "float32", Affine(), 0), value=0,
    )  # fmt: skip


def test_a_parameter_that_was_never_declared_is_counted(refused: Callable[..., None], b: Builder) -> None:
    refused(
        "DSF-I007: operand 'src' names parameter 2; the program has 2",
        "copy.hbm.sram", b.on("sram", 0, (16,), "float16"), b.gm(2, 0, (16,), "float16"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "stride", "said"),
    [
        ((-1, 4), (4, 1), "operand 'dst' has a negative size or stride"),
        ((2, 4), (4, -1), "operand 'dst' has a negative size or stride"),
        ((2, 4), (1,), "operand 'dst' has 2 sizes and 1 strides"),
    ],
)
def test_a_window_that_cannot_be_is_refused(
    refused: Callable[..., None], b: Builder, shape: tuple[int, ...], stride: tuple[int, ...], said: str
) -> None:
    refused(f"DSF-I008: {said}", "v.fill", b.on("sram", 64, shape, "float32", stride), value=0)


@pytest.mark.parametrize(("event", "span"), [(16, "16..16"), (-1, "-1..-1")])
def test_event_ids_are_those_that_the_chip_has(block: Builder, event: int, span: str) -> None:
    block.set_flag("din", "vec", event)
    with pytest.raises(
        errors.MachineError,
        match=f"^DSF-X002: test, line 4: SetFlag src=din, dst=vec, event={hex(event)}: "
        f"event ids {span}; this chip has 0..15 for each pair of engines$",
    ):
        finish(block)


def test_an_event_id_that_the_chip_keeps_is_told_as_such(chip: Chip, isa: Isa) -> None:
    kept = evolve(chip, sync=evolve(chip.sync, reserved_event_ids=(16, 17)))
    for event, more in ((16, ", and keeps 16 for itself"), (18, "")):
        b = Builder("test", isa, kept)
        said = f"event ids {event}..{event}; this chip has 0..15 for each pair of engines{more}"
        with b.phase("core"), b.nest(i=1):
            b.order("din", "vec", event)
        with pytest.raises(errors.MachineError, match=f"^DSF-X002: .*: {escape(said)}$"):
            b.build()


def test_event_ids_that_a_loop_counts_are_checked_to_its_end(block: Builder) -> None:
    with block.loop(17) as r:
        block.order("din", "vec", r)
    with pytest.raises(errors.MachineError, match=r"event ids 0\.\.16; this chip has 0\.\.15"):
        finish(block)


def test_event_ids_do_not_depend_on_the_block(chip: Chip, isa: Isa) -> None:
    """Blocks run on any cores in any order: a flag that one block sets for another would hang."""
    b = Builder("test", isa, chip)
    with b.phase("core"), b.nest(i=4) as (i,):
        b.order("din", "vec", i % 2)
    with pytest.raises(
        errors.MachineError,
        match=r"^DSF-X007: test, line 4: SetFlag src=din, dst=vec, event=\[\(i%2\)\]: "
        r"the event id depends on i, which counts blocks; blocks are independent$",
    ):
        b.build()


def test_a_flag_orders_engines_of_its_own_core(block: Builder) -> None:
    block.set_flag("din", "MTE1")
    with pytest.raises(
        errors.MachineError,
        match=r"^DSF-X001: test, line 4: SetFlag src=din, dst=MTE1, event=0x0: dst=MTE1 is no engine of core core$",
    ):
        finish(block)


def test_a_flag_says_who_waits_for_whom(block: Builder) -> None:
    block("SetFlag", src="din")
    with pytest.raises(
        errors.IsaError,
        match=r"^DSF-I004: test, line 4: SetFlag src=din: a flag names src, dst and event; missing: dst, event$",
    ):
        finish(block)


def test_a_loop_variable_ends_with_its_loop(block: Builder) -> None:
    with block.loop(4) as r:
        block("v.fill", block.on("sram", r * 64, (16,), "float32"), value=0)
    block("v.fill", block.on("sram", r * 64, (16,), "float32"), value=0)
    with pytest.raises(
        errors.IsaError,
        match=r"^DSF-I010: test, line 6: v.fill sram\[0x40\*r0\]\(16\)float32, value=0: "
        r"'r0' is counted by no loop around it$",
    ):
        finish(block)


@pytest.mark.parametrize("count", [0, -3])
def test_a_loop_runs_at_least_once(chip: Chip, isa: Isa, count: int) -> None:
    fill = Instruction(
        "v.fill", (Operand("sram", (16,), (1,), "float32", Affine(0, (Term("r", 64),))),), (("value", 0),)
    )
    program = Program("test", (), (Phase("core", (Nest((), (Loop("r", count, (fill,)),)),)),))
    with pytest.raises(
        errors.IsaError,
        match=f"^DSF-I009: test, line 4: loop r<{count}: a loop runs at least once; leave it out instead$",
    ):
        verify(program, isa, chip)


def test_the_line_is_the_listings(b: Builder) -> None:
    """A wrong instruction behind loops, nests and phases is found where the listing has it."""
    with b.phase("core"):
        with b.nest(i=2), b.loop(3):
            with b.loop(4):
                b("v.fill", b.on("sram", 0, (16,), "float32"), value=0)
            b("v.fill", b.on("sram", 64, (16,), "float32"), value=0)
        with b.nest(i=1):
            b("v.fill", b.on("sram", 32, (16,), "float32"), value=13)
    program = Program(b.name, tuple(b._params), tuple(b._phases))
    (line,) = [text for text in program.listing().splitlines() if "value=13" in text]
    with pytest.raises(errors.MachineError, match=f"^DSF-X005: test, line {int(line.split()[0])}: v.fill"):
        b.build()


@pytest.mark.parametrize(
    ("dst", "a", "c", "said"),
    [
        ("float32", "float32", "float16", "one dtype for all, not float32 and float16; cast first"),
        ("float16", "float32", "float32", "one dtype for all, not float16 and float32; cast first"),
    ],
)
def test_a_vector_instruction_converts_nothing(
    refused: Callable[..., None], b: Builder, dst: str, a: str, c: str, said: str
) -> None:
    tiles = (b.on("sram", 64 * n, (16,), dtype) for n, dtype in enumerate((dst, a, c)))
    refused(f"DSF-X006: {said}", "v.add", *tiles)


def test_a_comparison_writes_truth_values_and_a_selection_reads_them(block: Builder) -> None:
    truth, x, y = (block.on("sram", 64 * n, (16,), d) for n, d in enumerate(("bool", "float32", "float32")))
    block("v.lt", truth, x, y)
    block("v.where", x, truth, x, y)
    finish(block)


def test_what_is_broadcast_has_its_full_shape(refused: Callable[..., None], b: Builder) -> None:
    refused(
        "DSF-X006: shapes (4, 16) and (1, 16) differ; a broadcast dimension has its full size and stride 0",
        "v.add", b.on("sram", 0, (4, 16), "float32"), b.on("sram", 0, (4, 16), "float32"),
        b.on("sram", 256, (1, 16), "float32"),
    )  # fmt: skip


def test_a_reduction_leaves_one_element_a_row(refused: Callable[..., None], b: Builder) -> None:
    refused(
        "DSF-X006: a reduction of (4, 16) leaves (4, 1), not (4, 16)",
        "v.reduce.sum", b.on("sram", 0, (4, 16), "float32"), b.on("sram", 256, (4, 16), "float32"),
    )  # fmt: skip


def test_the_sizes_of_a_product_agree(refused: Callable[..., None], b: Builder) -> None:
    refused(
        "DSF-X006: no product of (16, 32) and (16, 8) is (16, 8)",
        "matmul", b.on("acc", 0, (16, 8), "float32"), b.on("sram", 0, (16, 32), "float16"),
        b.on("sram", 1024, (16, 8), "float16"), accumulate=0,
    )  # fmt: skip


def test_whole_numbers_are_stepped_by_whole_numbers(refused: Callable[..., None], b: Builder) -> None:
    refused("DSF-X006: int32 is not stepped by step=0.5", "v.iota", b.on("sram", 0, (16,), "int32"), start=1, step=0.5)


def test_a_copy_keeps_the_format(refused: Callable[..., None], b: Builder) -> None:
    refused(
        "DSF-X006: one dtype for all, not float16 and float32; cast first",
        "copy.hbm.sram", b.on("sram", 0, (16,), "float16"), b.gm(0, 0, (16,), "float32"),
    )  # fmt: skip


def test_results_are_rounded_on_the_way_out_of_an_accumulator(block: Builder) -> None:
    block("copy.acc.hbm", block.gm(1, 0, (16,), "float16"), block.on("acc", 0, (16,), "float32"))
    finish(block)


def test_no_operand_is_larger_than_the_on_chip_memory_it_names(chip: Chip, isa: Isa) -> None:
    """Every operand of every row, in every memory that it may have, one element more than fits."""
    tried = 0
    for row in isa.rows.values():
        for place, (name, role) in enumerate(row.operands):
            for space in role.spaces:
                if chip.memories[space].main:
                    continue
                operands = [window(r.spaces[0], r, 1) for _, r in row.operands]
                fits = chip.memories[space].nbytes // operands[place].itemsize
                operands[place] = window(space, role, fits + 1)
                program = Program(
                    "test", (Param("x", "inout", 64),), (one_block(Instruction(row.name, tuple(operands))),)
                )
                with pytest.raises(errors.MachineError, match=f"operand '{name}' spans .*, {space} has"):
                    verify(program, isa, chip)
                tried += 1
    assert tried > 200


def window(space: str, role: Role, size: int) -> Operand:
    dtype = role.dtypes[0] if role.dtypes else "float32"
    return Operand(space, (size,), (1,), dtype, Affine(), 0 if space == "hbm" else None)


def one_block(ins: Instruction) -> Phase:
    return Phase("core", (Nest((), (ins,)),))


@pytest.mark.parametrize(
    ("name", "scalars", "said"),
    [
        ("v.fill", (), "missing a required argument: 'value'; its scalars are: value (float)"),
        ("v.fill", (("value", 1), ("step", 2)),
         "got an unexpected keyword argument 'step'; its scalars are: value (float)"),
        ("v.fill", (("value", "much"),), "value=much is no float"),
        ("v.fill", (("value", 1), ("value", 2)), "a scalar is given twice"),
        ("v.iota", (("start", 1),), "missing a required argument: 'step'; its scalars are: start (float), step "
         "(float)"),
    ],
)  # fmt: skip
def test_an_instruction_has_the_scalars_that_its_row_asks_for(
    chip: Chip, isa: Isa, name: str, scalars: tuple[tuple[str, object], ...], said: str
) -> None:
    wrong = Instruction(name, (Operand("sram", (16,), (1,), "float32", Affine()),), scalars)  # type: ignore[arg-type]
    program = Program("test", (), (Phase("core", (Nest((), (wrong,)),)),))
    with pytest.raises(errors.IsaError, match=f"^DSF-I011: test, line 4: {escape(f'{wrong}: {said}')}$"):
        verify(program, isa, chip)


def test_an_instruction_without_scalars_takes_none(refused: Callable[..., None], b: Builder) -> None:
    tile = b.on("sram", 0, (16,), "float32")
    said = "got an unexpected keyword argument 'value'; its scalars are: none"
    refused(f"DSF-I011: {said}", "v.exp", tile, tile, value=1)


def test_an_event_is_a_whole_number(refused: Callable[..., None]) -> None:
    refused("DSF-I011: event=0.5 is no event id; expected a whole number", "SetFlag", src="din", dst="vec", event=0.5)


def test_a_number_format_that_nobody_knows_is_refused_where_a_row_takes_any(
    refused: Callable[..., None], b: Builder
) -> None:
    odd = b.on("sram", 0, (16,), "float7")
    said = "operand 'dst' is of no number format that DSF knows, got sram[0x0](16)float7"
    refused(f"DSF-I006: {said}", "copy.hbm.sram", odd, b.gm(0, 0, (16,), "float32"))


def test_a_modulus_counts_upwards(refused: Callable[..., None], b: Builder) -> None:
    turns = Operand("sram", (16,), (1,), "float32", Affine(0, (Term("i", 64, -2),)))
    refused("DSF-I010: a modulus is above zero", "v.fill", turns, value=0)


@pytest.mark.parametrize(
    ("phase", "code", "line", "said"),
    [
        (Phase("cor", ()), "DSF-X001", 2, "phase cor: acme-x1 has no core cor; its cores are core"),
        (Phase("core", (Nest((("i", 0),), ()),)), "DSF-I009", 3,
         "blocks i<0: a nest has at least one block; leave it out instead"),
        (Phase("core", (Nest((("i", 2), ("i", 2)), ()),)), "DSF-I010", 3,
         "blocks i<2 i<2: 'i' counts already; take another name"),
        (Phase("core", (Nest((("i", 2),), (Loop("r0", 2, (Loop("i", 2, ()),)),)),)), "DSF-I010", 5,
         "loop i<2: 'i' counts already; take another name"),
    ],
)  # fmt: skip
def test_what_counts_does_so_on_a_core_that_is_there_once_and_under_one_name(
    chip: Chip, isa: Isa, phase: Phase, code: str, line: int, said: str
) -> None:
    with pytest.raises(errors.ProgramError, match=f"^{code}: test, line {line}: {escape(said)}$"):
        verify(Program("test", (), (phase,)), isa, chip)


def strided(shape: tuple[int, ...], stride: tuple[int, ...]) -> Operand:
    return Operand("sram", shape, stride, "float32", Affine())


@pytest.mark.parametrize(
    ("shape", "stride"),
    [((4, 8), (0, 1)), ((4, 64), (8, 1)), ((2, 2, 16), (64, 64, 1)), ((2, 2, 2), (3, 2, 1)), ((3, 4), (3, 2))],
)
def test_no_place_is_written_by_two_elements(
    refused: Callable[..., None], shape: tuple[int, ...], stride: tuple[int, ...]
) -> None:
    """Which of them would stay is nobody's promise."""
    said = "operand 'dst' writes the same bytes more than once; a place is written by one element"
    refused(f"DSF-X009: {said}", "v.fill", strided(shape, stride), value=0)


@pytest.mark.parametrize(
    ("shape", "stride"),
    [((4, 8), (8, 1)), ((8, 4), (1, 8)), ((1, 8), (0, 1)), ((2, 3), (3, 2)), ((4, 0), (0, 1)), ((2, 2, 2), (5, 4, 2))],
)
def test_rows_that_interleave_write_each_place_once(
    block: Builder, shape: tuple[int, ...], stride: tuple[int, ...]
) -> None:
    block("v.fill", strided(shape, stride), value=0)
    finish(block)


def test_what_is_read_may_name_a_place_twice(block: Builder) -> None:
    block("v.exp", strided((4, 16), (16, 1)), strided((4, 16), (0, 1)))
    finish(block)


def test_a_window_has_at_most_16_dimensions(refused: Callable[..., None], block: Builder) -> None:
    block("v.fill", strided((1,) * 15 + (8,), (8,) * 15 + (1,)), value=0)
    finish(block)
    block._bodies[-1].clear()
    said = "operand 'dst' has 17 sizes; expected at most 16"
    refused(f"DSF-I008: {said}", "v.fill", strided((1,) * 16 + (8,), (8,) * 16 + (1,)), value=0)


FILL = Instruction("v.fill", (strided((16,), (1,)),), (("value", 0),))


def nested(loops: int, variables: int = 1) -> Program:
    body: tuple[Instruction | Loop, ...] = (FILL,)
    for n in range(loops):
        body = (Loop(f"r{n}", 1, body),)
    return Program("test", (), (Phase("core", (Nest(tuple((f"i{n}", 1) for n in range(variables)), body),)),))


def test_16_loops_are_inside_each_other_and_16_variables_count_blocks_and_no_more(chip: Chip, isa: Isa) -> None:
    verify(nested(16, 16), isa, chip)
    said = r"^DSF-I009: test, line 20: loop r0<1: a loop inside 16 others; expected at most 16 inside each other$"
    with pytest.raises(errors.IsaError, match=said):
        verify(nested(17, 16), isa, chip)
    with pytest.raises(errors.IsaError, match=r"^DSF-I009: test, line 3: .*: 17 variables count blocks; expected at m"):
        verify(nested(16, 17), isa, chip)


@pytest.mark.parametrize(
    ("param", "said"),
    [
        (Param("x", "foo", 64), "its role is 'foo'; expected one of in, out, inout, workspace"),
        (Param("x", "in", -5), "has -5 bytes; expected a whole number that is not negative"),
        (Param("x", "in", 2.5), "has 2.5 bytes; expected a whole number that is not negative"),  # type: ignore[arg-type]
    ],
)
def test_a_parameter_has_a_role_and_a_size(chip: Chip, isa: Isa, param: Param, said: str) -> None:
    with pytest.raises(errors.IsaError, match=f"^DSF-I012: test, line 1: parameter x: {escape(said)}$"):
        verify(Program("test", (param,), ()), isa, chip)


def test_nothing_is_stored_into_what_a_program_only_takes_in(refused: Callable[..., None], b: Builder) -> None:
    refused(
        "DSF-I012: operand 'dst' is written, but parameter x is 'in'; declare it out or inout",
        "copy.sram.hbm", b.gm(0, 0, (16,), "float16"), b.on("sram", 0, (16,), "float16"),
    )  # fmt: skip


def test_an_on_chip_address_does_not_depend_on_the_block(chip: Chip, isa: Isa) -> None:
    b = Builder("test", isa, chip)
    with b.phase("core"), b.nest(i=4) as (i,):
        b("v.fill", b.on("sram", i * 64, (16,), "float32"), value=0)
    said = "operand 'dst' is in sram at an address that depends on i, which counts blocks; blocks are independent"
    with pytest.raises(errors.MachineError, match=rf"^DSF-X008: test, line 4: v\.fill .*: {said}$"):
        b.build()


@pytest.mark.parametrize("engine", ["v", "s"])
@pytest.mark.parametrize(
    ("dtype", "value", "said"),
    [
        ("float16", 1e6, "expected at most 65504, or inf"),
        ("float32", 1e39, "expected at most 3.40282e+38, or inf"),
        ("int32", 0.5, "expected a whole number"),
        ("int32", float("nan"), "expected a whole number"),
        ("int32", float("inf"), "expected a whole number"),
        ("int32", 1 << 31, "expected -2147483648 to 2147483647"),
        ("int32", Affine(1 << 31), "expected -2147483648 to 2147483647"),
    ],
)
def test_what_fills_is_a_number_of_the_format(
    chip: Chip, isa: Isa, engine: str, dtype: str, value: float, said: str
) -> None:
    tile = Operand("sram", (16,), (1,), dtype, Affine())
    fill = Instruction(f"{engine}.fill", (tile,), (("value", value),))
    program = Program("test", (), (Phase("core", (Nest((), (fill,)),)),))
    with pytest.raises(errors.MachineError, match=f"^DSF-X006: test, line 4: .*; {escape(said)}$"):
        verify(program, isa, chip)


@pytest.mark.parametrize(
    ("dtype", "value"), [("float32", 0.1), ("float16", 65519.0), ("float16", float("inf")), ("float16", float("nan")),
                         ("int32", 3), ("int32", 3.0), ("int32", Affine(7))],
)  # fmt: skip
def test_what_fills_is_rounded_to_a_float_and_may_be_no_number(block: Builder, dtype: str, value: float) -> None:
    block("v.fill", block.on("sram", 0, (16,), dtype), value=value)
    finish(block)
