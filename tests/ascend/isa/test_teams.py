"""Teams: a cube core and two vector cores on one block, which meet in main memory by flags that cross."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

from dsf import errors
from dsf.hdl import Chip
from dsf.isa import Affine, Builder, Program
from dsf.isa.assembly import parse
from dsf.isa.binary import decode, encode
from dsf.isa.crew import CORE, PART, crew_of
from dsf.isa.program import Term
from dsf.machine import ordering
from dsf.machine.arena import Arena
from dsf.machine.functional import Functional
from dsf.machine.oracle import Oracle
from dsf.machine.timing import Timing
from dsf_ascend.isa import ISA

ROWS, LATE = 16, 200  # rows of a block; cycles until a flag between cores is seen
MINE = Affine(0, (Term(PART, ROWS // 2 * ROWS * 4),))
OWN = Affine(0, (Term(CORE, ROWS * ROWS * 4),))
IN, SLOT, OUT = range(3)


def program(chip: Chip, blocks: int = 3, *, flags: bool = True, team: str = "MIX", part: bool = True) -> Program:
    """x @ x of every block by the cube into a slot of its team; each vector core doubles its half of the slot."""
    b = Builder("test", ISA, chip)
    b.param("x", "in", blocks * ROWS * ROWS * 2)
    b.param("slot", "workspace", 24 * ROWS * ROWS * 4)
    b.param("y", "out", blocks * ROWS * ROWS * 4)
    rows = ROWS // 2 if part else ROWS
    mine = MINE if part else Affine(0)
    with b.phase(team), b.nest(i=blocks) as (i,):
        tile = b.on("L1", 0, (ROWS, ROWS), "float16")
        b("DataCopy.GM2L1", tile, b.gm(IN, i * (ROWS * ROWS * 2), (ROWS, ROWS), "float16"))
        b.order("AIC.MTE2", "AIC.MTE1")
        a, w, acc = (
            b.on(s, 0, (ROWS, ROWS), d) for s, d in (("L0A", "float16"), ("L0B", "float16"), ("L0C", "float32"))
        )
        b("LoadData.L12L0A", a, tile)
        b("LoadData.L12L0B", w, tile)
        b.order("AIC.MTE1", "AIC.M")
        b("Mmad", acc, a, w, accumulate=0)
        b.order("AIC.M", "AIC.FIX")
        b("Fixpipe", b.gm(SLOT, OWN, (ROWS, ROWS), "float32"), acc)
        if flags:
            b.order("AIC.FIX", "AIV.MTE2", 3)
        half = b.on("UB", 0, (rows, ROWS), "float32")
        b("DataCopy.GM2UB", half, b.gm(SLOT, OWN + mine, (rows, ROWS), "float32"))
        b.order("AIV.MTE2", "AIV.V")
        b("Add", half, half, half)
        b.order("AIV.V", "AIV.MTE3")
        b("DataCopy.UB2GM", b.gm(OUT, i * (ROWS * ROWS * 4) + mine, (rows, ROWS), "float32"), half)
        if flags:
            for src, dst in (("AIV.MTE3", "AIV.MTE2"), ("AIV.MTE3", "AIC.FIX"), ("AIC.FIX", "AIC.M"),
                             ("AIC.M", "AIC.MTE1"), ("AIC.MTE1", "AIC.MTE2"), ("AIV.MTE3", "AIV.V")):  # fmt: skip
                b.order(src, dst, 1)
    return b.build()


def planes(chip: Chip, made: Program, x: torch.Tensor) -> torch.Tensor:
    """y, on which both planes and the oracle agree, and in whose cycles."""
    places, end = [], 0
    for param in made.params:
        places.append(end)
        end += -(-param.nbytes // 512) * 512
    arena = Arena(end + 512)
    arena.window(0, x.shape, x.stride(), x.dtype).copy_(x)
    memory = arena.bytes[:end].clone()
    machine = Functional(chip, ISA, arena)
    machine.bind(machine.unroll(made), places).run()
    y = arena.window(places[OUT], x.shape, x.stride(), torch.float32).clone()
    cycles = Oracle(chip, ISA, memory).run(made, places)
    slow = memory[places[OUT] :][: y.numel() * 4].view(torch.float32).view(x.shape)
    assert torch.equal(y, slow)
    assert cycles == tuple(phase.cycles for phase in Timing(chip, ISA)(made).phases)
    return y


@pytest.mark.parametrize("blocks", [1, 3, 24, 25, 60])
def test_every_part_has_its_own_half_and_every_team_its_own_slot(chip: Chip, blocks: int) -> None:
    x = torch.randn(blocks, ROWS, ROWS).half()
    made = program(chip, blocks)
    ordering.check(made, ISA, chip)
    y = planes(chip, made, x)
    torch.testing.assert_close(y, 2 * x.float() @ x.float(), atol=1e-4, rtol=1e-5)


def test_a_pair_does_without_parts(chip: Chip) -> None:
    x = torch.randn(2, ROWS, ROWS).half()
    y = planes(chip, program(chip, 2, team="PAIR", part=False), x)
    torch.testing.assert_close(y, 2 * x.float() @ x.float(), atol=1e-4, rtol=1e-5)


def test_a_flag_between_cores_is_seen_late(chip: Chip) -> None:
    def cycles(changed: Chip) -> int:
        return Timing(changed, ISA)(program(changed, 1)).phases[0].cycles

    assert chip.sync.cross_core_cycles == LATE
    quick = evolve(chip, sync=evolve(chip.sync, cross_core_cycles=0), hash="quick")
    assert cycles(chip) - cycles(quick) == 2 * LATE  # there, and back at the block's end


def test_a_team_is_as_many_as_there_are_of_all_its_cores(chip: Chip) -> None:
    mix, pair = crew_of(chip, "MIX"), crew_of(chip, "PAIR")
    assert (mix.count, mix.cores, mix.parts) == (24, 3, 2)
    assert (pair.count, pair.cores, pair.parts) == (24, 2, 1)


def test_both_vector_cores_are_counted_as_busy(chip: Chip) -> None:
    (mix,) = Timing(chip, ISA)(program(chip, 1)).phases
    (pair,) = Timing(chip, ISA)(program(chip, 1, team="PAIR", part=False)).phases
    busy = {(engine, core): cycles for engine, core, cycles in mix.engines}
    alone = {(engine, core): cycles for engine, core, cycles in pair.engines}
    assert busy["V", "AIV"] == 2 * (14 + ROWS // 2 * ROWS // 64)
    assert alone["V", "AIV"] == 14 + ROWS * ROWS // 64
    assert busy["M", "AIC"] == alone["M", "AIC"]


def test_what_no_flag_orders_between_cores_is_a_race(chip: Chip) -> None:
    race = r"^DSF-X022: test: line 15 \(AIV.MTE2\) reads what line 14 \(AIC.FIX\) writes in GM"
    with pytest.raises(errors.MachineError, match=race):
        ordering.check(program(chip, 1, flags=False), ISA, chip)


def test_parts_that_store_the_same_bytes_are_found(chip: Chip) -> None:
    with pytest.raises(errors.MachineError, match=r"^DSF-X024: test: line \d+ stores y .* another part of the team"):
        ordering.check(program(chip, 1, part=False), ISA, chip)


def test_a_flag_that_is_set_ahead_too_often_is_found(chip: Chip) -> None:
    b = Builder("test", ISA, chip)
    with b.phase("MIX"), b.nest(i=1):
        for _ in range(16):
            b.set_flag("AIC.FIX", "AIV.MTE2", 2)
        for _ in range(16):
            b.wait_flag("AIC.FIX", "AIV.MTE2", 2)
    said = r"^DSF-X027: test, line 19: flag 2 of AIC.FIX for AIV.MTE2 is set 16 times .* it counts to 15$"
    with pytest.raises(errors.MachineError, match=said):
        ordering.check(b.build(), ISA, chip)


WRONG = {
    "an engine without its core": (("MTE2", "AIV.V", 0), r"DSF-X001.*src=MTE2 is no engine of core MIX"),
    "an engine of another core": (("AIC.V", "AIV.V", 0), r"DSF-X001.*src=AIC.V is no engine of core MIX"),
    "an event that one core has not": (("AIC.M", "AIC.FIX", 6), r"DSF-X002.*event ids 6..6; this chip has 0..5"),
    "a flag that cores have not": (("AIC.FIX", "AIV.V", 11), r"DSF-X002.*flag ids 11..11 between cores; .* 0..10"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_flag_names_both_cores(chip: Chip, what: str) -> None:
    flag, said = WRONG[what]
    b = Builder("test", ISA, chip)
    with b.phase("MIX"), b.nest(i=1):
        b.order(*flag)
    with pytest.raises(errors.MachineError, match=said):
        b.build()


def test_only_a_workspace_lies_by_its_core(chip: Chip) -> None:
    b = Builder("test", ISA, chip)
    b.param("y", "out", 1 << 20)
    with b.phase("MIX"), b.nest(i=1):
        b("DataCopy.UB2GM", b.gm(0, OWN, (16,), "float32"), b.on("UB", 0, (16,), "float32"))
    with pytest.raises(errors.MachineError, match=r"DSF-X008.*lies by the core that takes the block; only a workspace"):
        b.build()


@pytest.mark.parametrize("name", [CORE, PART])
def test_no_loop_counts_what_the_machine_counts(chip: Chip, name: str) -> None:
    b = Builder("test", ISA, chip)
    with b.phase("MIX"), b.nest(**{name: 2}):
        b.order("AIC.M", "AIC.FIX")
    with pytest.raises(errors.IsaError, match=f"DSF-I010.*'{name}' counts already"):
        b.build()


def test_a_barrier_of_one_core_is_refused_in_a_team(chip: Chip) -> None:
    b = Builder("test", ISA, chip)
    with b.phase("MIX"), b.nest(i=1):
        b("PipeBarrier", pipe="ALL")
    with pytest.raises(errors.MachineError, match=r"DSF-X001.*in a team's phase flags order them"):
        b.build()


def test_listing_and_binary_keep_it(chip: Chip) -> None:
    made = program(chip)
    assert parse(made.listing()) == made
    assert decode(encode(made)) == made
