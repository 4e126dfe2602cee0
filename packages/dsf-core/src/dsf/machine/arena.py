"""The emulated main memory: one flat range of bytes, of which the host holds only the pages that were written.

Addresses are byte offsets into it. Typed windows alias it; nothing is copied.
"""

from __future__ import annotations

import mmap

import numpy as np
import torch

from dsf import errors

__all__ = ["Arena"]

_NORESERVE = 0x4000  # MAP_NORESERVE on Linux: untouched pages cost nothing, whatever the overcommit setting


class Arena:
    """*nbytes* of main memory as torch tensors of any dtype over the same bytes."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        try:
            self._map = mmap.mmap(-1, nbytes, flags=flags)
        except (OSError, ValueError) as cause:
            raise errors.MachineError(
                "DSF-X010",
                f"this host cannot map {nbytes} bytes of emulated memory ({cause}); "
                "raise the address-space limit (ulimit -v) or use fidelity='timing'",
            ) from cause
        self.bytes = torch.from_numpy(np.frombuffer(self._map, dtype=np.uint8))
        self._typed: dict[torch.dtype, torch.Tensor] = {torch.uint8: self.bytes}

    def typed(self, dtype: torch.dtype) -> torch.Tensor:
        """The whole arena as a flat tensor of *dtype*."""
        base = self._typed.get(dtype)
        if base is None:
            whole = self.nbytes // dtype.itemsize * dtype.itemsize
            base = self._typed[dtype] = self.bytes[:whole].view(dtype)
        return base

    def window(self, address: int, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor that aliases the bytes from *address* on; *stride* in elements."""
        return torch.as_strided(self.typed(dtype), shape, stride, address // dtype.itemsize)

    def discard(self, address: int, nbytes: int) -> None:
        """Give the host its whole pages back; all the bytes read as zero from now on."""
        page, end = mmap.PAGESIZE, address + nbytes
        first, last = -(-address // page) * page, end // page * page
        if last <= first:
            self.bytes[address:end] = 0
            return
        self._map.madvise(mmap.MADV_DONTNEED, first, last - first)
        self.bytes[address:first] = 0
        self.bytes[last:end] = 0
