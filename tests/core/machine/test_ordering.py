"""A block reads on chip what it has written there, and from a result or workspace what has been stored."""

from __future__ import annotations

from typing import Any

import pytest

from dsf import errors
from dsf.isa import Builder, Program
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
