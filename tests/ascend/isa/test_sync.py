"""PipeBarrier: it orders where flags are missing, it costs what the slowest engine still has to do, and it stands in
loops that the timing plane does not walk to their end."""

from __future__ import annotations

import pytest
import torch

from dsf import errors
from dsf.hdl import Chip
from dsf.isa import Builder, Program
from dsf.machine import ordering
from dsf.machine.oracle import Oracle
from dsf.machine.timing import Timing
from dsf_ascend.isa import ISA

MAIN, VECTOR = 85, 14  # start-up cycles of the description


def pipeline(chip: Chip, laps: int, *, barriers: bool = True) -> Program:
    """x + x in *laps* rounds: a load of 38 cycles, an addition of 16, a store of 64, beside the start-ups."""
    b = Builder("test", ISA, chip)
    b.param("x", "inout", 1 << 20)
    with b.phase("AIV"), b.nest(i=1), b.loop(laps) as r:
        tile = b.on("UB", 0, (2048,), "float16")
        for name, operands in (
            ("DataCopy.GM2UB", (tile, b.gm(0, r * 4096, (2048,), "float16"))),
            ("Add", (tile, tile, tile)),
            ("DataCopy.UB2GM", (b.gm(0, r * 4096, (2048,), "float16"), tile)),
        ):
            b(name, *operands)
            if barriers:
                b("PipeBarrier", pipe="ALL")
    return b.build()


def cycles(chip: Chip, program: Program) -> int:
    (phase,) = Timing(chip, ISA)(program).phases
    (wanted,) = Oracle(chip, ISA, torch.zeros(1 << 20, dtype=torch.uint8)).run(program, [0])
    assert phase.cycles == wanted
    return phase.cycles


@pytest.mark.parametrize("laps", [1, 2, 3, 7, 200])
def test_behind_a_barrier_everything_waits_for_the_slowest(chip: Chip, laps: int) -> None:
    assert cycles(chip, pipeline(chip, laps)) == laps * ((MAIN + 38) + (VECTOR + 16) + (MAIN + 64))
    assert cycles(chip, pipeline(chip, laps, barriers=False)) == laps * (MAIN + 64)


def test_a_barrier_is_not_counted_as_work(chip: Chip) -> None:
    (phase,) = Timing(chip, ISA)(pipeline(chip, 4)).phases
    assert dict(phase.busy) == {"MTE2": 4 * (MAIN + 38), "V": 4 * (VECTOR + 16), "MTE3": 4 * (MAIN + 64)}


def test_a_barrier_orders_what_no_flag_does(chip: Chip) -> None:
    ordering.check(pipeline(chip, 3), ISA, chip)
    race = r"^DSF-X022: test: line 6 \(V\) writes over what line 5 \(MTE2\) writes in UB at bytes 0 to 4096"
    with pytest.raises(errors.MachineError, match=race):
        ordering.check(pipeline(chip, 3, barriers=False), ISA, chip)


def test_work_after_a_barrier_is_still_to_be_ordered(chip: Chip) -> None:
    b = Builder("test", ISA, chip)
    b.param("x", "inout", 8192)
    with b.phase("AIV"), b.nest(i=1):
        tile = b.on("UB", 0, (64,), "float16")
        b("PipeBarrier", pipe="ALL")
        b("DataCopy.GM2UB", tile, b.gm(0, 0, (64,), "float16"))
        b("Adds", tile, tile, value=1)
    with pytest.raises(errors.MachineError, match=r"^DSF-X022: test: line 6 \(V\)"):
        ordering.check(b.build(), ISA, chip)


def test_a_barrier_in_a_loop_with_flags_around_it_keeps_their_time(chip: Chip) -> None:
    b = Builder("test", ISA, chip)
    b.param("x", "inout", 1 << 20)
    with b.phase("AIV"), b.nest(i=1):
        tile, other = b.on("UB", 0, (2048,), "float16"), b.on("UB", 8192, (2048,), "float16")
        b("DataCopy.GM2UB", tile, b.gm(0, 0, (2048,), "float16"))
        b.set_flag("MTE2", "MTE3", 1)
        b("Duplicate", other, value=0)
        b("Scalar.fill", b.on("UB", 16384, (2,), "int64"), value=1)
        with b.loop(50):
            b("Exp", other, other)
            b("PipeBarrier", pipe="ALL")
            b("Scalar.add", b.on("UB", 16384, (2,), "int64"), *[b.on("UB", 16384, (2,), "int64")] * 2)
        b.wait_flag("MTE2", "MTE3", 1)
        b("DataCopy.UB2GM", b.gm(0, 4096, (2048,), "float16"), tile)
    program = b.build()
    ordering.check(program, ISA, chip)
    assert cycles(chip, program) >= 50 * (VECTOR + 64)
