"""Bytes through the ports of the shared memories, counted by hand.

The invented chip has no cache, and hbm moves at least 64 bytes at a time. Where a test needs a cache it adds one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dsf.isa import Affine, Builder, Program
from dsf.machine.traffic import traffic

KIB = 1024


@pytest.fixture
def cached(planes_of: Callable[..., Any]) -> Callable[[int], Any]:
    """The planes of a chip with a cache of so many KiB before its main memory."""

    def cached(kib: int) -> Any:
        number = {"origin": "estimate", "source": "acme"}
        cache = {
            "scope": "chip", "cache": True, "size": {"value": f"{kib} KiB", **number},
            "bandwidth": {"value": "100 GB/s", **number}, "alignment": {"value": "64 B", **number},
        }  # fmt: skip
        return planes_of({"/memories/l2": cache})

    return cached


def moved(planes: Any, program: Program) -> list[int]:
    """Bytes through main memory's port, by phase."""
    return [phase.main for phase in traffic(program, planes.isa, planes.chip)]


def load(b: Builder, param: int, offset: Affine | int, nbytes: int) -> None:
    b("copy.hbm.sram", b.on("sram", 0, (nbytes // 2,), "float16"), b.gm(param, offset, (nbytes // 2,), "float16"))


def store(b: Builder, param: int, offset: Affine | int, nbytes: int) -> None:
    b("copy.sram.hbm", b.gm(param, offset, (nbytes // 2,), "float16"), b.on("sram", 0, (nbytes // 2,), "float16"))


def tiled(b: Builder) -> Program:
    """4 x 3 tiles of a result: each reads a row tile of 4 KiB and a column tile of 8 KiB and writes 2 KiB. In all
    16 KiB of rows, 24 KiB of columns, 24 KiB of results."""
    for name, role, nbytes in (("a", "in", 16 * KIB), ("b", "in", 24 * KIB), ("c", "out", 24 * KIB)):
        b.param(name, role, nbytes)
    with b.phase("core"), b.nest(i=4, j=3) as (i, j):
        load(b, 0, i * (4 * KIB), 4 * KIB)
        load(b, 1, j * (8 * KIB), 8 * KIB)
        store(b, 2, i * (6 * KIB) + j * (2 * KIB), 2 * KIB)
    return b.build()


def test_without_a_cache_every_access_reaches_main_memory(planes: Any) -> None:
    assert moved(planes, tiled(planes.builder())) == [12 * 14 * KIB]


@pytest.mark.parametrize(
    ("cache", "wanted"),
    [
        (1024, 64),  # everything fits: each byte once
        (64, 64),
        (40, 64),  # one row of tiles (4 + 24 + 6 KiB) fits: the columns are found again in the next row
        (34, 64),
        (33, 4 * 34),  # only one tile fits: the row tile is kept, the columns are read in each of four rows
        (14, 4 * 34),
        (13, 12 * 14),  # not even one tile
        (1, 12 * 14),
    ],
)
def test_a_cache_keeps_what_fits_between_two_uses(cached: Callable[[int], Any], cache: int, wanted: int) -> None:
    planes = cached(cache)
    assert moved(planes, tiled(planes.builder())) == [wanted * KIB]


def test_a_loop_inside_a_block_reuses_as_well(cached: Callable[[int], Any]) -> None:
    """Eight rounds over the same 16 KiB: kept by 16 KiB of cache, read eight times through 15."""
    for cache, wanted in ((16, 16), (15, 128)):
        planes = cached(cache)
        b = planes.builder()
        b.param("x", "in", 64 * KIB)
        with b.phase("core"), b.nest(i=1), b.loop(8), b.loop(4) as r:
            load(b, 0, r * (4 * KIB), 4 * KIB)
        assert moved(planes, b.build()) == [wanted * KIB]


def test_two_windows_on_the_same_bytes_are_one(cached: Callable[[int], Any]) -> None:
    planes = cached(64)
    b = planes.builder()
    b.param("x", "in", 64 * KIB)
    b.param("y", "in", 64 * KIB)
    with b.phase("core"), b.nest(i=16) as (i,):
        load(b, 1, i * (4 * KIB), 4 * KIB)
    with b.phase("core"), b.nest(i=2) as (i,):
        load(b, 0, i * (4 * KIB), 4 * KIB)
        load(b, 0, 0, 8 * KIB)
    assert moved(planes, b.build()) == [64 * KIB, 8 * KIB]


def test_a_buffer_that_alternates_is_as_large_as_its_halves(cached: Callable[[int], Any]) -> None:
    planes = cached(64)
    b = planes.builder()
    b.param("x", "in", 8 * KIB)
    with b.phase("core"), b.nest(i=1), b.loop(100) as r:
        load(b, 0, (r % 2) * (2 * KIB), 2 * KIB)
    assert moved(planes, b.build()) == [4 * KIB]


def test_a_buffer_that_alternates_leaves_room_in_the_cache(cached: Callable[[int], Any]) -> None:
    """Beside 64 KiB that stream through, 4 KiB stay in 8 KiB of cache, however often they are read."""
    planes = cached(8)
    b = planes.builder()
    b.param("x", "in", 4 * KIB)
    b.param("y", "in", 64 * KIB)
    with b.phase("core"), b.nest(i=1), b.loop(16) as outer:
        load(b, 1, outer * (4 * KIB), 4 * KIB)
        with b.loop(50) as r:
            load(b, 0, (r % 2) * (2 * KIB), 2 * KIB)
    assert moved(planes, b.build()) == [68 * KIB]


def two_phases(b: Builder) -> Program:
    """A workspace of 4 KiB is written from 8 KiB of x, then read together with x to write 2 KiB."""
    b.param("x", "in", 8 * KIB)
    b.param("y", "out", 2 * KIB)
    b.param("w", "workspace", 4 * KIB)
    with b.phase("core"), b.nest(i=1):
        load(b, 0, 0, 8 * KIB)
        store(b, 2, 0, 4 * KIB)
    with b.phase("core"), b.nest(i=1):
        load(b, 2, 0, 4 * KIB)
        load(b, 0, 0, 8 * KIB)
        store(b, 1, 0, 2 * KIB)
    return b.build()


@pytest.mark.parametrize(("cache", "wanted"), [(18, [12, 2]), (17, [12, 14])])
def test_a_kernel_that_fits_the_cache_moves_each_byte_once(
    cached: Callable[[int], Any], cache: int, wanted: list[int]
) -> None:
    """The whole kernel needs 18 KiB, reads and writes of the workspace being 4 KiB each; then the second phase finds
    all that it reads in the cache."""
    planes = cached(cache)
    assert moved(planes, two_phases(planes.builder())) == [n * KIB for n in wanted]


def gathered(b: Builder, rows: int) -> Program:
    """Three times ten rows of 128 bytes from a table of *rows*; the index is on chip."""
    b.param("table", "in", rows * 128)
    with b.phase("core"), b.nest(i=1), b.loop(3):
        b("gather", b.on("sram", 0, (10, 64), "float16"), b.gm(0, 0, (rows, 64), "float16"),
          b.on("sram", 8192, (10, 1), "int64"))  # fmt: skip
    return b.build()


def test_an_indexed_copy_moves_rows_and_not_the_table(planes: Any, cached: Callable[[int], Any]) -> None:
    assert moved(planes, gathered(planes.builder(), 5000)) == [3 * 10 * 128]
    behind = cached(1024)
    assert moved(behind, gathered(behind.builder(), 5000)) == [3 * 10 * 128]
    assert moved(behind, gathered(behind.builder(), 20)) == [20 * 128]  # no more than there are


@pytest.mark.parametrize(
    ("shape", "stride", "wanted"),
    [
        ((32, 8), (576, 1), 32 * 64),  # 16 bytes of each row: a burst of 64 each
        ((32, 64), (576, 1), 32 * 128),
        ((8, 64), (0, 1), 128),  # one row that stands for eight
        ((64, 64), (1, 64), 64 * 128),  # by columns, but dense
        ((1,), (1,), 64),
        ((0, 64), (64, 1), 0),
    ],
)
def test_a_transfer_moves_whole_bursts_of_what_is_there(
    planes: Any, shape: tuple[int, ...], stride: tuple[int, ...], wanted: int
) -> None:
    b = planes.builder()
    b.param("x", "in", 64 * KIB)
    with b.phase("core"), b.nest(i=1):
        b("copy.hbm.sram", b.on("sram", 0, shape, "float16"), b.gm(0, 0, shape, "float16", stride))
    assert moved(planes, b.build()) == [wanted]


def test_what_is_rounded_on_its_way_out_counts_as_it_arrives(planes: Any) -> None:
    b = planes.builder()
    b.param("y", "out", 4 * KIB)
    with b.phase("core"), b.nest(i=1):
        b("copy.acc.hbm", b.gm(0, 0, (1024,), "float16"), b.on("acc", 0, (1024,), "float32"))
    assert moved(planes, b.build()) == [2048]


def test_every_access_goes_through_the_caches_port(cached: Callable[[int], Any]) -> None:
    """12 tiles of 14 KiB are 172032 bytes: 1720.32 ns at 100 GB/s, though main memory sees 65536: 163.84 ns at 400."""
    planes = cached(1024)
    program = tiled(planes.builder())
    (phase,) = traffic(program, planes.isa, planes.chip)
    assert (phase.main, phase.cores) == (65536, 172032)
    assert planes.time(program).phases[0].memory_fs == 1_720_320_000
    assert planes.time(program).nbytes == 65536


def test_what_stays_on_chip_moves_nothing(planes: Any) -> None:
    b = planes.builder()
    with b.phase("core"), b.nest(i=100):
        b("v.fill", b.on("sram", 0, (1024,), "float32"), value=0)
    assert moved(planes, b.build()) == [0]
