"""Views are metadata, writes go through them in program order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transpose": lambda x: x.t(),
    "slice": lambda x: x[1:, ::2],
    "select": lambda x: x[1],
    "expand": lambda x: x[:, :1].expand(3, 4),
    "unsqueeze": lambda x: x.unsqueeze(1).squeeze(1),
    "permute": lambda x: x.view(3, 2, 2).permute(2, 0, 1),
    "flatten": lambda x: x.reshape(-1),
    "diagonal": lambda x: x.diagonal(),
    "unfold": lambda x: x.unfold(1, 2, 1),
    "chunk": lambda x: x.chunk(2, 1)[1],
    "split": lambda x: x.split([1, 3], 1)[1],
    "unbind": lambda x: x.unbind(0)[2],
    "bytes": lambda x: x.view(torch.int32),
    "strided": lambda x: x.as_strided((2, 2), (4, 1), 5),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_has_the_cpus_value_and_records_nothing(session, recorded, name):
    cpu = torch.arange(12.0).reshape(3, 4)
    x = cpu.to("npu")
    view, wanted = VIEWS[name](x), VIEWS[name](cpu)
    assert recorded() == []
    assert (view.shape, view.stride(), view.storage_offset()) == (
        wanted.shape,
        wanted.stride(),
        wanted.storage_offset(),
    )
    assert torch.equal(view.cpu(), wanted)


def test_views_share_the_address_of_their_base(session):
    x = torch.zeros(4, 8, device="npu")
    assert x[1:].data_ptr() == x.data_ptr() + 32
    assert x[1]._base is x


def test_a_write_through_a_view_is_seen_by_the_base_and_its_other_views(session, recorded):
    x = torch.zeros(3, 4, device="npu")
    other = x.t()[1]
    x[1:, 1:3] += 2.0
    x.view(-1)[0] = 7.0
    assert x.tolist() == [[7, 0, 0, 0], [0, 2, 2, 0], [0, 2, 2, 0]]
    assert other.tolist() == [0, 2, 2]
    assert "aten.add_.Tensor" in recorded()


def test_a_value_read_before_a_write_keeps_the_old_bytes(session):
    x = torch.ones(4, device="npu")
    before = x * 1
    x.mul_(5)
    after = x * 1
    assert (before.tolist(), after.tolist()) == ([1, 1, 1, 1], [5, 5, 5, 5])


def test_a_write_bumps_the_version_that_autograd_checks(session):
    w = torch.ones(3, device="npu", requires_grad=True)
    y = w.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_an_out_argument_is_written_and_resized(session):
    a = torch.arange(4.0).to("npu")
    fit, wrong = torch.empty(4, device="npu"), torch.empty(0, device="npu")
    assert torch.add(a, 1, out=fit) is fit
    torch.mul(a, 3, out=wrong)
    assert (fit.tolist(), wrong.tolist()) == ([1, 2, 3, 4], [0, 3, 6, 9])


def test_an_out_argument_of_a_host_operation_is_written(session):
    out = torch.empty(0, dtype=torch.int64, device="npu")
    torch.nonzero(torch.tensor([0, 3, 0, 4]).to("npu"), out=out)
    assert out.tolist() == [[1], [3]]


def test_two_results_of_one_operation_come_in_order(session):
    values, indices = torch.tensor([3.0, 1.0, 2.0]).to("npu").sort()
    assert (values.tolist(), indices.tolist()) == ([1, 2, 3], [1, 2, 0])


def test_resize_keeps_the_first_elements(session):
    x = torch.tensor([1.0, 2.0, 3.0]).to("npu")
    x.resize_(5)
    assert x[:3].tolist() == [1, 2, 3]
    x.resize_(2, 1)
    assert x.tolist() == [[1], [2]]


def test_set_lets_a_tensor_take_another_ones_storage(session):
    x, y = torch.zeros(2, device="npu"), torch.tensor([4.0, 5.0]).to("npu")
    x.set_(y)
    y.add_(1)
    assert x.tolist() == [5, 6]


def test_a_lazy_conjugate_is_carried_out(session):
    z = torch.tensor([1 + 2j, 3 - 4j])
    ours = z.to("npu")
    assert torch.equal(ours.conj().cpu(), z.conj().resolve_conj())
    assert torch.equal((ours.conj() * 2).cpu(), (z.conj() * 2).resolve_conj())
    assert torch.equal(ours.conj().imag.neg().cpu(), z.conj().imag.neg())
    assert torch.equal(torch.dot(ours.conj(), ours).cpu(), torch.dot(z.conj(), z))


def test_indexing_takes_masks_tensors_and_indices_of_the_cpu(session):
    cpu = torch.arange(12.0).reshape(3, 4)
    x = cpu.to("npu")
    rows = torch.tensor([2, 0])
    assert torch.equal(x[rows].cpu(), cpu[rows])
    assert torch.equal(x[rows.to("npu"), 1:].cpu(), cpu[rows, 1:])
    assert torch.equal(x[x > 5].cpu(), cpu[cpu > 5])
    x[rows] = 0.5
    cpu[rows] = 0.5
    x[x < 1] = -1.0
    cpu[cpu < 1] = -1.0
    assert torch.equal(x.cpu(), cpu)
