"""What crosses between host and device, and what libraries do with storages."""

from __future__ import annotations

import copy
import io
import pickle
import weakref

import pytest
import torch
from torch import nn

DTYPES = (
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_goes_there_and_back(session, dtype):
    cpu = torch.tensor([0, 1, 1, 0]).to(dtype)
    there = cpu.to("npu")
    assert (there.device, there.dtype) == (torch.device("npu:0"), dtype)
    assert torch.equal(there.cpu().view(torch.uint8), cpu.view(torch.uint8))


def test_the_ways_to_say_npu(session):
    x = torch.ones(2)
    assert x.npu().is_npu
    assert x.to("npu:0").is_npu
    assert x.to(torch.device("npu")).is_npu
    assert torch.ones(2, device="npu").device == torch.device("npu", 0)
    with torch.device("npu"):
        assert torch.zeros(3).is_npu
        assert torch.tensor([1.0]).is_npu
    assert x.to(x.npu()).is_npu
    assert nn.Linear(2, 2).npu().weight.is_npu


def test_a_copy_is_a_snapshot(session):
    cpu = torch.ones(3)
    there = cpu.to("npu")
    cpu.fill_(9)
    assert there.tolist() == [1, 1, 1]


def test_strides_survive_the_way_to_the_device(session):
    cpu = torch.arange(6.0).reshape(2, 3).t()
    there = cpu.to("npu")
    assert there.stride() == (1, 3)
    assert torch.equal(there.cpu(), cpu)
    image = torch.arange(24.0).reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)
    assert image.to("npu").is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(image.to("npu").cpu(), image)


def test_a_move_may_change_the_dtype_on_either_side(session, recorded):
    x = torch.tensor([1.5, 2.5]).to("npu", torch.float16)
    assert x.dtype is torch.float16
    assert recorded() == []
    wide = x.to(torch.float64)
    assert recorded() == ["aten._to_copy.default"]
    assert wide.to("cpu", torch.int32).tolist() == [1, 2]


def test_copies_into_slices_work_in_every_direction(session):
    ours, cpu = torch.zeros(2, 4, device="npu"), torch.arange(8.0).reshape(2, 4)
    ours[:, ::2].copy_(cpu[:, :2])
    ours[1, 1:2].copy_(torch.tensor([7], dtype=torch.int64))
    assert ours.tolist() == [[0, 0, 1, 0], [4, 7, 5, 0]]
    cpu[:, 1::2] = ours[:, ::2].cpu()
    cpu[0].copy_(ours[1])
    assert cpu.tolist() == [[4, 7, 5, 0], [4, 4, 6, 5]]


def test_a_copy_into_a_tensor_that_recorded_operations_read_comes_after_them(session):
    x = torch.ones(3).to("npu")
    before = x + 1
    x.copy_(torch.tensor([5.0, 6.0, 7.0]))
    assert (before.tolist(), x.tolist()) == ([2, 2, 2], [5, 6, 7])


def test_numbers_and_cpu_scalars_keep_torchs_promotion(session):
    half = torch.ones(2, dtype=torch.float16).to("npu")
    lone = torch.ones((), dtype=torch.float16).to("npu")
    whole = torch.ones(2, dtype=torch.int64).to("npu")
    for ours, other in ((half, 0.5), (lone, 0.5), (whole, 0.5), (whole, torch.tensor(0.5, dtype=torch.float64))):
        wanted = ours.cpu() * other
        assert (ours * other).dtype is wanted.dtype
        assert torch.equal((ours * other).cpu(), wanted)
    assert (lone * torch.tensor(0.5)).dtype is torch.float32
    assert (2 ** (whole + True)).tolist() == [4, 4]


def test_devices_do_not_mix(session):
    with pytest.raises(RuntimeError, match=r"Expected all tensors to be on the same device.*npu:0 and cpu"):
        torch.ones(2, device="npu") + torch.ones(2)
    with pytest.raises(TypeError, match="can't convert npu:0 device type tensor to numpy"):
        torch.ones(2, device="npu").numpy()


def test_a_mistake_gives_torchs_own_words(session):
    with pytest.raises(RuntimeError, match=r"The size of tensor a \(2\) must match the size of tensor b \(3\)"):
        torch.ones(2, device="npu") + torch.ones(3, device="npu")
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        nn.functional.linear(torch.ones(2, 3, device="npu"), torch.ones(2, 2, device="npu"))


def test_printing_reads_once_and_names_the_device(session):
    x = torch.tensor([1.0, 2.5]).to("npu")
    session.traffic.clear()
    assert repr(x) == "tensor([1.0000, 2.5000], device='npu:0')"
    assert session.traffic == [("read", 8)]
    assert session.host_ops == []
    assert (
        repr(nn.Parameter(x)) == "Parameter containing:\ntensor([1.0000, 2.5000], device='npu:0', requires_grad=True)"
    )


def test_item_reads_one_element(session):
    x = torch.arange(1000.0).to("npu")
    session.traffic.clear()
    assert x[7].item() == 7.0
    assert type((x[3] > 2).item()) is bool
    assert session.traffic == [("read", 4), ("read", 1)]


def test_tied_weights_stay_tied(session):
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight
    kept = model[0].weight
    model.to("npu")
    assert model[1].weight is model[0].weight is kept
    assert kept.is_npu


def test_deepcopy_copies_values_and_keeps_ties(session):
    x = torch.arange(4.0).to("npu")
    pair = copy.deepcopy([x, x[1:]])
    x.zero_()
    pair[0].add_(1)
    assert (pair[0].tolist(), pair[1].tolist()) == ([1, 2, 3, 4], [2, 3, 4])
    module = copy.deepcopy(nn.Linear(2, 2).to("npu"))
    assert module.weight.is_npu
    assert module.weight.is_leaf


def test_save_and_load_in_both_directions(session):
    file = io.BytesIO()
    torch.save({"a": torch.arange(3.0).to("npu"), "b": torch.ones(2)}, file)
    for where, kind in ((None, "npu"), ("cpu", "cpu"), ("npu", "npu")):
        file.seek(0)
        assert torch.load(file, map_location=where)["a"].device.type == kind
        file.seek(0)
        assert torch.load(file, map_location=where)["a"].tolist() == [0, 1, 2]
    pickled = pickle.dumps(torch.ones(2, device="npu"))
    assert pickle.loads(pickled).tolist() == [1, 1]  # noqa: S301  we wrote it in the line above


def test_a_state_dict_of_the_cpu_loads_into_a_device_module(session):
    source, ours = nn.Linear(3, 2), nn.Linear(3, 2).to("npu")
    ours.load_state_dict(source.state_dict())
    assert torch.equal(ours.weight.cpu(), source.weight)
    meta = nn.Linear(3, 2, device="meta").to_empty(device="npu")
    meta.load_state_dict(source.state_dict())
    assert torch.equal(meta.weight.cpu(), source.weight)


def test_storages_of_the_device_can_be_made_and_copied(session):
    storage = torch.UntypedStorage(8, device="npu")
    assert (storage.nbytes(), storage.device.type) == (8, "npu")
    assert torch.UntypedStorage(8).nbytes() == 8
    assert torch.arange(3).to("npu").untyped_storage().cpu().nbytes() == 24


def test_pinned_memory_remembers(session):
    x = torch.ones(3)
    assert not x.is_pinned()
    assert x.pin_memory().is_pinned()
    assert x.pin_memory().to("npu", non_blocking=True).tolist() == [1, 1, 1]


def test_pinned_memory_is_forgotten_with_its_tensor(session):
    pinned = torch.ones(3).pin_memory()
    told = []
    kept = weakref.ref(pinned.untyped_storage(), told.append)
    del pinned
    assert told == [kept]


def test_a_data_loader_feeds_the_device(session):
    data = torch.utils.data.TensorDataset(torch.arange(4.0))
    batches = [x.to("npu") for (x,) in torch.utils.data.DataLoader(data, batch_size=2, pin_memory=True)]
    assert [b.tolist() for b in batches] == [[0, 1], [2, 3]]
