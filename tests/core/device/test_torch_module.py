"""`torch.npu` answers what libraries ask."""

from __future__ import annotations

import pytest
import torch

from dsf import device


def test_the_device_is_counted_while_a_chip_is_attached(session):
    assert (torch.npu.is_available(), torch.npu.device_count(), torch.npu.current_device()) == (True, 1, 0)
    assert torch.npu.get_device_name() == "reference"
    assert torch.accelerator.current_accelerator().type == "npu"
    device.detach()
    assert (torch.npu.is_available(), torch.npu.device_count()) == (False, 0)


def test_memory_is_reported(session):
    x = torch.ones(256).to("npu")
    y = x + 1
    assert torch.npu.memory_allocated() == 2048
    assert torch.npu.mem_get_info() == (session.capacity - 2048, session.capacity)
    del x, y
    torch.npu.empty_cache()
    assert (torch.npu.memory_allocated(), torch.npu.max_memory_allocated()) == (0, 2048)
    assert torch.npu.get_device_properties(0).total_memory == session.capacity


def test_events_measure_emulated_time(session):
    start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    x = torch.ones(3).to("npu")
    start.record()
    for _ in range(5):
        x = x + 1
    end.record()
    torch.npu.synchronize()
    assert start.elapsed_time(end) == 5000 / 10**12
    with pytest.raises(RuntimeError, match="Both events must be recorded"):
        start.elapsed_time(torch.npu.Event())


def test_synchronize_runs_what_is_recorded(session):
    x = torch.ones(2, device="npu")  # noqa: F841
    torch.npu.synchronize()
    assert len(session.tapes) == 1
    y = torch.ones(2, device="npu")  # noqa: F841
    torch.accelerator.synchronize()
    assert len(session.tapes) == 2


def test_streams_are_one_queue(session):
    stream = torch.npu.Stream()
    with torch.npu.stream(stream), stream:
        x = torch.ones(2, device="npu") + 1
    torch.npu.current_stream().wait_stream(stream)
    stream.record_event().synchronize()
    x.record_stream(stream)
    assert stream == torch.npu.current_stream()
    assert x.tolist() == [2, 2]
    with torch.npu.device(0):
        assert torch.ones(1, device="npu").item() == 1
