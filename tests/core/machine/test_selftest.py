"""`fast` is used only where the host computes as it must."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from dsf import errors
from dsf.machine.arena import Arena
from dsf.machine.functional import Functional
from dsf.machine.selftest import ASSUMPTIONS, check


@pytest.fixture
def flushing() -> Iterator[None]:
    """Subnormals become zero, as some programs ask torch to do for speed."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    yield
    torch.set_flush_denormal(False)


@pytest.mark.parametrize("name", ASSUMPTIONS)
def test_this_host_keeps(name: str) -> None:
    assert ASSUMPTIONS[name]()


def test_a_host_that_flushes_subnormals_is_refused_by_name(flushing: None, planes: Any) -> None:
    said = (
        r"^DSF-X011: numerics 'fast' cannot be trusted on this host, since torch .* does not keep: subnormal numbers "
        r"are kept(; conversions to 16 bits round halves to even)?; undo torch.set_flush_denormal"
    )
    with pytest.raises(errors.MachineError, match=said):
        Functional(planes.chip, planes.isa, Arena(1 << 12))


def test_exact_takes_nothing_for_granted(flushing: None, planes: Any) -> None:
    Functional(planes.chip, planes.isa, Arena(1 << 12), exact=True)


def test_every_broken_assumption_is_named() -> None:
    with pytest.raises(errors.MachineError, match="does not keep: one; three; undo"):
        check({"one": lambda: False, "two": lambda: True, "three": lambda: False})


def test_products_in_a_narrower_format_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b: real(a.bfloat16().float(), b.bfloat16().float()))
    assert not ASSUMPTIONS["products of float32 are summed in float32"]()


def test_a_batch_summed_in_another_order_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b: real(a[:, :32], b[:32]) + real(a[:, 32:], b[32:]))
    assert not ASSUMPTIONS["a batch of products is one product after the other"]()


def test_conversions_that_cut_off_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.Tensor.half
    monkeypatch.setattr(torch.Tensor, "half", lambda x: real((x.view(torch.int32) & -8192).view(torch.float32)))
    assert not ASSUMPTIONS["conversions to 16 bits round halves to even"]()
