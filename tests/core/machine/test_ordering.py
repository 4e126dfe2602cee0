"""A block reads on chip what it has written there, and from a result or workspace what has been stored."""

from __future__ import annotations

from typing import Any

import pytest

from dsf import errors
from dsf.isa import Affine, Builder, Instruction, Loop, Nest, Operand, Phase, Program
from dsf.isa.program import Term
from dsf.machine.ordering import check

ROW = (256,)
KIB = 1024


@pytest.fixture
def b(planes: Any) -> Builder:
    builder = planes.builder("Mine")
    builder.param("x", "in", 1 << 16)
    builder.param("y", "out", 1 << 16)
    builder.param("w", "workspace", 1 << 16)
    return builder


def load(b: Builder, at: int, rows: int = 1, columns: int = 256, pitch: int = 256) -> None:
    b("copy.hbm.sram", b.on("sram", at, (rows, columns), "float32", (pitch, 1)), b.gm(0, 0, (rows, columns), "float32"))


def store(b: Builder, at: int, rows: int = 1, columns: int = 256, pitch: int = 256, param: int = 1) -> None:
    window = b.gm(param, 0, (rows, columns), "float32")
    b("copy.sram.hbm", window, b.on("sram", at, (rows, columns), "float32", (pitch, 1)))


def checked(b: Builder, planes: Any) -> Program:
    program = b.build()
    check(program, planes.isa, planes.chip)
    return program


def test_a_read_of_what_no_instruction_wrote_names_its_line_and_bytes(b: Builder, planes: Any) -> None:
    with b.phase("core"), b.nest(i=1):
        load(b, 0)
        b.order("din", "dout")
        store(b, 512)
    said = (
        r"^DSF-X023: Mine: line 7 \(dout\) reads sram at bytes 512 to 1536, of which its block has not written all; "
        r"load or fill them first$"
    )
    with pytest.raises(errors.MachineError, match=said):
        checked(b, planes)


def test_several_writes_may_make_up_what_is_read(b: Builder, planes: Any) -> None:
    with b.phase("core"), b.nest(i=1):
        load(b, 0)
        load(b, KIB)
        b.order("din", "dout")
        store(b, 512)
    checked(b, planes)


@pytest.mark.parametrize(("columns", "complete"), [(64, True), (65, False)])
def test_a_part_of_a_window_with_gaps_is_what_the_window_wrote(
    b: Builder, planes: Any, columns: int, complete: bool
) -> None:
    """Four rows of 64 columns are written 128 apart; a fifth column more was not."""
    with b.phase("core"), b.nest(i=1):
        load(b, 0, rows=4, columns=64, pitch=128)
        b.order("din", "dout")
        store(b, 128, rows=3, columns=columns - 32, pitch=128)
    if complete:
        checked(b, planes)
        return
    with pytest.raises(errors.MachineError, match="DSF-X023"):
        checked(b, planes)


def test_what_another_block_left_behind_is_not_written(b: Builder, planes: Any) -> None:
    with b.phase("core"):
        with b.nest(i=2):
            load(b, 0)
            b.order("din", "dout")
        with b.nest(i=1):
            store(b, 0)
    with pytest.raises(errors.MachineError, match="DSF-X023"):
        checked(b, planes)


@pytest.mark.parametrize("adds", [0, 1])
def test_a_product_reads_its_accumulator_only_where_it_adds_to_it(b: Builder, planes: Any, adds: int) -> None:
    with b.phase("core"), b.nest(i=1):
        for at in (0, KIB):
            b("v.fill", b.on("sram", at, (16, 16), "float32"), value=1.0)
        b.order("vec", "mxu")
        b("matmul", b.on("acc", 0, (16, 16), "float32"), b.on("sram", 0, (16, 16), "float32"),
          b.on("sram", KIB, (16, 16), "float32"), accumulate=adds)  # fmt: skip
    if not adds:
        checked(b, planes)
        return
    with pytest.raises(errors.MachineError, match=r"line \d+ \(mxu\) reads acc at bytes 0 to 1024"):
        checked(b, planes)


@pytest.mark.parametrize("param", [1, 2])
def test_a_result_or_workspace_is_stored_before_it_is_read(b: Builder, planes: Any, param: int) -> None:
    def read() -> None:
        with b.phase("core"), b.nest(i=1):
            b("copy.hbm.sram", b.on("sram", 0, ROW, "float32"), b.gm(param, 0, ROW, "float32"))

    read()
    name = "yw"[param - 1]
    with pytest.raises(errors.MachineError, match=rf"reads {name}, into which nothing has been stored"):
        checked(b, planes)


def test_a_later_phase_reads_what_an_earlier_one_stored(b: Builder, planes: Any) -> None:
    with b.phase("core"), b.nest(i=1):
        load(b, 0)
        b.order("din", "dout")
        store(b, 0, param=2)
    with b.phase("core"), b.nest(i=1):
        b("copy.hbm.sram", b.on("sram", 0, ROW, "float32"), b.gm(2, 0, ROW, "float32"))
    checked(b, planes)


def test_an_instruction_does_not_write_what_it_reads_itself(b: Builder, planes: Any) -> None:
    with b.phase("core"), b.nest(i=1):
        b("v.neg", b.on("sram", 0, ROW, "float32"), b.on("sram", 0, ROW, "float32"))
    with pytest.raises(errors.MachineError, match=r"^DSF-X023: Mine: line 4 \(vec\) reads sram at bytes 0 to 1024"):
        checked(b, planes)


def test_windows_of_one_reach_and_other_strides_are_not_the_same_bytes(b: Builder, planes: Any) -> None:
    shape = (2, 2, 8)
    with b.phase("core"), b.nest(i=1):
        b("v.fill", b.on("sram", 0, shape, "float32", (160, 32, 1)), value=1.0)
        b.order("vec", "dout")
        b("copy.sram.hbm", b.gm(1, 0, shape, "float32"), b.on("sram", 0, shape, "float32", (128, 64, 1)))
    with pytest.raises(errors.MachineError, match="DSF-X023"):
        checked(b, planes)


def test_windows_of_other_pitch_that_share_no_byte_may_meet(b: Builder, planes: Any) -> None:
    """Rows of 32 bytes at 512 and 704; 32 bytes at 576 lie between them."""
    with b.phase("core"), b.nest(i=1):
        b("copy.hbm.sram", b.on("sram", 512, (2, 8), "float32", (48, 1)), b.gm(0, 0, (2, 8), "float32"))
        b("v.fill", b.on("sram", 576, (8,), "float32"), value=1.0)
        b.order("din", "vec")
    checked(b, planes)


def test_a_race_in_the_middle_of_a_loop_is_found(b: Builder, planes: Any) -> None:
    """Round 50 of 100 loads what vec reads all the time."""
    with b.phase("core"), b.nest(i=1):
        load(b, 50 * KIB)
        b.order("din", "vec")
        with b.loop(100) as r:
            b("copy.hbm.sram", b.on("sram", r * KIB, ROW, "float32"), b.gm(0, 0, ROW, "float32"))
            b("v.neg", b.on("sram", 200 * KIB, ROW, "float32"), b.on("sram", 50 * KIB, ROW, "float32"))
    with pytest.raises(
        errors.MachineError, match=r"^DSF-X022: Mine: line \d+ \(din\) overwrites what line \d+ \(vec\)"
    ):
        checked(b, planes)


def test_a_flag_does_not_leave_its_block(b: Builder, planes: Any) -> None:
    with b.phase("core"):
        with b.nest(i=1):
            load(b, 0)
            b.set_flag("din", "vec")
        with b.nest(i=1):
            b.wait_flag("din", "vec")
    with pytest.raises(errors.MachineError, match=r"DSF-X020: Mine, line 5: flag 0 of din for vec is still set"):
        checked(b, planes)


@pytest.mark.parametrize(
    ("read", "write"),
    [
        (None, lambda i, j: Affine()),  # all blocks store the same bytes
        (None, lambda i, j: i * KIB),  # those of one row do
        (None, lambda i, j: (i % 2) * KIB + j * 4 * KIB),
        (None, lambda i, j: i * (3 * KIB // 2) + j * 8 * KIB),  # 1.5 KiB apart, 2 KiB long
        (lambda i, j: i * 2 * KIB + j * 8 * KIB, lambda i, j: i * 2 * KIB + j * 8 * KIB + 2 * KIB),  # the next one's
    ],
)
def test_blocks_that_touch_each_others_bytes_are_a_race(planes: Any, read: Any, write: Any) -> None:
    b = planes.builder("Mine")
    b.param("y", "inout", 1 << 16)
    with b.phase("core"), b.nest(i=3, j=2) as (i, j):
        tile = b.on("sram", 0, (512,), "float32")
        if read:
            b("copy.hbm.sram", tile, b.gm(0, read(i, j), (512,), "float32"))
            b.order("din", "dout")
        else:
            b("v.fill", tile, value=1.0)
            b.order("vec", "dout")
        b("copy.sram.hbm", b.gm(0, write(i, j), (512,), "float32"), tile)
        b.order("dout", "din" if read else "vec")
    with pytest.raises(
        errors.MachineError, match=r"^DSF-X024: Mine: line \d+ .* y at bytes .* in another; blocks run in any"
    ):
        checked(b, planes)


def test_blocks_in_place_are_no_race(planes: Any) -> None:
    b = planes.builder("Mine")
    b.param("y", "inout", 1 << 16)
    with b.phase("core"), b.nest(i=3, j=2) as (i, j):
        tile, place = b.on("sram", 0, (8, 64), "float32"), b.gm(0, i * 4096 + j * 256, (8, 64), "float32", (128, 1))
        b("copy.hbm.sram", tile, place)
        b.order("din", "dout")
        b("copy.sram.hbm", place, tile)
        b.order("dout", "din")
    checked(b, planes)


def test_a_nest_does_not_read_what_another_of_its_phase_stores(b: Builder, planes: Any) -> None:
    with b.phase("core"):
        with b.nest(i=1):
            load(b, 0)
            b.order("din", "dout")
            store(b, 0, param=2)
            b.order("dout", "din")
        with b.nest(i=1):
            b("copy.hbm.sram", b.on("sram", 0, ROW, "float32"), b.gm(2, 0, ROW, "float32"))
    with pytest.raises(errors.MachineError, match=r"^DSF-X024: Mine: line 11 reads w at bytes 0 to 1024 of one block"):
        checked(b, planes)


def test_what_would_take_for_ever_to_check_is_refused(planes: Any) -> None:
    body: tuple[Instruction | Loop, ...] = (
        Instruction("v.fill", (Operand("sram", (8,), (1,), "float32", Affine()),), (("value", 1.0),)),
    )
    for depth in range(40):
        body = (Loop(f"r{depth}", 2, body),)
    program = Program("Deep", (), (Phase("core", (Nest((), body),)),))
    with pytest.raises(errors.MachineError, match=r"^DSF-X026: Deep, line 44: it takes too long"):
        check(program, planes.isa, planes.chip)
    far = Operand("sram", (8,), (1,), "float32", Affine(0, (Term("r", 512, 1_000_003),)))
    loop = Loop("r", 10**9, (Instruction("v.fill", (far,), (("value", 1.0),)),))
    with pytest.raises(errors.MachineError, match="DSF-X026"):
        check(Program("Far", (), (Phase("core", (Nest((), (loop,)),)),)), planes.isa, planes.chip)


@pytest.mark.parametrize("rounds", range(1, 40))
def test_a_long_loop_goes_on_where_its_first_rounds_have_led(b: Builder, planes: Any, rounds: int) -> None:
    """Each round takes the flag that the one before has raised: whoever leaves out rounds leaves out an even number."""
    with b.phase("core"), b.nest(i=1):
        b.set_flag("din", "dout", 1)
        with b.loop(rounds) as r:
            b.set_flag("din", "dout", r % 2)
            b.wait_flag("din", "dout", 1 + (r % 2) * -1)
        b.wait_flag("din", "dout", (rounds - 1) % 2)
    checked(b, planes)
