"""What a tape says of what was recorded."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from dsf import device
from dsf.device.tape import recorder
from dsf.intent.tape import Region, Slot, Window


def last(session):
    device.flush()
    return session.tapes[-1]


def test_nothing_runs_before_somebody_asks(session):
    x = torch.ones(4, device="npu")
    y = x * 2 + 1
    assert session.tapes == []
    assert y.tolist() == [3, 3, 3, 3]
    assert len(session.tapes) == 1


def test_an_operation_names_its_target_arguments_and_windows(session):
    x = torch.zeros(2, 6).to("npu")
    y = x[:, 2:4] * 0.5  # noqa: F841
    op = last(session).ops[0]
    assert op.target == "aten.mul.Tensor"
    assert op.signature.args == (Slot(0), 0.5)
    assert op.signature.writes == (1,) == op.signature.outs
    assert op.args[0] == Region(0, Window((2, 2), (6, 1), 2, torch.float32))
    assert op.outs == (Region(1, Window((2, 2), (2, 1), 0, torch.float32)),)


def test_an_in_place_operation_writes_its_argument_and_makes_no_buffer(session):
    x = torch.zeros(3).to("npu")
    x.add_(1)
    op = last(session).ops[0]
    assert (op.signature.writes, op.signature.outs, op.buffers) == ((0,), (0,), (0,))


def test_tensor_lists_are_tuples_of_slots(session):
    x = torch.zeros(3).to("npu")
    y = torch.cat([x, x])  # noqa: F841
    op = last(session).ops[0]
    assert op.signature.args == ((Slot(0), Slot(1)),)
    assert op.buffers == (0, 0, 1)


def test_where_a_factory_makes_its_tensor_is_no_argument(session):
    x = torch.full((2,), 3, dtype=torch.int64, device="npu")  # noqa: F841
    op = last(session).ops[0]
    assert (op.target, op.kwargs) == ("aten.full.default", {"dtype": torch.int64})


def test_equal_calls_share_a_signature_and_unequal_types_do_not(session):
    x = torch.ones(2, dtype=torch.int64).to("npu")
    kept = [x * 5, x * 5, x * 5.0, x * True, x * 1, x * 0.0, x * -0.0]
    ids = [op.signature.id for op in last(session).ops]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 6
    assert [k.dtype for k in kept[2:4]] == [torch.float32, torch.int64]


def test_a_number_that_is_nan_is_interned_once(session):
    x = torch.ones(2).to("npu")
    kept = [x.masked_fill(x > 0, float("nan")) for _ in range(2)]
    assert kept[0].isnan().all().item()
    ids = [op.signature.id for op in session.tapes[0].ops if op.target == "aten.masked_fill.Scalar"]
    assert len(ids) == 2
    assert ids[0] == ids[1]


def test_a_dead_output_is_a_temporary_and_a_held_one_lives(session):
    x = torch.ones(2).to("npu")
    y = (x + 1) * 2  # noqa: F841
    buffers = last(session).buffers
    assert [(b.address is None, b.live) for b in buffers] == [(False, True), (True, False), (True, True)]


def test_a_view_keeps_its_buffer_alive(session):
    y = (torch.ones(4).to("npu") + 1)[1:]
    assert last(session).buffers[1].live
    assert y.tolist() == [2, 2, 2]


def test_what_was_uploaded_is_constant_until_something_writes_it(session):
    x = torch.ones(2).to("npu")
    x + 1
    assert last(session).buffers[0].constant
    x.mul_(2)
    assert not last(session).buffers[0].constant
    x + 1
    assert not last(session).buffers[0].constant
    x + 1
    assert last(session).buffers[0].constant
    x.copy_(torch.zeros(2))
    x + 1
    assert last(session).buffers[0].constant


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x * 2


@torch.no_grad()
def test_an_operation_knows_its_module_by_path_and_class(session):
    net = Net().to("npu")
    net(torch.ones(1, 4, device="npu"))
    scopes = [(op.target, op.scope.path, op.scope.module) for op in last(session).ops]
    assert scopes[:3] == [
        ("aten.ones.default", "", ""),
        ("aten.linear.default", "layers.0.up", "Linear"),
        ("aten.relu.default", "layers.0", "Block"),
    ]
    assert scopes[-1] == ("aten.mul.Tensor", "", "Net")


@torch.no_grad()
def test_equal_layers_record_equal_signatures(session):
    net = Net().to("npu")
    net(torch.ones(1, 4, device="npu"))
    by_layer = [
        [op.signature.id for op in last(session).ops if op.scope.path.startswith(f"layers.{n}")] for n in range(2)
    ]
    assert by_layer[0] == by_layer[1]
    assert len(by_layer[0]) == 4


def test_a_forward_that_raises_leaves_its_scope(session):
    class Broken(nn.Module):
        def forward(self, x):
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        Broken()(1)
    x = torch.ones(1, device="npu")  # noqa: F841
    assert last(session).ops[0].scope.module == ""


def test_a_module_outside_the_root_is_named_under_its_caller(session):
    class Caller(nn.Module):
        def forward(self, x):
            return nn.ReLU()(x)

    Caller()(torch.ones(1, device="npu"))
    assert last(session).ops[-1].scope.path == "ReLU"


@torch.no_grad()
def test_an_operation_cites_the_users_line(session):
    net = nn.Linear(2, 2).to("npu")
    x = torch.ones(1, 2, device="npu")
    line = sys._getframe().f_lineno + 1
    net(x)
    ops = last(session).ops
    assert (ops[0].site.file, ops[0].site.line) == (__file__, line - 2)
    assert (ops[1].site.file, ops[1].site.line) == (__file__, line)


@torch.no_grad()
def test_composite_operations_are_recorded_whole(session, recorded):
    x = torch.ones(2, 3, 4, device="npu")
    q = torch.ones(1, 2, 3, 4, device="npu")
    recorded()
    nn.functional.linear(x, x[0])
    x @ x.mT
    nn.functional.scaled_dot_product_attention(q, q, q)
    x.softmax(-1)
    nn.functional.layer_norm(x, (4,))
    nn.functional.rms_norm(x, (4,))
    assert recorded() == [
        "aten.linear.default", "aten.matmul.default", "aten.scaled_dot_product_attention.default", "aten.softmax.int",
        "aten.layer_norm.default", "aten.rms_norm.default",
    ]  # fmt: skip


def test_what_autograd_must_see_is_decomposed(session, recorded):
    x = torch.ones(2, 3, device="npu", requires_grad=True)
    recorded()
    x.softmax(-1)
    assert recorded() == ["aten._softmax.default"]


@torch.no_grad()
def test_attention_lays_its_heads_out_inside_a_token(session, recorded):
    q = torch.ones(1, 2, 3, 4, device="npu")
    out = nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    assert out.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("columns", [12, 10])
def test_a_product_by_experts_in_float32_is_recorded_with_the_cpus_strides(session, recorded, columns):
    """Torch's meta kernel refuses it; its CPU kernel makes rows of whole 16 bytes."""
    x, w, ends = torch.randn(6, 16), torch.randn(3, columns, 16).mT, torch.tensor([2, 2, 6], dtype=torch.int32)
    wanted = torch._grouped_mm(x, w, ends)
    ours = [t.to("npu") for t in (x, w, ends)]
    recorded()
    found = torch._grouped_mm(*ours)
    assert found.stride() == wanted.stride()
    assert session.host_ops == []
    torch.testing.assert_close(found.cpu(), wanted)
    assert recorded() == ["aten._grouped_mm.default"]


def test_a_long_tape_is_run_before_it_is_asked_for(session, monkeypatch):
    monkeypatch.setattr(recorder, "cap", 10)
    x = torch.ones(1, device="npu")
    for _ in range(25):
        x = x + 1
    assert [len(t.ops) for t in session.tapes] == [10, 10]
    assert x.item() == 26


def test_a_dispatch_mode_sees_the_parts_of_a_composite(session):
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x = torch.ones(2, 3, device="npu")
    with Log(), torch.no_grad():
        nn.functional.linear(x, x)
    assert "aten.linear.default" not in seen
    assert "aten.mm.default" in seen
