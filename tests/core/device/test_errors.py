"""What wrong use gets, and that an error leaves the process usable."""

from __future__ import annotations

import pytest
import torch

from dsf import device, errors


def test_use_after_detach_says_what_to_do(session):
    x = torch.ones(2).to("npu")
    device.detach()
    sentence = r"^DSF-D003: npu: used while no chip is enabled; call dsf.enable\(...\) before computing on it$"
    for use in (lambda: x + 1, lambda: x.cpu(), lambda: torch.ones(2, device="npu"), lambda: torch.ones(2).npu()):
        with pytest.raises(errors.DeviceError, match=sentence):
            use()


def test_a_tensor_of_a_former_session_is_refused(make_session):
    make_session()
    old = torch.ones(2).to("npu")
    make_session()
    with pytest.raises(
        errors.DeviceError, match=r"^DSF-D004: npu: a tensor of shape \(2,\) was made before the chip was disabled"
    ):
        old + 1
    with pytest.raises(errors.DeviceError, match="DSF-D004"):
        old.tolist()
    assert (torch.ones(2, device="npu") + 1).tolist() == [2, 2]


def test_the_same_name_can_be_attached_again(make_session):
    for _ in range(3):
        make_session()
        assert (torch.ones(2).to("npu") + 1).tolist() == [2, 2]


def test_a_second_name_is_refused_in_one_process(make_session):
    made = make_session()
    device.detach()
    from attrs import evolve

    with pytest.raises(
        errors.DeviceError,
        match=r"^DSF-D002: mlu: this process already has the device 'npu', and torch allows one extra device name per "
        r"process; use a chip of that device, or start another process$",
    ):
        device.attach(type(made)(chip=evolve(made.chip, device="mlu")))
    assert device.current() is None
    device.attach(made)
    assert torch.ones(2, device="npu").sum().item() == 2


def test_two_sessions_at_once_are_refused(session):
    device.attach(session)
    with pytest.raises(errors.DeviceError, match=r"^DSF-D006: npu: another chip is enabled .* dsf.disable\(\) first$"):
        device.attach(type(session)())
    assert device.current() is session


def test_there_is_one_device(session):
    for use in (lambda: torch.ones(2, device="npu:1"), lambda: torch.npu.set_device(3)):
        with pytest.raises(
            errors.DeviceError, match=r"^DSF-D005: npu:\d: no such device; this process has one, npu:0$"
        ):
            use()


class Fault(Exception):
    pass


def test_an_error_in_a_flush_is_raised_again_by_whoever_reads_what_it_lost(session, monkeypatch):
    before = torch.ones(2).to("npu")
    lost = before * 3
    fault = Fault("the cube is on fire")
    with monkeypatch.context() as broken:
        broken.setattr(type(session), "run", lambda self, tape: (_ for _ in ()).throw(fault))
        with pytest.raises(Fault):
            lost.tolist()
    for use in (lost.tolist, lambda: lost + 1, lambda: lost.sum().item(), lambda: before.add_(lost)):
        with pytest.raises(Fault, match=r"^the cube is on fire$"):
            use()
    assert (before + 1).tolist() == [2, 2]
    lost.copy_(torch.tensor([8.0, 9.0]))
    assert (lost + 1).tolist() == [9, 10]


def test_what_a_failed_flush_would_have_overwritten_is_unknown(session, monkeypatch):
    weight, other = torch.ones(2).to("npu"), torch.ones(2).to("npu")
    weight.add_(other)
    with monkeypatch.context() as broken:
        broken.setattr(type(session), "run", lambda self, tape: (_ for _ in ()).throw(Fault()))
        with pytest.raises(Fault):
            weight.tolist()
    with pytest.raises(Fault):
        weight.tolist()
    assert other.tolist() == [1, 1]
    assert torch.npu.memory_allocated() == 1024
    del weight
    assert torch.npu.memory_allocated() == 512


def test_detach_lets_go_even_if_the_last_flush_fails(session, monkeypatch):
    x = torch.ones(2).to("npu") + 1  # noqa: F841
    monkeypatch.setattr(type(session), "run", lambda self, tape: (_ for _ in ()).throw(Fault()))
    with pytest.raises(Fault):
        device.detach()
    assert device.current() is None


def test_detach_takes_every_patch_back(session):
    ours = (torch.Generator, torch._tensor_str._tensor_str)
    device.detach()
    assert torch.Generator is not ours[0]
    assert torch._tensor_str._tensor_str is not ours[1]
    assert torch.nn.modules.module._global_forward_hooks == {}
    assert torch.UntypedStorage(4).nbytes() == 4


def test_a_value_lost_to_an_interrupt_is_told_and_interrupts_nobody_again(session, monkeypatch):
    def interrupted(self, tape):
        raise KeyboardInterrupt

    x = torch.ones(2).to("npu")
    lost = x * 3
    with monkeypatch.context() as stopped:
        stopped.setattr(type(session), "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lost.cpu()
    sentence = (
        r"^DSF-D007: npu: the step that would have made this tensor was interrupted \(KeyboardInterrupt\), so it has "
        r"no value; compute it again$"
    )
    for use in (lost.cpu, lambda: lost + 1, lambda: repr(lost)):
        with pytest.raises(errors.DeviceError, match=sentence):
            use()
    assert (x * 3).tolist() == [3, 3]
