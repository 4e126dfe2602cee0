"""What a model did: the recorded operations of one step, as values. The device writes tapes, `parse` reads them.

A *region* is what a tensor is: a strided window of a buffer. Views make no operation. An operation is an interned
*signature* (target, argument template, windows) applied to buffers, so that equal layers have equal signatures and a
segment's key is a tuple of small integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from attrs import field, frozen

__all__ = ["Buffer", "Op", "Region", "Scope", "Signature", "Site", "Slot", "Tape", "Window", "slots"]


@frozen(cache_hash=True)
class Window:
    """A strided window without its buffer: shape, stride and offset in elements of *dtype*."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    @property
    def numel(self) -> int:
        n = 1
        for size in self.shape:
            n *= size
        return n


@frozen(cache_hash=True)
class Region:
    """A window of buffer number *buffer* of its tape."""

    buffer: int
    window: Window

    @property
    def shape(self) -> tuple[int, ...]:
        return self.window.shape

    @property
    def stride(self) -> tuple[int, ...]:
        return self.window.stride

    @property
    def offset(self) -> int:
        return self.window.offset

    @property
    def dtype(self) -> torch.dtype:
        return self.window.dtype

    @property
    def numel(self) -> int:
        return self.window.numel


@frozen
class Slot:
    """In a signature's argument template: the place of its *index*-th region."""

    index: int


@frozen(eq=False)
class Signature:
    """Everything about an operation but its buffers. Interned: equal signatures are one object, with one *id*.

    *args* and *kwargs* are as the ATen schema has them, every tensor replaced by a `Slot`, tensor lists by tuples.
    *windows* has one window per slot. *writes* are the slots that the operation writes: fresh outputs (slots that do
    not occur in args) and mutated arguments alike. *outs* are the slots of the operation's results, in order.
    """

    id: int
    target: str  # "aten.mul.Tensor"
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    windows: tuple[Window, ...]
    writes: tuple[int, ...]
    outs: tuple[int, ...]


@frozen
class Site:
    """The user's line that recorded an operation."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@frozen(cache_hash=True)
class Scope:
    """The module an operation was recorded in: its path from the outermost module called (`model.layers.3.mlp`)
    and its class (`LlamaMLP`). The path is empty outside every module."""

    path: str = ""
    module: str = ""


@frozen(eq=False)
class Op:
    """One recorded operation: a signature and the buffer of each of its slots."""

    signature: Signature
    buffers: tuple[int, ...]
    scope: Scope
    site: Site | None

    @property
    def target(self) -> str:
        return self.signature.target

    def region(self, slot: int) -> Region:
        return Region(self.buffers[slot], self.signature.windows[slot])

    def _fill(self, value: Any) -> Any:
        if isinstance(value, Slot):
            return self.region(value.index)
        if isinstance(value, tuple):
            return tuple(self._fill(v) for v in value)
        return value

    @property
    def args(self) -> tuple[Any, ...]:
        """The arguments, with a `Region` for every tensor."""
        return tuple(self._fill(a) for a in self.signature.args)

    @property
    def kwargs(self) -> dict[str, Any]:
        return {name: self._fill(value) for name, value in self.signature.kwargs}

    @property
    def outs(self) -> tuple[Region, ...]:
        return tuple(self.region(s) for s in self.signature.outs)

    @property
    def writes(self) -> tuple[Region, ...]:
        return tuple(self.region(s) for s in self.signature.writes)

    @property
    def reads(self) -> Iterator[Region]:
        """Every region that occurs in the arguments (a mutated argument is read as well)."""
        fresh = set(self.signature.writes) - set(slots(self.signature.args)) - set(slots(self.signature.kwargs))
        return (self.region(s) for s in range(len(self.buffers)) if s not in fresh)


def slots(value: Any) -> Iterator[int]:
    """The slots that occur in an argument template, in order."""
    if isinstance(value, Slot):
        yield value.index
    elif isinstance(value, tuple):
        for item in value:
            yield from slots(item)


@frozen
class Buffer:
    """One allocation that a tape touches.

    *address*: its physical address if it exists before the tape runs, else None. *live*: something outside the tape
    still holds it when the tape has run; a buffer that is not live and has no address is a temporary.
    *constant*: nothing wrote it since it was uploaded (a weight).
    """

    nbytes: int
    address: int | None
    live: bool
    constant: bool = False


@frozen(eq=False)
class Tape:
    """The operations of one flush, in program order, and the buffers they touch."""

    ops: tuple[Op, ...]
    buffers: tuple[Buffer, ...] = field(factory=tuple)
