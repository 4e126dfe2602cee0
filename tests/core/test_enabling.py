"""Switching a chip on and off. Whatever goes wrong, nothing is half-enabled: either the session of before goes on, or
there is none and torch is as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import dsf
from dsf import device, enabling, errors
from dsf.plugins import Registry

Maker = Callable[..., Any]


@pytest.fixture(autouse=True)
def nothing_enabled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variable in ("DSF_CHIP", "DSF_FIDELITY", "DSF_HDL_PATH", "DSF_THERMAL", "DSF_AMBIENT"):
        monkeypatch.delenv(variable, raising=False)
    dsf.disable()
    yield
    dsf.disable()


@pytest.fixture
def npu(described: Maker) -> str:
    """The path of a chip whose device is `npu`, the one name that this process may have."""
    return str(described({"/device": "npu"}))


def assert_nothing_enabled() -> None:
    assert dsf.current() is None
    assert device.current() is None
    assert torch.nn.modules.module._global_forward_hooks == {}


# On, off, on


def test_an_enabled_chip_is_a_device_of_torch(npu: str) -> None:
    session = dsf.enable(npu)
    assert dsf.current() is session is device.current()
    assert (session.fidelity, session.strict, session.exact) == ("isa", False, False)
    assert (torch.ones(2).to("npu") + 1).tolist() == [2, 2]
    assert dsf.report().launches == 1


def test_enabling_the_same_chip_again_begins_a_new_session(npu: str) -> None:
    first = dsf.enable(npu)
    old = torch.ones(2).to("npu") + 1
    second = dsf.enable(npu, fidelity="operator", strict=True, exact=True)
    assert dsf.current() is second is not first
    assert (second.fidelity, second.strict, second.exact) == ("operator", True, True)
    assert (dsf.report().launches, dsf.report().numerics) == (0, "exact")
    with pytest.raises(errors.DeviceError, match="made before the chip was disabled"):
        old.tolist()
    assert (torch.ones(2).to("npu") + 1).tolist() == [2, 2]


def test_another_chip_needs_disable_first(npu: str, described: Maker) -> None:
    first = dsf.enable(npu)
    x = torch.ones(2).to("npu")
    other = str(described({"/device": "npu"}, name="acme-x2"))
    with pytest.raises(
        errors.DeviceError,
        match=r"^DSF-D011: 'acme-x1' is enabled in this process; call dsf.disable\(\) before enabling 'acme-x2'$",
    ):
        dsf.enable(other)
    assert dsf.current() is first
    assert (x + 1).tolist() == [2, 2]
    dsf.disable()
    assert dsf.enable(other).chip.name == "acme-x2"
    assert (torch.ones(2).to("npu") + 1).tolist() == [2, 2]


def test_after_disable_the_device_says_what_to_do(npu: str) -> None:
    dsf.enable(npu)
    x = torch.ones(2).to("npu")
    dsf.disable()
    dsf.disable()
    assert_nothing_enabled()
    with pytest.raises(
        errors.DeviceError,
        match=r"^DSF-D003: npu: used while no chip is enabled; call dsf.enable\(...\) before computing on it$",
    ):
        x + 1
    with pytest.raises(
        errors.DeviceError,
        match=r"^DSF-D012: no chip is enabled, so there is nothing to report; call dsf.enable\(...\) first$",
    ):
        dsf.report()
    dsf.enable(npu)
    assert (torch.ones(2).to("npu") + 1).tolist() == [2, 2]


def test_a_session_whose_last_step_fails_is_ended_all_the_same(npu: str) -> None:
    session = dsf.enable(npu, strict=True)
    x = torch.cummax(torch.ones(4).to("npu"), 0).values  # noqa: F841  # its life keeps the step wanted
    with pytest.raises(errors.FallbackError, match=r"aten\.cummax"):
        dsf.disable()
    assert_nothing_enabled()
    with pytest.raises(AttributeError):
        session.peek(0, None)  # type: ignore[arg-type]  # its memory is gone
    assert dsf.enable(npu).chip.name == "acme-x1"


# Which chip, which fidelity


def test_a_chip_can_be_named_by_the_environment(npu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSF_CHIP", npu)
    monkeypatch.setenv("DSF_FIDELITY", "timing")
    assert (dsf.enable().chip.name, dsf.current() and dsf.current().fidelity) == ("acme-x1", "timing")  # type: ignore[union-attr]
    assert dsf.enable(fidelity="operator").fidelity == "operator"


def test_a_chip_is_found_by_name_in_folders_of_ones_own(npu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSF_HDL_PATH", str(Path(npu).parent))
    assert dsf.enable("acme-x1").chip.device == "npu"


def test_without_a_name_and_with_one_plugin_its_default_chip_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Registry()
    monkeypatch.setattr(enabling, "registry", lambda: known)
    with pytest.raises(
        errors.DeviceError, match=r"^DSF-D014: no chip named and 0 plugins installed; name one, .*acme-x1"
    ):
        dsf.enable()
    monkeypatch.setattr(Registry, "default_chip", lambda self: "no-such-chip")
    with pytest.raises(errors.HdlError, match="no chip named 'no-such-chip'"):
        dsf.enable()


@pytest.mark.parametrize("how", ["argument", "variable"])
def test_an_unknown_fidelity_is_answered_with_the_known_ones(
    how: str, npu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "variable":
        monkeypatch.setenv("DSF_FIDELITY", "perfect")
    with pytest.raises(
        errors.DeviceError, match=r"^DSF-D010: fidelity 'perfect' is unknown; expected one of isa, operator, timing$"
    ):
        dsf.enable(npu, fidelity="perfect" if how == "argument" else None)
    assert_nothing_enabled()


@pytest.mark.parametrize("version", ["2.12.1", "2.14.0", "3.0.0+cpu", "1.13.1", "2", "unknown"])
def test_a_torch_out_of_range_is_refused(version: str, npu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(errors.DeviceError) as caught:
        dsf.enable(npu)
    assert str(caught.value) == (
        f"DSF-D013: torch {version} is installed; dsf supports torch >=2.13,<2.14; pip install 'torch==2.13.0'"
    )
    assert caught.value.exit_status == 2
    assert_nothing_enabled()


@pytest.mark.parametrize("version", ["2.13.0", "2.13.7+cu130", "2.13.0a0+git1234"])
def test_a_torch_in_range_is_taken(version: str, npu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert dsf.enable(npu).chip.name == "acme-x1"


# Which room, which thermal policy


def heat(**options: Any) -> Any:
    dsf.enable(**options)
    return dsf.report().heat


def test_a_room_and_a_policy_are_named_by_argument_or_by_the_environment(
    npu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = heat(chip=npu)
    assert (plain.policy, plain.ambient_celsius, plain.ambient_given) == ("ladder", 25, False)
    monkeypatch.setenv("DSF_THERMAL", "threshold")
    monkeypatch.setenv("DSF_AMBIENT", "55")
    named = heat(chip=npu)
    assert (named.policy, named.ambient_celsius, named.ambient_given) == ("threshold", 55, True)
    assert named.celsius == pytest.approx(55 + 15 * 0.6)
    told = heat(chip=npu, thermal="none", ambient=-40)
    assert (told.policy, told.ambient_celsius) == ("none", -40)


@pytest.mark.parametrize("how", ["argument", "variable"])
def test_an_impossible_room_or_policy_enables_nothing(how: str, npu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where = "ambient" if how == "argument" else "DSF_AMBIENT"
    if how == "variable":
        monkeypatch.setenv("DSF_AMBIENT", "nan")
    with pytest.raises(errors.DeviceError, match=f"^DSF-D020: {where}: found 'nan', which is no temperature; expected"):
        dsf.enable(npu, ambient=float("nan") if how == "argument" else None)
    monkeypatch.setenv("DSF_AMBIENT", "a hot day")
    with pytest.raises(errors.DeviceError, match=r"^DSF-D020: DSF_AMBIENT: found 'a hot day', which is no"):
        dsf.enable(npu)
    monkeypatch.setenv("DSF_AMBIENT", "20")
    if how == "variable":
        monkeypatch.setenv("DSF_THERMAL", "fan")
    with pytest.raises(
        errors.DeviceError, match=r"^DSF-D022: thermal policy 'fan' is unknown; expected one of ladder, "
    ):
        dsf.enable(npu, thermal="fan" if how == "argument" else None)
    assert_nothing_enabled()


def test_a_chip_without_heat_is_enabled_in_no_room_and_by_no_unknown_policy(described: Maker) -> None:
    cold = str(described({"/device": "npu", "/thermal": None}))
    assert heat(chip=cold) is None
    assert "heat (derived): none: the hardware description of acme-x1 has no /thermal" in str(dsf.report())
    with pytest.raises(errors.DeviceError, match="DSF-D022"):
        dsf.enable(cold, thermal="fan")
    with pytest.raises(errors.DeviceError, match=r"DSF-D020: ambient: .* has no temperature; leave it out"):
        dsf.enable(cold, ambient=55)


# Nothing is half-enabled


def broken_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Registry, name: str) -> None:
        raise errors.PluginError("DSF-P001", "the plugin for vendor 'acme' cannot be used")

    monkeypatch.setattr(Registry, "vendor", fail)


def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(nbytes: int) -> None:
        raise errors.MachineError("DSF-X010", f"this host cannot map {nbytes} bytes of emulated memory")

    monkeypatch.setattr("dsf.storage.Arena", fail)


FAILURES: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "torch": lambda patch: patch.setattr(torch, "__version__", "2.12.0"),
    "fidelity": lambda patch: patch.setenv("DSF_FIDELITY", "perfect"),
    "chip": lambda patch: patch.setenv("DSF_HDL_PATH", "/no/such/folder"),
    "plugin": broken_plugin,
    "memory": no_memory,
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("before", ["nothing", "a session"])
def test_a_failed_enable_changes_nothing(before: str, failure: str, npu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where nothing was enabled nor where a session goes on."""
    session = dsf.enable(npu) if before == "a session" else None
    x = torch.ones(2).to("npu") + 1 if session else None
    with monkeypatch.context() as patch:
        FAILURES[failure](patch)
        with pytest.raises(errors.DsfError):
            dsf.enable("acme-x9" if failure == "chip" else npu)
    if session is None or x is None:
        assert_nothing_enabled()
    else:
        assert dsf.current() is session is device.current()
        assert (x + 1).tolist() == [3, 3]


def test_a_malformed_description_is_told_whole_and_enables_nothing(described: Maker) -> None:
    path = described({"/device": "cuda", "/clocks/core/value": "fast", "/cores/core/count/value": -3})
    with pytest.raises(errors.HdlError) as caught:
        dsf.enable(str(path))
    assert caught.value.code == "DSF-H003"
    for pointer in ("/device", "/clocks/core", "/cores/core/count"):
        assert pointer in caught.value.sentence
    assert_nothing_enabled()


def test_fresh_processes_keep_one_device_name(run_python: Maker, npu: str) -> None:
    """`import dsf` leaves torch alone; a use before `enable`, and a second device name after one, are sentences."""
    said = run_python(
        f"""
        import sys, dsf
        print("torch" in sys.modules)
        import torch
        from dsf import errors

        def tell(action):
            try:
                action()
            except (errors.DsfError, RuntimeError) as error:
                print(str(error).splitlines()[0])

        tell(lambda: torch.ones(2, device="npu"))
        tell(dsf.report)
        dsf.enable("acme-x1", fidelity="timing")
        dsf.disable()
        tell(lambda: dsf.enable({npu!r}))
        print(dsf.current(), dsf.enable("acme-x1").chip.device, (torch.ones(2, device="acme") + 1).tolist())
        """
    )
    lines = said.splitlines()
    assert lines[0] == "False"
    assert "npu" in lines[1]
    assert lines[2:] == [
        "DSF-D012: no chip is enabled, so there is nothing to report; call dsf.enable(...) first",
        "DSF-D002: npu: this process already has the device 'acme', and torch allows one extra device name per "
        "process; use a chip of that device, or start another process",
        "None acme [2.0, 2.0]",
    ]


def test_a_chip_without_a_plugin_says_that_it_runs_on_generic(
    enabled: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert enabled().view.plugin == "generic"
    assert [record.getMessage() for record in caplog.records if record.name == "dsf"] == [
        "DSF-P007: no plugin for vendor 'acme' is installed; 'acme-x1' runs on the generic one, from its hardware "
        "description alone; a package dsf-acme, where there is one, brings its own"
    ]
