"""The functional plane: what a program computes, in both modes, and the on-chip memories that it computes in."""

from __future__ import annotations

from collections.abc import Sequence
from math import copysign
from typing import Any

import pytest
import torch
from attrs import evolve

from dsf.isa import Affine, Builder, Isa, Operand, Program
from dsf.machine.arena import Arena
from dsf.machine.functional import Functional, OnChip


@pytest.fixture
def arena() -> Arena:
    return Arena(1 << 20)


def execute(planes: Any, arena: Arena, program: Program, *addresses: int, exact: bool = False) -> None:
    machine = Functional(planes.chip, planes.isa, arena, exact)
    machine.bind(machine.unroll(program), addresses).run()


def put(arena: Arena, address: int, values: Sequence[float], dtype: torch.dtype) -> None:
    arena.window(address, (len(values),), (1,), dtype).copy_(torch.tensor(values, dtype=torch.float64))


def product(b: Builder, k: int, dtype: str = "float16", accumulate: int = 0) -> Program:
    """y = x @ w, of shapes (1, k) and (k, 1), through the accumulator into float32."""
    item = {"float16": 2, "float32": 4}[dtype]
    b.param("x", "in", k * item)
    b.param("w", "in", k * item)
    b.param("y", "out", 4)
    with b.phase("core"), b.nest(i=1):
        x, w, acc = (
            b.on("sram", 0, (1, k), dtype),
            b.on("sram", 65536, (k, 1), dtype),
            b.on("acc", 0, (1, 1), "float32"),
        )
        b("copy.hbm.sram", x, b.gm(0, 0, (1, k), dtype))
        b("copy.hbm.sram", w, b.gm(1, 0, (k, 1), dtype))
        b("matmul", acc, x, w, accumulate=accumulate)
        b("copy.acc.hbm", b.gm(2, 0, (1, 1), "float32"), acc)
    return b.build()


def test_exact_products_are_summed_in_float64_and_rounded_once(planes: Any, arena: Arena) -> None:
    """1 + 2^-24 + 2^-24: float32 loses each addend, halfway and to even; together they make 2^-23, its last place."""
    put(arena, 0, [1.0, 2**-24, 2**-24], torch.float16)
    put(arena, 512, [1.0, 1.0, 1.0], torch.float16)
    program = product(planes.builder(), 3)
    execute(planes, arena, program, 0, 512, 1024, exact=True)
    assert arena.window(1024, (1,), (1,), torch.float32).item() == 1 + 2**-23


def test_exact_reductions_round_once_even_to_16_bits(planes: Any, arena: Arena) -> None:
    """1 + 2^-11 + 2^-24 is just over the middle of two float16; by way of float32 it would fall to 1."""
    b = planes.builder()
    b.param("x", "in", 6)
    b.param("y", "out", 2)
    with b.phase("core"), b.nest(i=1):
        row, total = b.on("sram", 0, (1, 3), "float16"), b.on("sram", 64, (1, 1), "float16")
        b("copy.hbm.sram", row, b.gm(0, 0, (1, 3), "float16"))
        b("v.reduce.sum", total, row)
        b("copy.sram.hbm", b.gm(1, 0, (1, 1), "float16"), total)
    put(arena, 0, [1.0, 2**-11, 2**-24], torch.float16)
    execute(planes, arena, b.build(), 0, 512, exact=True)
    assert arena.window(512, (1,), (1,), torch.float16).item() == 1 + 2**-10


@pytest.mark.parametrize("k", [16, 64, 512])
def test_fast_products_stay_within_the_bound_of_float32_sums(planes: Any, arena: Arena, k: int) -> None:
    """|fast - exact| <= k u / (1 - k u) * sum |x w| + u |exact|, u = 2^-24: any order of k - 1 float32 additions of
    exact products [Higham 2002, (3.5)], and the one rounding of exact."""
    x, w = torch.randn(k).half(), torch.randn(k).half()
    arena.window(0, (k,), (1,), torch.float16).copy_(x)
    arena.window(4096, (k,), (1,), torch.float16).copy_(w)
    program, results = product(planes.builder(), k), []
    for exact in (True, False):
        execute(planes, arena, program, 0, 4096, 8192, exact=exact)
        results.append(arena.window(8192, (1,), (1,), torch.float32).double().item())
    size, u = (x.double() * w.double()).abs().sum().item(), 2.0**-24
    assert results[0] == (x.double() @ w.double()).float().item()
    assert abs(results[1] - results[0]) <= k * u / (1 - k * u) * size + u * abs(results[0])


def test_a_product_adds_to_what_the_accumulator_holds(planes: Any, arena: Arena) -> None:
    b = planes.builder()
    b.param("x", "in", 64)
    b.param("y", "out", 4)
    with b.phase("core"), b.nest(i=1):
        x, w, acc = (
            b.on("sram", 0, (1, 4), "float16"),
            b.on("sram", 64, (4, 1), "float16"),
            b.on("acc", 0, (1, 1), "float32"),
        )
        b("copy.hbm.sram", x, b.gm(0, 0, (1, 4), "float16"))
        b("v.fill", w, value=2)
        with b.loop(3) as r:
            b("matmul", acc, x, w, accumulate=r)
        b("copy.acc.hbm", b.gm(1, 0, (1, 1), "float32"), acc)
    put(arena, 0, [1, 2, 3, 4], torch.float16)
    put(arena, 512, [99], torch.float32)
    for exact in (False, True):
        execute(planes, arena, b.build(), 0, 512, exact=exact)
        assert arena.window(512, (1,), (1,), torch.float32).item() == 60.0  # 3 x 20: the first round starts afresh


def test_zeros_of_either_sign_are_filled_in_as_they_are(planes: Any, arena: Arena) -> None:
    b = planes.builder()
    b.param("y", "out", 8)
    with b.phase("core"), b.nest(i=1):
        for place, value in enumerate((0.0, -0.0)):
            tile = b.on("sram", place * 64, (1,), "float32")
            b("v.fill", tile, value=value)
            b("copy.sram.hbm", b.gm(0, 4 * place, (1,), "float32"), tile)
    execute(planes, arena, b.build(), 0)
    assert [copysign(1, v) for v in arena.window(0, (2,), (1,), torch.float32).tolist()] == [1.0, -1.0]


def test_a_program_runs_wherever_it_is_bound(planes: Any, arena: Arena) -> None:
    program = product(planes.builder(), 2)
    machine = Functional(planes.chip, planes.isa, arena)
    unrolled = machine.unroll(program)
    for base in (0, 65536):
        put(arena, base, [base + 1.0, 2.0], torch.float16)
        put(arena, base + 512, [1.0, 0.5], torch.float16)
    for base in (65536, 0):
        machine.bind(unrolled, [base, base + 512, base + 1024]).run()
    assert arena.window(1024, (1,), (1,), torch.float32).item() == 2.0
    assert arena.window(66560, (1,), (1,), torch.float32).item() == torch.tensor(65537.0).half().item() + 1


def blocks(b: Builder, count: int, width: int = 16) -> Program:
    """y = x + x, one row in each block, with a table of products beside it so that every engine takes part."""
    b.param("x", "in", count * width * 4)
    b.param("y", "out", count * width * 4)
    with b.phase("core"), b.nest(i=count) as (i,):
        tile = b.on("sram", 0, (1, width), "float32")
        b("copy.hbm.sram", tile, b.gm(0, i * (width * 4), (1, width), "float32"))
        b("v.add", tile, tile, tile)
        b("copy.sram.hbm", b.gm(1, i * (width * 4), (1, width), "float32"), tile)
    return b.build()


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 100])
def test_blocks_compute_the_same_alone_and_side_by_side(planes: Any, arena: Arena, count: int) -> None:
    x = torch.randn(count, 16)
    arena.window(0, (count, 16), (16, 1), torch.float32).copy_(x)
    execute(planes, arena, blocks(planes.builder(), count), 0, 65536)
    assert torch.equal(arena.window(65536, (count, 16), (16, 1), torch.float32), x + x)


def test_blocks_side_by_side_have_memories_of_their_own(planes: Any) -> None:
    """Each keeps a value over a loop; the next block must not see it."""
    b = planes.builder()
    b.param("x", "in", 1 << 14)
    b.param("y", "out", 1 << 14)
    with b.phase("core"), b.nest(i=40) as (i,):
        total, tile = b.on("sram", 0, (16,), "float32"), b.on("sram", 64, (16,), "float32")
        b("v.fill", total, value=0)
        b("copy.hbm.sram", tile, b.gm(0, i * 64, (16,), "float32"))
        with b.loop(5):
            b("v.add", total, total, tile)
        b("copy.sram.hbm", b.gm(1, i * 64, (16,), "float32"), total)
    planes.run(b.build())


def test_blocks_that_move_backwards_through_memory_are_computed_too(planes: Any) -> None:
    b = planes.builder()
    b.param("x", "in", 4096)
    b.param("y", "out", 4096)
    with b.phase("core"), b.nest(i=16) as (i,):
        tile = b.on("sram", 0, (16,), "float32")
        b("copy.hbm.sram", tile, b.gm(0, i * -64 + 960, (16,), "float32"))
        b("copy.sram.hbm", b.gm(1, i * 64, (16,), "float32"), tile)
    planes.run(b.build())


def test_blocks_that_write_the_same_bytes_are_computed_too(planes: Any) -> None:
    b = planes.builder()
    b.param("y", "out", 64)
    with b.phase("core"), b.nest(i=16):
        tile = b.on("sram", 0, (16,), "float32")
        b("v.fill", tile, value=3.5)
        b("copy.sram.hbm", b.gm(0, 0, (16,), "float32"), tile)
    planes.run(b.build())


def test_scalars_may_count_blocks_and_rounds(planes: Any, arena: Arena) -> None:
    b = planes.builder()
    b.param("y", "out", 4 * 3 * 4)
    with b.phase("core"), b.nest(i=4) as (i,), b.loop(3) as r:
        tile = b.on("sram", 0, (1,), "int32")
        b("v.fill", tile, value=i * 10 + r)
        b("copy.sram.hbm", b.gm(0, i * 12 + r * 4, (1,), "int32"), tile)
    execute(planes, arena, b.build(), 0)
    assert arena.window(0, (12,), (1,), torch.int32).tolist() == [0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32]


def window(space: str, dtype: str, offset: int = 0, shape: tuple[int, ...] = (4,)) -> Operand:
    strides = {1: (1,), 2: (shape[-1], 1)}[len(shape)]
    return Operand(space, shape, strides, dtype, Affine(offset))


def test_two_formats_over_the_same_bytes_alias(planes: Any) -> None:
    memory = OnChip(planes.chip, planes.isa)
    memory.window(window("sram", "float32", 64), 64).fill_(1.0)
    assert memory.window(window("sram", "int32", 64), 64).tolist() == [0x3F800000] * 4
    assert memory.window(window("sram", "float16", 64), 66).tolist()[0] == 1.875  # the upper half, 0x3f80


def test_memories_do_not_alias(planes: Any) -> None:
    memory = OnChip(planes.chip, planes.isa)
    memory.window(window("sram", "float32"), 0).fill_(1.0)
    assert memory.window(window("acc", "float32"), 0).tolist() == [0.0] * 4


def test_the_halves_of_a_buffer_that_alternates_are_two_places(planes: Any) -> None:
    memory = OnChip(planes.chip, planes.isa)
    tile = window("sram", "float32")
    memory.window(tile, 0).fill_(1.0)
    memory.window(tile, 512).fill_(2.0)
    assert memory.window(tile, 0).tolist() == [1.0] * 4


def test_a_window_reaches_the_last_byte_of_its_memory_and_not_beyond(planes: Any) -> None:
    memory = OnChip(planes.chip, planes.isa)
    last = 262144 - 16
    memory.window(window("acc", "float32", last), last).fill_(5.0)
    assert memory.window(window("acc", "float32", 0, (65536,)), 0)[-4:].tolist() == [5.0] * 4


@pytest.fixture
def wide(planes: Any) -> Isa:
    """The table with an sram that the functional plane holds in float32 where the chip holds 16 bits."""
    return evolve(planes.isa, wide=frozenset({"sram"}))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_wide_memory_holds_every_16_bit_number(planes: Any, wide: Isa, dtype: str) -> None:
    """All 65536 patterns, there and back."""
    numbers = torch.arange(65536).to(torch.uint16).view(getattr(torch, dtype))
    place = OnChip(planes.chip, wide).window(window("sram", dtype, 0, (65536,)), 0)
    assert place.dtype == torch.float32
    place.copy_(numbers)
    back = place.to(numbers.dtype)
    assert torch.equal(back.isnan(), numbers.isnan())
    assert torch.equal(back[~back.isnan()].view(torch.int16), numbers[~numbers.isnan()].view(torch.int16))


def test_a_wide_memory_has_room_for_as_many_numbers_as_the_chips(planes: Any, wide: Isa) -> None:
    memory = OnChip(planes.chip, wide)
    last = (1 << 20) - 8
    memory.window(window("sram", "float16", last), last).fill_(2.0)
    assert memory.window(window("sram", "float16", 0, (1 << 19,)), 0)[-4:].tolist() == [2.0] * 4
    memory.window(window("sram", "float32"), 0).fill_(1.0)
    assert memory.window(window("sram", "int32"), 0).tolist() == [0x3F800000] * 4  # other formats alias as ever
