"""Main memory that is full says who has it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsf import errors, hdl
from dsf.intent.tape import Site
from dsf.storage import Storage

MIB = 1 << 20


def quantity(value: str) -> dict[str, str]:
    return {"value": value, "origin": "estimate", "source": "acme"}


@pytest.fixture
def storage(described: Callable[..., Path]) -> Storage:
    """16 MiB, of which the runtime keeps 4 for itself; addresses alone, no bytes."""
    sizes: dict[str, Any] = {"/memories/hbm/size": quantity("16 MiB"), "/memories/hbm/reserved": quantity("4 MiB")}
    return Storage(hdl.load(str(described(sizes))), valued=False)


def refusal(storage: Storage, nbytes: int) -> list[str]:
    with pytest.raises(errors.OutOfMemory) as caught:
        storage.allocate(nbytes, Site("ask.py", 9))
    assert caught.value.code == "DSF-M001"
    return caught.value.sentence.split("\n")


def test_what_the_runtime_keeps_for_itself_is_said_as_the_hdl_states_it(storage: Storage) -> None:
    assert refusal(storage, 13 * MIB) == [
        "hbm of acme-x1: needed 13.0 MiB, available 12.0 MiB of 12.0 MiB (largest piece 12.0 MiB; the runtime keeps "
        "4.0 MiB more for itself), recorded at ask.py:9; use a smaller model, batch or context, a narrower dtype, or a "
        "chip with more memory (dsf-cli chips)"
    ]


def test_many_small_tensors_of_one_line_are_one_sum_and_the_largest_come_first(storage: Storage) -> None:
    for _ in range(32):
        storage.allocate(MIB // 8, Site("load.py", 3))
    storage.allocate(MIB, Site("cache.py", 7))
    storage.scratch.at_least(5 * MIB, Site("step.py", 1))
    storage.allocate(MIB // 2, None)
    assert refusal(storage, 2 * MIB)[1:] == [
        "  5.0 MiB in 1 workspace recorded at step.py:1",
        "  4.0 MiB in 32 tensors recorded at load.py:3",
        "  1.0 MiB in 1 tensor recorded at cache.py:7",
        "  0.5 MiB in 1 tensor whose line was not recorded",
    ]


def test_five_residents_are_listed_and_the_rest_is_one_line(storage: Storage) -> None:
    for line in range(1, 9):
        storage.allocate(line * MIB // 4, Site("load.py", line))
    listed = refusal(storage, 12 * MIB)[1:]
    assert [re.findall(r"load\.py:(\d)", text) for text in listed] == [["8"], ["7"], ["6"], ["5"], ["4"], []]
    assert listed[-1] == "  1.5 MiB in 3 others"


def test_what_was_given_back_is_no_resident(storage: Storage) -> None:
    address = storage.allocate(8 * MIB, Site("old.py", 1))
    storage.free(address)
    storage.allocate(8 * MIB, Site("new.py", 2))
    assert refusal(storage, 8 * MIB)[1:] == ["  8.0 MiB in 1 tensor recorded at new.py:2"]
    storage.free(address)
    assert storage._residents == {}


def test_a_workspace_that_gave_way_is_no_resident(storage: Storage) -> None:
    storage.temporaries.at_least(8 * MIB, Site("step.py", 1))
    storage.settle()
    assert len(refusal(storage, 13 * MIB)) == 1
