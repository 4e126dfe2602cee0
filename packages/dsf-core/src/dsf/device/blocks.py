"""Who is behind a storage: the table from torch's StorageImpl to the block of emulated memory that it stands for."""

from __future__ import annotations

import copy
from typing import Any

import torch

from dsf.device import handles

__all__ = ["BASE", "Block", "at", "forget", "heal", "new", "poison", "table"]

BASE = 0x5000_0000_0000  # first virtual address: outside what a host process maps
PAGE = 512

storage_address = torch._C._storage_address  # type: ignore[attr-defined]  # private

table: dict[int, Block] = {}  # every living block by the address of its StorageImpl
poisoned: dict[int, Block] = {}  # living blocks whose value was lost by an error
dead: list[Block] = []  # blocks that own physical memory and whose last tensor has died
_cursor = BASE


class Block:
    """One allocation: virtual when recorded, physical once it was uploaded to or a flush wrote it.

    *written* is the number of the flush that writes it last (the number of the running tape while that is recorded),
    *uploaded* says that its bytes came from the host and nothing wrote them since.
    """

    __slots__ = ("address", "alive", "error", "key", "nbytes", "physical", "ref", "uploaded", "written")

    def __init__(self, nbytes: int, written: int) -> None:
        global _cursor
        self.address = _cursor
        _cursor += (nbytes + PAGE) & -PAGE
        self.nbytes, self.written = nbytes, written
        self.physical: int | None = None
        self.uploaded, self.alive, self.key = False, True, 0
        self.error: BaseException | None = None
        self.ref: Any = None

    def die(self, ref: Any) -> None:
        """Called in whatever thread drops the last tensor: touch only what the interpreter's lock guards."""
        self.alive, self.ref = False, None
        if table.get(self.key) is self:
            del table[self.key]
        elif poisoned.get(self.key) is self:
            del poisoned[self.key]
        if self.physical is not None:
            dead.append(self)


def new(layout: handles.Layout, written: int) -> tuple[torch.Tensor, Block]:
    """A tensor with a block of its own."""
    block = Block(layout.nbytes, written)
    tensor = handles.make(layout, block.address)
    block.ref = handles.when_dead(tensor, block.die)
    block.key = key = storage_address(tensor)
    table[key] = block
    return tensor, block


def at(address: int) -> Block | None:
    """The living block at a virtual address: for storages that torch made around our pointer, as pickling does."""
    return next((block for block in table.values() if block.address == address), None)


def poison(block: Block, error: BaseException) -> None:
    """From now on reading *block* raises *error*, or rather copies of it: a traceback would keep the tensor alive."""
    block.error = stripped(error)
    if table.get(block.key) is block:
        poisoned[block.key] = table.pop(block.key)


def stripped(error: BaseException) -> BaseException:
    """A copy of *error* without its traceback; itself where it cannot be copied."""
    try:
        return copy.copy(error)
    except TypeError:
        return error.with_traceback(None)


def heal(block: Block) -> None:
    """*block* has been overwritten as a whole: its value is known again."""
    block.error = None
    if poisoned.get(block.key) is block:
        table[block.key] = poisoned.pop(block.key)


def forget() -> None:
    """The memory is gone: no living tensor has a block any more."""
    for block in (*table.values(), *poisoned.values(), *dead):
        block.physical = None
    table.clear()
    poisoned.clear()
    dead.clear()
