"""A torch that does not keep what the device assumes is refused by name."""

from __future__ import annotations

import pytest

from dsf import errors
from dsf.device import selftest


def test_this_torch_keeps_every_assumption(session):
    selftest.check(selftest.BEFORE)
    selftest.check(selftest.WITH_DEVICE)


def test_a_broken_assumption_is_named(session):
    def gone() -> bool:
        raise AttributeError("no such function")

    with pytest.raises(
        errors.DeviceError, match=r"^DSF-D001: torch 2\.\S+: .* does not keep: a; b; install torch>=2.13"
    ):
        selftest.check({"a": lambda: False, "kept": lambda: True, "b": gone})
