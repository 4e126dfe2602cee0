"""The timing plane against clocks kept by hand, and against the oracle's.

On the invented chip a fill or negation of 256 float32 takes 8 + 8 = 16 cycles of vec; a copy of 1 KiB between hbm and
sram takes 64 + 16 = 80 cycles, of din inwards and of dout outwards. There are 8 cores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dsf import errors
from dsf.isa import Affine, Builder, Instruction, Loop, Nest, Phase, Program
from dsf.machine.timing import Timing

KIB = 256  # elements of float32 in one KiB


def load(b: Builder, slot: Affine | int = 0) -> None:
    """80 cycles of din."""
    b("copy.hbm.sram", b.on("sram", slot, (KIB,), "float32"), b.gm(0, 0, (KIB,), "float32"))


def compute(b: Builder, slot: Affine | int = 0) -> None:
    """16 cycles of vec."""
    tile = b.on("sram", slot, (KIB,), "float32")
    b("v.neg", tile, tile)


def store(b: Builder, slot: Affine | int = 0) -> None:
    """80 cycles of dout."""
    b("copy.sram.hbm", b.gm(1, 0, (KIB,), "float32"), b.on("sram", slot, (KIB,), "float32"))


@pytest.fixture
def b(planes: Any) -> Builder:
    builder = planes.builder()
    builder.param("x", "in", 1 << 16)
    builder.param("y", "out", 1 << 16)
    return builder


def test_engines_that_nothing_orders_run_side_by_side(b: Builder, planes: Any) -> None:
    with b.phase("core"), b.nest(i=1):
        load(b)
        compute(b, 4096)
        compute(b, 4096)
        store(b, 8192)
    assert planes.cycles(b.build()) == [80]


def test_a_flag_holds_an_engine_until_another_is_done(b: Builder, planes: Any) -> None:
    with b.phase("core"), b.nest(i=1):
        load(b)
        b.order("din", "vec")
        compute(b)
        b.order("vec", "dout")
        store(b)
    assert planes.cycles(b.build()) == [80 + 16 + 80]


def test_a_flag_that_was_set_before_holds_nobody_up(b: Builder, planes: Any) -> None:
    with b.phase("core"), b.nest(i=1):
        b.set_flag("din", "vec")
        load(b)
        b.wait_flag("din", "vec")
        compute(b, 4096)
    assert planes.cycles(b.build()) == [80]


def test_flags_of_one_id_are_taken_in_the_order_in_which_they_were_set(b: Builder, planes: Any) -> None:
    with b.phase("core"), b.nest(i=1):
        b.set_flag("din", "vec")  # at 0
        load(b)
        b.set_flag("din", "vec")  # at 80
        b.wait_flag("din", "vec")
        compute(b, 4096)  # 0 to 16
        b.wait_flag("din", "vec")
        compute(b, 4096)  # 80 to 96
    assert planes.cycles(b.build()) == [96]


def pipeline(b: Builder, laps: int) -> Program:
    """Load, compute and store in two buffers: a buffer is loaded again when it has been stored."""
    with b.phase("core"), b.nest(i=1):
        for slot in (0, 1):
            b.set_flag("dout", "din", slot)
        with b.loop(laps) as lap:
            b.wait_flag("dout", "din", lap % 2)
            load(b, (lap % 2) * 1024)
            b.order("din", "vec", lap % 2)
            compute(b, (lap % 2) * 1024)
            b.order("vec", "dout", lap % 2)
            store(b, (lap % 2) * 1024)
            b.set_flag("dout", "din", lap % 2)
        for slot in (0, 1):
            b.wait_flag("dout", "din", slot)
    return b.build()


@pytest.mark.parametrize(
    ("laps", "wanted"),
    [(1, 176), (2, 256), (3, 352), (4, 432), (5, 528), (6, 608), (1000, 88080), (1001, 88176), (10000, 880080)],
)
def test_a_double_buffered_pipeline_takes_what_its_clocks_say(b: Builder, planes: Any, laps: int, wanted: int) -> None:
    """Store 0 runs from 96 to 176 and store 1 to 256. Load 2 waits for store 0, so that store 2 ends at
    176 + 80 + 16 + 80 = 352 and store 3 at 432: two laps take 176 cycles."""
    program = pipeline(b, laps)
    assert planes.cycles(program) == [wanted]
    assert dict(planes.time(program).phases[0].busy) == {"din": 80 * laps, "vec": 16 * laps, "dout": 80 * laps}


@pytest.mark.parametrize(
    ("blocks", "slowest"), [(1, 16), (8, 16), (9, 32), (20, 48), (24, 48), (8000, 16000), (8001, 16016)]
)
def test_blocks_are_dealt_to_the_cores_in_turn(b: Builder, planes: Any, blocks: int, slowest: int) -> None:
    with b.phase("core"), b.nest(i=blocks):
        compute(b)
    program = b.build()
    assert planes.cycles(program) == [slowest]
    assert dict(planes.time(program).phases[0].busy) == {"vec": 16 * blocks}


def test_the_next_nest_is_dealt_where_the_last_one_ended(b: Builder, planes: Any) -> None:
    """Ten blocks of 16 cycles end on core 1; five of 32 go to cores 2 to 6: none has more than 16 + 32."""
    with b.phase("core"):
        with b.nest(i=10):
            compute(b)
        with b.nest(i=5):
            compute(b)
            compute(b)
    program = b.build()
    assert planes.cycles(program) == [48]
    assert planes.oracle_cycles(program) == [48]


def test_engines_of_a_core_overlap_blocks_of_one_nest(b: Builder, planes: Any) -> None:
    """16 blocks, two on each core: the second load runs while the first block computes."""
    with b.phase("core"), b.nest(i=16):
        load(b)
        b.order("din", "vec")
        compute(b)
    assert planes.cycles(b.build()) == [176]


def test_a_barrier_stands_between_phases(b: Builder, planes: Any) -> None:
    """500 cycles of 1 GHz: 500 ns. Phases of 16 and 32 cycles."""
    for times in (1, 2):
        with b.phase("core"), b.nest(i=1):
            for _ in range(times):
                compute(b)
    time = planes.time(b.build())
    assert [phase.core_fs for phase in time.phases] == [16_000_000, 32_000_000]
    assert time.duration_fs == 16_000_000 + 500_000_000 + 32_000_000


def test_a_phase_lasts_as_long_as_its_bytes_need_if_that_is_longer(b: Builder, planes: Any) -> None:
    """8 cores load 1 KiB in 80 ns each; 8 KiB at 400 GB/s take 20.48 ns, 64 KiB in 8 blocks a core 163.84."""
    with b.phase("core"), b.nest(i=8):
        load(b)
    time = planes.time(b.build())
    assert (time.phases[0].core_fs, time.phases[0].memory_fs) == (80_000_000, 20_480_000)
    assert (time.duration_fs, time.bound, time.nbytes) == (80_000_000, "din", 8192)


def test_a_phase_may_be_bound_by_memory(planes_of: Callable[..., Any]) -> None:
    """At 40 GB/s the 8 KiB take 204.8 ns."""
    slow = planes_of({"/memories/hbm/bandwidth": {"value": "40 GB/s", "origin": "estimate", "source": "acme"}})
    b = slow.builder()
    b.param("x", "in", 1024)
    with b.phase("core"), b.nest(i=8):
        load(b)
    time = slow.time(b.build())
    assert (time.duration_fs, time.bound) == (204_800_000, "memory")


def test_multiply_accumulates_are_counted_with_their_padding(b: Builder, planes: Any) -> None:
    """17 x 16 x 16 is two tiles of 4096, ten times in each of three blocks."""
    with b.phase("core"), b.nest(i=3), b.loop(10):
        b("matmul", b.on("acc", 0, (17, 16), "float32"), b.on("sram", 0, (17, 16), "float16"),
          b.on("sram", 1024, (16, 16), "float16"), accumulate=0)  # fmt: skip
    assert planes.time(b.build()).macs == 3 * 10 * 8192


def test_a_program_without_phases_takes_no_time(b: Builder, planes: Any) -> None:
    time = planes.time(b.build())
    assert (time.duration_fs, time.macs, time.nbytes, time.phases) == (0, 0, 0, ())


def test_a_flag_that_nobody_sets_would_hang(b: Builder, planes: Any) -> None:
    with b.phase("core"), b.nest(i=1):
        b.set_flag("din", "vec", 1)
        b.wait_flag("din", "vec", 0)
    said = (
        r"^DSF-X021: WaitFlag src=din, dst=vec, event=0x0: vec waits for flag 0 of din, "
        r"which nobody has set: this would hang$"
    )
    program = b.build()
    for plane in (planes.time, planes.oracle_cycles):
        with pytest.raises(errors.MachineError, match=said):
            plane(program)


def test_a_flag_is_taken_once(b: Builder, planes: Any) -> None:
    with b.phase("core"), b.nest(i=1):
        b.set_flag("din", "vec")
        with b.loop(2):
            b.wait_flag("din", "vec")
    program = b.build()
    for plane in (planes.time, planes.oracle_cycles):
        with pytest.raises(errors.MachineError, match="DSF-X021"):
            plane(program)


@pytest.mark.parametrize("laps", [1, 3, 50])
def test_a_flag_that_is_left_set_would_hang_a_later_kernel(b: Builder, planes: Any, laps: int) -> None:
    with b.phase("core"), b.nest(i=1), b.loop(laps):
        load(b)
        b.set_flag("din", "vec", 3)
    program = b.build()
    for plane in (planes.time, planes.oracle_cycles):
        with pytest.raises(
            errors.MachineError,
            match=r"^DSF-X020: phase core: flag 3 of din for vec is still set at the end; wait for it$",
        ):
            plane(program)


def chain(b: Builder, count: int) -> Program:
    """An accumulator that vec and mxu hand to and fro, loads ahead of them, and a store every seventh time."""
    with b.phase("core"), b.nest(i=11):
        for slot in (0, 1, 2):
            b.set_flag("vec", "din", slot)
        with b.loop(count) as r:
            b.wait_flag("vec", "din", r % 3)
            load(b, (r % 3) * 1024)
            b.order("din", "vec", r % 2)
            with b.loop(7) as s:
                compute(b, (s % 2) * 4096)
                b.order("vec", "dout", s % 4)
            b.set_flag("vec", "din", r % 3)
            store(b)
        for slot in (0, 1, 2):
            b.wait_flag("vec", "din", slot)
    return b.build()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 40])
def test_a_loop_of_any_length_takes_what_the_oracle_counts(b: Builder, planes: Any, count: int) -> None:
    planes.run(chain(b, count))


def test_long_loops_are_exact(planes: Any) -> None:
    """The oracle counts to 120 and 240; from there on every 120 rounds take the same."""

    def program(count: int) -> Program:
        b = planes.builder()
        b.param("x", "in", 1 << 16)
        b.param("y", "out", 1 << 16)
        return chain(b, count)

    (first,), (second,) = planes.oracle_cycles(program(120)), planes.oracle_cycles(program(240))
    assert planes.cycles(program(120)) == [first]
    assert planes.cycles(program(240)) == [second]
    assert planes.cycles(program(12000)) == [first + (second - first) * 99]


def test_flags_set_before_a_loop_and_taken_behind_it_keep_their_time(b: Builder, planes: Any) -> None:
    """The loop jumps ahead; the flag of the load before it was raised at 80 and stays at 80."""
    with b.phase("core"), b.nest(i=1):
        load(b)
        b.set_flag("din", "dout", 5)
        with b.loop(100):
            load(b)
            b.order("din", "vec", 0)
            compute(b)
        b.wait_flag("din", "dout", 5)
        store(b, 8192)
    program = b.build()
    assert planes.cycles(program) == [101 * 80 + 16]
    planes.run(program)


def test_a_flag_of_the_loops_own_pair_but_another_id_keeps_its_time(b: Builder, planes: Any) -> None:
    """Raised at 0 and taken behind 1000 rounds: it holds nobody up."""
    with b.phase("core"), b.nest(i=1):
        b.set_flag("din", "vec", 5)
        with b.loop(1000) as r:
            load(b, (r % 2) * 1024)
            b.order("din", "vec", r % 2)
        b.wait_flag("din", "vec", 5)
        b.order("vec", "dout", 0)
    program = b.build()
    assert planes.cycles(program) == [80_000]


def test_event_ids_may_be_a_loops_counter(b: Builder, planes: Any) -> None:
    """Six events without a modulus: no two rounds are alike, so that nothing may be skipped."""
    with b.phase("core"), b.nest(i=1):
        with b.loop(6) as r:
            load(b)
            b.set_flag("din", "vec", r)
        with b.loop(6) as r:
            b.wait_flag("din", "vec", r)
            compute(b)
    program = b.build()
    assert planes.cycles(program) == [496]
    planes.run(program)


def test_event_ids_may_alternate_with_an_outer_loop(b: Builder, planes: Any) -> None:
    with b.phase("core"), b.nest(i=1), b.loop(9) as outer, b.loop(5) as inner:
        load(b)
        b.order("din", "vec", outer % 2)
        compute(b)
        b.order("vec", "dout", (inner % 3) + 1)
        store(b)
    planes.run(b.build())


def hand_over(b: Builder, event: Affine | int) -> None:
    """Load and compute in one buffer, which is loaded again when it has been computed: 96 cycles."""
    b.wait_flag("vec", "din", event)
    load(b)
    b.order("din", "vec", event)
    compute(b)
    b.set_flag("vec", "din", event)


def test_an_outer_counter_as_event_id_is_known_to_the_inner_loop(b: Builder, planes: Any) -> None:
    """Each round of the outer loop has a flag of its own, and flag 4 of the same pair is pending all the time."""
    with b.phase("core"), b.nest(i=1):
        b.set_flag("vec", "din", 4)
        with b.loop(4) as outer:
            b.set_flag("vec", "din", outer)
            with b.loop(30):
                hand_over(b, outer)
            b.wait_flag("vec", "din", outer)
        b.wait_flag("vec", "din", 4)
        load(b, 4096)
    program = b.build()
    assert planes.cycles(program) == [4 * 30 * 96 + 80]
    planes.run(program)


def test_two_loops_over_one_body_are_two_loops(b: Builder, planes: Any) -> None:
    """Of a body that alternates with r0, the loop over r0 sees two events and a loop inside it one.

    The inner loops take 12 x 96 cycles each, of which the two later ones begin with 16 in the shade of the one before;
    the last of 3424 cycles holds up the next load, from there 48 loads follow each other in 80, and the load behind the
    loops waits for the last computation.
    """
    with b.phase("core"), b.nest(i=1), b.loop(12) as r:
        hand_over(b, r % 2)
    body = b.build().phases[0].nests[0].body[0].body  # type: ignore[union-attr]
    flags = [
        Instruction(name, (), (("src", "vec"), ("dst", "din"), ("event", Affine(event))))
        for name in ("SetFlag", "WaitFlag")
        for event in (0, 1)
    ]
    inner = Loop("r0", 3, (Loop("other", 12, body),))
    nest = Nest((), (*flags[:2], inner, Loop("r0", 40, body), Loop("r0", 8, body), *flags[2:], body[1]))
    program = Program("test", b.build().params, (Phase("core", (nest,)),))
    assert planes.cycles(program) == [36 * 96 - 2 * 16 + 48 * 80 + 16 + 80]
    planes.run(program)


def test_flags_that_pile_up_in_a_loop_are_all_there_behind_it(b: Builder, planes: Any) -> None:
    """The engines' clocks repeat; that every round leaves one flag more is not the same state."""
    with b.phase("core"), b.nest(i=1):
        with b.loop(50):
            load(b)
            b.order("din", "vec")
            compute(b)
            b.order("vec", "dout")
            store(b)
            b.set_flag("din", "dout", 5)
        for _ in range(50):
            b.wait_flag("din", "dout", 5)
    program = b.build()
    assert planes.cycles(program) == [50 * 80 + 96]
    planes.run(program)


def test_the_time_of_a_program_is_kept(b: Builder, planes: Any) -> None:
    from dsf.machine.timing import Timing

    timing = Timing(planes.chip, planes.isa)
    program = pipeline(b, 4)
    again = Program(program.name, program.params, program.phases)
    assert timing(program) is timing(again)


def test_the_quickest_program_is_the_first_that_finishes_first(planes: Any) -> None:
    """Programs of many shapes: few long blocks, many short ones, deep and shallow pipelines."""
    programs = []
    for blocks in (1, 3, 8, 9, 17):
        for laps in (1, 2, 5, 40):
            b = planes.builder()
            b.param("x", "in", 1 << 16)
            b.param("y", "out", 1 << 16)
            with b.phase("core"), b.nest(i=blocks), b.loop(laps):
                load(b)
                b.order("din", "vec")
                compute(b)
                b.order("vec", "din")
            programs.append(b.build())
    times = [planes.time(program).duration_fs for program in programs]
    timing = Timing(planes.chip, planes.isa)
    for first in range(len(programs)):
        assert timing.quickest(programs[first:]) == times[first:].index(min(times[first:]))
    assert timing.quickest([programs[0], programs[0]]) == 0


def test_uneven_nests_are_scheduled_as_the_oracle_does(planes: Any) -> None:
    """13 blocks of one lap, 3 of seven and 5 of two, on 8 cores."""
    b = planes.builder()
    b.param("x", "in", 1 << 16)
    b.param("y", "out", 1 << 16)
    with b.phase("core"):
        for blocks, laps in ((13, 1), (3, 7), (5, 2)):
            with b.nest(i=blocks), b.loop(laps):
                load(b)
                b.order("din", "vec")
                compute(b)
                b.order("vec", "din")
    program = b.build()
    assert planes.cycles(program) == planes.oracle_cycles(program)


@pytest.mark.parametrize(
    ("blocks", "wanted"),
    [(1, 128_000_000), (8, 128_000_000), (16, 256_000_000)],
)
def test_one_core_gets_no_more_of_main_memory_than_its_own_port_takes(
    planes_of: Callable[..., Any], blocks: int, wanted: int
) -> None:
    """8 bytes a cycle of 1 GHz: a KiB takes 128 ns, however few cores ask; alone 400 GB/s would take 2.56 ns."""
    narrow = planes_of({"/memories/hbm/core_width": {"value": "8 B/cycle", "origin": "estimate", "source": "acme"}})
    b = narrow.builder()
    b.param("x", "in", 1024 * blocks)
    with b.phase("core"), b.nest(i=blocks) as (i,):
        b("copy.hbm.sram", b.on("sram", 0, (KIB,), "float32"), b.gm(0, i * 1024, (KIB,), "float32"))
    assert narrow.time(b.build()).phases[0].memory_fs == wanted
