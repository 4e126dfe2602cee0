"""In `timing` nothing has a value: models of any size are recorded, and reads give zeros."""

from __future__ import annotations

import pytest
import torch
from torch import nn


@pytest.fixture
def timing(make_session):
    return make_session(fidelity="timing", capacity=1 << 20)


def test_reads_are_true_and_zero(timing):
    x = torch.ones(3).to("npu")
    assert (x.sum() > 5).item() is True
    assert x.sum().item() == 0.0
    assert x.long()[0].item() == 0
    assert x.cpu().tolist() == [0, 0, 0]


def test_flushes_still_reach_the_session(timing):
    x = torch.ones(3).to("npu")
    (x + 1).cpu()
    assert [op.target for op in timing.tapes[0].ops] == ["aten.add.Tensor"]


def test_random_numbers_are_not_drawn_but_counted(timing):
    x = torch.empty(4, device="npu").normal_()
    assert torch.rand(3, device="npu").shape == (3,)
    assert x.cpu().tolist() == [0, 0, 0, 0]
    assert timing.host_ops == ["aten.normal_.default", "aten.rand.default"]


def test_what_depends_on_values_sees_zeros(timing):
    assert torch.nonzero(torch.ones(3).to("npu")).shape == (0, 1)


@torch.no_grad()
def test_a_module_without_weights_in_memory_is_recorded(timing):
    layer = nn.Linear(64, 64, device="meta").to_empty(device="npu")
    out = layer(torch.ones(2, 64, device="npu"))
    assert out.shape == (2, 64)
    torch.npu.synchronize()
    assert timing.tapes[-1].ops[-1].target == "aten.linear.default"
