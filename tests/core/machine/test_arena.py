"""The emulated main memory: windows alias, untouched bytes cost nothing, what is given back reads as zero."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch

from dsf import errors
from dsf.machine.arena import Arena

PAGE = mmap.PAGESIZE


def resident() -> int:
    """Bytes of this process that are in the host's memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def test_windows_of_any_format_are_the_same_bytes() -> None:
    arena = Arena(1 << 16)
    arena.window(512, (4,), (1,), torch.float32).copy_(torch.tensor([1.0, 2.0, -1.0, 0.5]))
    assert arena.bytes[512:516].tolist() == [0, 0, 0x80, 0x3F]  # 1.0 is 0x3f800000, the low byte first
    assert arena.window(512, (2,), (1,), torch.int32).tolist() == [0x3F800000, 0x40000000]
    arena.window(512, (2,), (1,), torch.bfloat16).fill_(3.0)
    assert arena.window(512, (4,), (1,), torch.float32)[1].item() == 2.0


def test_windows_may_have_strides_and_overlap() -> None:
    arena = Arena(1 << 16)
    arena.window(0, (12,), (1,), torch.int32).copy_(torch.arange(12))
    assert arena.window(4, (3, 2), (4, 1), torch.int32).tolist() == [[1, 2], [5, 6], [9, 10]]
    arena.window(0, (3,), (4,), torch.int32).fill_(-1)
    assert arena.window(0, (12,), (1,), torch.int32).tolist() == [-1, 1, 2, 3, -1, 5, 6, 7, -1, 9, 10, 11]


def test_sixty_four_gibibytes_are_mapped_and_cost_nothing() -> None:
    before = resident()
    arena = Arena(64 << 30)
    assert arena.bytes.numel() == 64 << 30
    arena.window((64 << 30) - 4, (1,), (1,), torch.float32).fill_(7.0)
    assert arena.bytes[40 << 30].item() == 0
    assert resident() - before < 1 << 20


def test_only_what_is_written_is_held() -> None:
    arena = Arena(4 << 30)
    before = resident()
    arena.bytes[1 << 30 : (1 << 30) + (32 << 20)] = 1
    assert 32 << 20 <= resident() - before < 34 << 20


def test_what_is_given_back_is_no_longer_held_and_reads_as_zero() -> None:
    arena = Arena(1 << 30)
    arena.bytes[: 32 << 20] = 1
    before = resident()
    arena.discard(0, 32 << 20)
    assert before - resident() > 31 << 20
    assert arena.bytes[: 32 << 20].count_nonzero() == 0


@pytest.mark.parametrize(
    ("address", "nbytes"),
    [(0, PAGE), (512, 512), (512, 3 * PAGE), (PAGE, PAGE + 512), (PAGE - 512, 1024), (3 * PAGE - 1, 2), (700, 0)],
)
def test_all_the_bytes_given_back_read_as_zero_and_no_others(address: int, nbytes: int) -> None:
    """Whole pages or not."""
    arena = Arena(16 * PAGE)
    arena.bytes.fill_(1)
    arena.discard(address, nbytes)
    wanted = torch.ones(16 * PAGE, dtype=torch.uint8)
    wanted[address : address + nbytes] = 0
    assert torch.equal(arena.bytes, wanted)


def test_the_end_that_holds_no_whole_element_is_left_out() -> None:
    assert Arena(4099).typed(torch.float32).numel() == 1024


def test_a_memory_that_the_host_cannot_map_is_refused_in_words() -> None:
    with pytest.raises(
        errors.MachineError,
        match=r"^DSF-X010: this host cannot map 4611686018427387904 bytes of emulated memory \(.*\); "
        r"raise the address-space limit \(ulimit -v\) or use fidelity='timing'$",
    ):
        Arena(1 << 62)
