"""Emulated memory is taken when a value needs it and given back when the last tensor dies."""

from __future__ import annotations

import gc

import pytest
import torch

from dsf import device, errors


def test_memory_is_freed_when_the_last_view_dies(session):
    x = torch.ones(1000).to("npu")
    view = x[10:]
    assert torch.npu.memory_allocated() == 4096
    del x
    assert torch.npu.memory_allocated() == 4096
    del view
    assert torch.npu.memory_allocated() == 0


def test_what_a_recorded_operation_reads_is_kept_for_it(session):
    x = torch.arange(3.0).to("npu")
    y = x + 1
    del x
    filler = torch.full((3,), 9.0).to("npu")
    assert (y.tolist(), filler.tolist()) == ([1, 2, 3], [9, 9, 9])
    assert torch.npu.memory_allocated() == 1024


def test_an_empty_tensor_takes_no_memory_until_it_is_written(session):
    x = torch.empty(1000, device="npu")
    assert torch.npu.memory_allocated() == 0
    x.zero_()
    assert torch.npu.memory_allocated() == 4096


def test_virtual_addresses_are_aligned_and_never_shared(session):
    tensors = [torch.empty(n, device="npu") for n in (0, 1, 127, 128, 129)]
    addresses = [t.data_ptr() for t in tensors]
    assert len(set(addresses)) == 5
    assert all(a % 512 == 0 for a in addresses)


def test_too_large_a_copy_raises_and_leaves_the_rest_usable(make_session):
    make_session(capacity=1 << 12)
    small = torch.ones(4).to("npu")
    with pytest.raises(errors.OutOfMemory):
        torch.ones(4096).to("npu")
    assert small.tolist() == [1, 1, 1, 1]


def test_memory_that_only_recorded_operations_hold_is_found_before_giving_up(make_session):
    make_session(capacity=4096 + 1024)
    x = torch.ones(1024).to("npu")
    total = x.sum()
    del x
    y = torch.full((1024,), 2.0).to("npu")
    assert (total.item(), y.sum().item()) == (1024, 2048)


def test_a_training_loop_does_not_leak(session):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).to("npu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.ones(2, 8, device="npu")).sum().backward()
        optimizer.step()
        gc.collect()
        seen.append(torch.npu.memory_allocated())
    assert seen[1] == seen[2] == seen[3]


def test_a_held_error_does_not_hide_behind_a_dying_tensor(session):
    with pytest.raises(TypeError, match="can't convert npu:0 device type tensor to numpy"):
        torch.ones(2).to("npu").numpy()  # the tensor dies while torch's error is on its way
    assert torch.npu.memory_allocated() == 0


def test_detach_forgets_every_block(session):
    x = torch.ones(2).to("npu")
    device.detach()
    assert device.current() is None
    with pytest.raises(errors.DeviceError, match="DSF-D003"):
        x + 1
