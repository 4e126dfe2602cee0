"""What the device asks of whoever owns the emulated memory and runs tapes. The device knows no chip beyond this."""

from __future__ import annotations

from typing import Protocol

import torch

from dsf.intent.tape import Site, Tape, Window

__all__ = ["ChipLike", "Session"]


class ChipLike(Protocol):
    """The one thing that the device asks of a chip: the torch device name (`npu`)."""

    @property
    def name(self) -> str: ...

    @property
    def device(self) -> str: ...


class Session(Protocol):
    """One emulated chip in use. Addresses are physical; every size is in bytes, every time in femtoseconds."""

    @property
    def chip(self) -> ChipLike: ...

    @property
    def fidelity(self) -> str:
        """`isa`, `operator` or `timing`; in `timing` no tensor has a value and every read gives zeros."""

    @property
    def capacity(self) -> int: ...

    @property
    def allocated(self) -> int: ...

    @property
    def peak(self) -> int: ...

    def allocate(self, nbytes: int, site: Site | None) -> int:
        """Take *nbytes* of device memory for the user; raises `errors.OutOfMemory`."""

    def free(self, address: int) -> None: ...

    def write(self, address: int, tensor: torch.Tensor) -> None:
        """The user's copy to the device of the bytes of a contiguous CPU tensor; costs emulated time."""

    def read(self, address: int, window: Window) -> torch.Tensor:
        """The user's copy from the device, as a fresh CPU tensor of the window's shape; costs emulated time."""

    def peek(self, address: int, window: Window) -> torch.Tensor:
        """A CPU tensor that aliases device bytes; costs nothing."""

    def run(self, tape: Tape) -> dict[int, int]:
        """Run a tape; the answer has the address of every live buffer that had none."""

    def host_op(self, target: str, bytes_in: int, bytes_out: int, site: Site | None) -> None:
        """Price and count an operation that ran on the host, outside any tape."""

    def synchronize(self) -> None: ...

    def now_fs(self) -> int: ...
