"""Every answer of a plugin acts: replace it, and a report, a choice or an error is another one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import torch
from attrs import evolve, frozen
from tests.sensitivity.bench import attached, report_of, said
from tests.sensitivity.conftest import Table
from tests.sensitivity.fields import chip_of, document_of
from tests.sensitivity.steps import doubled

from dsf import device
from dsf.generic.isa import isa as generic_isa
from dsf.generic.kernels import kernels as generic_kernels
from dsf.generic.thermal import policy
from dsf.hdl import Chip
from dsf.kernels.kernel import Kernel
from dsf.kernels.tree import FOLDER
from dsf.machine.heat import Policy
from dsf.plugins import API, Registry, Vendor, hookimpl, spec

CHIP = "acme-x1"
HOUR_FS = 3600 * 10**15


@frozen(eq=False)
class Plugin:
    """A vendor's plugin whose answers are generic's, but for those that a test replaces."""

    vendor: Vendor
    kernels: Callable[[Chip], Iterable[Kernel]] = generic_kernels
    policy: Callable[[Chip, str], Policy | None] = policy

    @hookimpl
    def dsf_vendor(self) -> Vendor:
        return self.vendor

    @hookimpl
    def dsf_kernels(self, chip: Chip) -> Iterable[Kernel]:
        return self.kernels(chip)

    @hookimpl
    def dsf_thermal_policy(self, chip: Chip, name: str) -> Policy | None:
        return self.policy(chip, name)


PLAIN = Plugin(Vendor(API, CHIP, generic_isa))


def known(plugin: Plugin) -> Registry:
    """A registry in which *plugin* answers for the invented chip's vendor."""
    point: Any = SimpleNamespace(name="acme", value="acme.plugin", load=lambda: plugin, dist=None)
    return Registry({"acme": point})


def report(plugin: Plugin, ambient: float | None = None) -> Any:
    """A product and a norm on the invented chip, the product again for an hour."""
    view = known(plugin).view(chip_of(document_of(CHIP)))
    with attached(view, ambient=ambient) as session, torch.no_grad():
        x = torch.empty(2048, 2048, dtype=torch.bfloat16, device="npu")
        torch.softmax(x, -1), x @ x
        device.flush()
        session.ledger.again(HOUR_FS // session.ledger.now_fs)
        return report_of(session)


def with_vendor(**changes: Any) -> Plugin:
    return evolve(PLAIN, vendor=evolve(PLAIN.vendor, **changes))


def slow_isa(chip: Chip) -> Any:
    isa = generic_isa(chip)
    return evolve(isa, rows={name: doubled(row) for name, row in isa.rows.items()})


def renamed(chip: Chip) -> Iterable[Kernel]:
    return (evolve(kernel, name=f"acme.{kernel.kind}", library="acme") for kernel in generic_kernels(chip))


def always_slow(chip: Chip, name: str) -> Policy:
    return Policy("acme", lambda celsius, step, chip: 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with the description of one more chip."""
    import json

    place = tmp_path_factory.mktemp("more")
    (place / "acme-x2.json").write_text(json.dumps(document_of(CHIP) | {"name": "acme-x2"}), "utf-8")
    return str(place)


ANSWERS: dict[str, tuple[Callable[[str], Plugin], Callable[[Plugin], Any]]] = {
    "dsf_vendor.api": (
        lambda folder: with_vendor(api=(API[0] + 1, 0)), lambda p: said(lambda: known(p).vendor("acme") is not None)
    ),
    "dsf_vendor.default_chip": (
        lambda folder: with_vendor(default_chip="ascend-910b2"), lambda p: known(p).default_chip()
    ),
    "dsf_vendor.isa": (lambda folder: with_vendor(isa=slow_isa), report),
    "dsf_vendor.hdl_folders": (
        lambda folder: with_vendor(hdl_folders=(folder,)), lambda p: said(lambda: known(p).chip("acme-x2").name)
    ),
    "dsf_vendor.tree_folders": (
        lambda folder: with_vendor(tree_folders=(str(FOLDER),)),
        lambda p: sorted(known(p).view(chip_of(document_of(CHIP))).trees().by_kind),
    ),
    "dsf_kernels": (lambda folder: evolve(PLAIN, kernels=renamed), report),
    "dsf_thermal_policy": (lambda folder: evolve(PLAIN, policy=always_slow), report),
}  # fmt: skip
"""Hook (and field of its answer) to a plugin that answers otherwise, and to what is asked of both."""


def test_every_hook_and_every_field_of_its_answer_is_replaced() -> None:
    hooks = {name for name in vars(spec) if hasattr(vars(spec)[name], "dsf_spec")}
    declared = {f"dsf_vendor.{f.name}" for f in attrs.fields(Vendor)}
    assert set(ANSWERS) == (hooks - {"dsf_vendor"}) | declared


@pytest.mark.parametrize("answer", ANSWERS)
def test_another_answer_is_noticed(answer: str, folder: str, table: Table) -> None:
    replaced, ask = ANSWERS[answer]
    before, after = ask(PLAIN), ask(replaced(folder))
    assert before != after, f"{answer}: whatever a plugin answers, nothing changes"
    table.add(answer, "answered otherwise", told(before, after))


def told(before: Any, after: Any) -> str:
    """The first thing that differs, in a few words."""
    if isinstance(before, dict) and isinstance(after, dict):
        key = next(key for key in before if before[key] != after.get(key))
        return f"{key}: {str(before[key])[:40]} to {str(after.get(key))[:40]}"
    return f"{str(before)[:40]} to {str(after)[:80]}"


def test_the_same_answer_changes_nothing() -> None:
    """Else the comparisons above would say nothing."""
    assert all(ask(PLAIN) == ask(with_vendor()) for _, ask in ANSWERS.values())
