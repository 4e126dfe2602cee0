"""The recorder: operations in program order, as interned signatures applied to blocks, and their turn into a `Tape`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from attrs import field, frozen

from dsf import errors
from dsf.device.blocks import Block
from dsf.device.session import Session
from dsf.intent.tape import Buffer, Op, Scope, Signature, Site, Slot, Tape, Window

__all__ = ["LENGTH_CAP", "Recorder", "intern", "lock", "recorder", "window"]

LENGTH_CAP = 1 << 14  # operations after which a tape is run even if nobody asks for a value

lock = threading.RLock()  # around every record and flush of the process

Record = tuple[Signature, Sequence[Block], Scope, Site | None]


class Recorder:
    """The one lazy tape of the process; *session* is None while no chip is attached."""

    __slots__ = ("cap", "epoch", "log", "name", "session")

    def __init__(self) -> None:
        self.session: Session | None = None
        self.name = ""
        self.log: list[Record] = []
        self.cap = LENGTH_CAP
        self.epoch = 1  # the number that the next flush will have

    def needs(self) -> Session:
        """The session, or the sentence for who has none."""
        if self.session is None:
            name = self.name or "the device"
            raise errors.DeviceError(
                "DSF-D003", f"{name}: used while no chip is enabled; call dsf.enable(...) before computing on it"
            )
        return self.session

    def is_pending(self, block: Block) -> bool:
        """Whether a recorded operation that has not run writes *block*."""
        return block.written == self.epoch and bool(self.log)


recorder = Recorder()
_windows: dict[tuple[Any, ...], Window] = {}
_signatures: dict[Any, Signature] = {}


def window(tensor: torch.Tensor) -> Window:
    """The interned window of *tensor* over its storage."""
    key = (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype)
    found = _windows.get(key)
    if found is None:
        found = _windows[key] = Window(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), tensor.dtype)
    return found


def _typed(value: Any) -> Any:
    """*value* such that what is equal behaves equally: 5, 5.0 and True differ, and so do the zeros; nan is itself."""
    if isinstance(value, tuple):
        return tuple(_typed(v) for v in value)
    if isinstance(value, float | complex):
        return type(value), repr(value)
    if isinstance(value, Slot):
        return Slot, value.index
    return type(value), value


def intern(
    target: str,
    args: tuple[Any, ...],
    kwargs: tuple[tuple[str, Any], ...],
    windows: tuple[Window, ...],
    writes: tuple[int, ...],
    outs: tuple[int, ...],
) -> Signature:
    """The one signature with this content."""
    key = (target, _typed(args), _typed(kwargs), windows, writes, outs)
    found = _signatures.get(key)
    if found is None:
        found = _signatures[key] = Signature(len(_signatures), target, args, kwargs, windows, writes, outs)
    return found


@frozen(eq=False)
class Draft:
    """A tape about to run and the block behind each of its buffers."""

    tape: Tape
    blocks: tuple[Block, ...] = field(factory=tuple)


def draft(log: Sequence[Record], epoch: int) -> Draft:
    """*log* as a tape: blocks numbered by first touch, liveness as of now."""
    numbers: dict[Block, int] = {}
    number = numbers.setdefault
    ops = tuple(
        Op(signature, tuple([number(b, len(numbers)) for b in blocks]), scope, site)
        for signature, blocks, scope, site in log
    )
    blocks = tuple(numbers)
    return Draft(Tape(ops, tuple(_buffer(b, epoch) for b in blocks)), blocks)


def _buffer(block: Block, epoch: int) -> Buffer:
    settled = block.physical is not None and (block.uploaded or block.written < epoch - 1)
    return Buffer(block.nbytes, block.physical, block.alive, settled and block.written != epoch)
