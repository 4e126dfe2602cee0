"""What is the same on every core that runs in lockstep is held once, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dsf.isa import Builder, Program
from dsf.machine.arena import Arena
from dsf.machine.functional import Functional
from dsf.machine.lanes import lanes_of

TILE = (8, 16)
BYTES = 8 * 16 * 4


@pytest.fixture
def b(planes: Any) -> Builder:
    builder = planes.builder()
    builder.param("shared", "in", 4096)
    builder.param("own", "in", 16 * BYTES)
    builder.param("y", "out", 16 * BYTES)
    return builder


def added(b: Builder, spoil: bool = False) -> Program:
    """y[i] = shared + own[i] for 16 blocks; with *spoil*, the shared tile is then added to in each block."""
    with b.phase("core"), b.nest(i=16) as (i,):
        shared, own, result = (b.on("sram", at * 1024, TILE, "float32") for at in range(3))
        b("copy.hbm.sram", shared, b.gm(0, 0, TILE, "float32"))
        b("copy.hbm.sram", own, b.gm(1, i * BYTES, TILE, "float32"))
        b.order("din", "vec")
        b("v.add", result, shared, own)
        if spoil:
            b("v.add", shared, shared, own)
            b("v.add", result, result, shared)
        b.order("vec", "dout")
        b("copy.sram.hbm", b.gm(2, i * BYTES, TILE, "float32"), result)
        b.order("dout", "din")
        b.order("dout", "vec")
        b.order("vec", "din")
    return b.build()


def spaces(program: Program, planes: Any) -> list[int]:
    """Where the uniform operands of the program's only nest stand."""
    found = lanes_of(program.phases[0].nests[0], planes.isa, 24)
    assert found.variable == "i"
    assert found.most > 1
    return sorted(operand.offset.const for operand in found.uniform)


def test_what_every_block_loads_from_one_place_is_uniform(b: Builder, planes: Any) -> None:
    assert spaces(added(b), planes) == [0]


def test_what_is_computed_from_a_blocks_own_numbers_is_not(b: Builder, planes: Any) -> None:
    assert spaces(added(b, spoil=True), planes) == []


@pytest.mark.parametrize("spoil", [False, True])
def test_lanes_with_shared_tiles_are_bit_equal_to_the_oracle(b: Builder, planes: Any, spoil: bool) -> None:
    planes.run(added(b, spoil))


def test_a_uniform_tile_is_loaded_once_for_all_lanes(b: Builder, planes: Any) -> None:
    program = added(b)
    machine = Functional(planes.chip, planes.isa, Arena(1 << 20))
    moved = [step[1][1].shape for step in machine.unroll(program).steps if len(step[1]) == 2]
    assert moved.count(TILE) == 1
    assert torch.Size(moved[1]) == (16, *TILE)


def test_a_tile_that_overlaps_a_blocks_own_is_not_uniform(planes: Any) -> None:
    b = planes.builder()
    b.param("x", "in", 16 * BYTES)
    b.param("y", "out", 16 * BYTES)
    with b.phase("core"), b.nest(i=16) as (i,):
        whole, half = b.on("sram", 0, TILE, "float32"), b.on("sram", 256, (4, 16), "float32")
        b("v.fill", whole, value=1.0)
        b.order("vec", "din")
        b("copy.hbm.sram", half, b.gm(0, i * BYTES, (4, 16), "float32"))
        b.order("din", "dout")
        b.order("vec", "dout")
        b("copy.sram.hbm", b.gm(1, i * BYTES, TILE, "float32"), whole)
        b.order("dout", "vec")
    program = b.build()
    assert spaces(program, planes) == []
    planes.run(program)
