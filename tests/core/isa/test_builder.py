"""Writing programs: what the builder keeps, leaves out, names and undoes."""

from __future__ import annotations

import re

import pytest

from dsf import errors
from dsf.hdl import Chip
from dsf.isa import Affine, Builder, Isa, Loop, Scratch
from dsf.isa.program import Term


def fill(b: Builder, value: float = 1.0, address: Affine | int = 0) -> None:
    b("v.fill", b.on("sram", address, (16,), "float32"), value=value)


def test_what_is_emitted_in_a_loop_is_written_once(b: Builder) -> None:
    with b.phase("core"), b.nest(i=3), b.loop(9) as r:
        fill(b, address=(r % 2) * 1024)
    (phase,) = b.build().phases
    (loop,) = phase.nests[0].body
    assert isinstance(loop, Loop)
    assert (loop.count, len(loop.body)) == (9, 1)


def test_loops_nest_and_each_has_a_variable_of_its_own(b: Builder) -> None:
    with b.phase("core"), b.nest(i=1), b.loop(2) as outer:
        with b.loop(3) as inner:
            fill(b, address=outer * 64 + inner * 128)
        with b.loop(4) as later:
            fill(b, address=outer * 64 + later * 128)
    names = [r.terms[0].variable for r in (outer, inner, later)]
    assert names == ["r0", "r1", "r2"]
    assert [times for _, times in b.build().instructions()] == [6, 8]


def test_empty_loops_nests_and_phases_leave_no_trace(b: Builder) -> None:
    with b.phase("core"):
        with b.nest(i=4), b.loop(0):
            fill(b)
        with b.nest(i=0):
            fill(b)
        with b.nest(i=2), b.loop(5):
            pass
    assert b.build().phases == ()


def test_a_phase_that_fails_is_not_kept(b: Builder) -> None:
    def give_up() -> None:
        with b.phase("core"):
            with b.nest(i=1):
                fill(b)
            raise RuntimeError("given up")

    with pytest.raises(RuntimeError, match="given up"):
        give_up()
    assert b.build().phases == ()


def test_nests_of_a_tiling_that_does_not_fit_are_undone(b: Builder) -> None:
    def too_large() -> None:
        with b.undone_on_error():
            with b.nest(i=2):
                fill(b, 2.0)
            raise errors.KernelError("DSF-K002", "sram: too small")

    with b.phase("core"):
        with b.nest(i=1):
            fill(b, 1.0)
        with pytest.raises(errors.KernelError):
            too_large()
        with b.nest(i=3):
            fill(b, 3.0)
    assert [nest.blocks for nest in b.build().phases[0].nests] == [1, 3]


def test_operands_are_dense_unless_strides_say_otherwise(b: Builder) -> None:
    assert b.on("sram", 64, (2, 8), "int8").stride == (8, 1)
    assert b.on("sram", 64, (2, 8), "int8", (16, 1)).stride == (16, 1)
    window = b.gm(1, 128, [4], "int8")
    assert (window.space, window.param, window.offset, window.shape) == ("hbm", 1, Affine(128), (4,))


def test_ordering_two_engines_is_a_flag_set_and_waited_for(b: Builder) -> None:
    with b.phase("core"), b.nest(i=1), b.loop(4) as r:
        b.order("din", "vec", r % 2)
    assert [str(ins) for ins, _ in b.build().instructions()] == [
        "SetFlag src=din, dst=vec, event=[(r0%2)]",
        "WaitFlag src=din, dst=vec, event=[(r0%2)]",
    ]


def test_the_engine_of_a_flag_is_who_raises_it_and_who_waits(b: Builder, isa: Isa) -> None:
    with b.phase("core"), b.nest(i=1):
        b.order("din", "vec")
        fill(b)
    assert [isa.engine_of(ins) for ins, _ in b.build().instructions()] == ["din", "vec", "vec"]


def test_scratch_hands_out_aligned_places_until_the_memory_is_full(chip: Chip) -> None:
    """The invented chip's acc has 256 KiB, in units of 64 bytes."""
    scratch = Scratch(chip, "acc")
    assert [scratch.take(100), scratch.take(1), scratch.take(64)] == [0, 128, 192]
    assert scratch.take(262144 - 256) == 256
    with pytest.raises(errors.KernelError, match=r"^DSF-K002: acc: a tile of 1 bytes does not fit after 262144 of "):
        scratch.take(1)


def test_a_memory_that_is_full_says_what_it_holds(chip: Chip) -> None:
    """Tiles of one kind are one entry, the largest sums come first, and there are five of them at most."""
    scratch = Scratch(chip, "acc")
    for what in ("(1, 64) float32", "bias", "(1, 64) float32"):
        scratch.take(65536, what)
    sentence = (
        "DSF-K002: acc: a tile of 131072 bytes does not fit after 196608 of 262144 bytes, which hold "
        "2 x (1, 64) float32 (131072 bytes), 1 x bias (65536 bytes)"
    )
    with pytest.raises(errors.KernelError, match=f"^{re.escape(sentence)}$"):
        scratch.take(131072, "(2, 64) float32")
    for n in range(6):
        scratch.take(64, f"small {n}")
    with pytest.raises(errors.KernelError, match=r"1 x small 0 \(64 bytes\), .* and 3 more kinds$"):
        scratch.take(131072)


def test_an_empty_memory_that_is_too_small_holds_nothing(chip: Chip) -> None:
    with pytest.raises(errors.KernelError, match=r"does not fit after 0 of 262144 bytes$"):
        Scratch(chip, "acc").take(262145)


def test_a_tile_that_does_not_fit_takes_nothing(chip: Chip) -> None:
    scratch = Scratch(chip, "acc")
    with pytest.raises(errors.KernelError):
        scratch.take(1 << 20)
    assert scratch.take(262144) == 0


def test_loop_variables_are_terms_that_no_other_builder_shares(b: Builder) -> None:
    with b.phase("core"), b.nest(i=2, j=3) as (i, j):
        assert (i, j) == (Affine(0, (Term("i", 1),)), Affine(0, (Term("j", 1),)))
