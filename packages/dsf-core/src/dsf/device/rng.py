"""Random numbers of the device: one seeded CPU generator, so that a seed gives the numbers that it gives on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["Generator", "default", "drawing"]

_Plain = torch.Generator  # the class before `Generator` takes its place

default: torch.Generator = _Plain("cpu")


class _Kind(type(_Plain)):  # type: ignore[misc]  # a base that is computed
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _Plain)


class Generator(_Plain, metaclass=_Kind):
    """`torch.Generator` that also answers `device="npu"`: a generator of the CPU that calls itself the device's."""

    _device: torch.device | None

    def __new__(cls, device: Any = "cpu") -> Generator:
        wanted = torch.device(device)
        ours = wanted.type == torch._C._get_privateuse1_backend_name()
        made: Generator = super().__new__(cls, "cpu" if ours else wanted)  # type: ignore[call-arg]  # torch's stub leaves the argument out
        made._device = torch.device(wanted.type, wanted.index or 0) if ours else None
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # an attribute there
        return self._device or super().device


@contextmanager
def drawing() -> Iterator[None]:
    """Inside, CPU kernels that take no generator draw from the device's."""
    cpu = torch.default_generator
    kept = cpu.get_state()
    cpu.set_state(default.get_state())
    try:
        yield
    finally:
        default.set_state(cpu.get_state())
        cpu.set_state(kept)
