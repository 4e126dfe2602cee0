"""Cutting a tape by module scope, so that the layers of a model share one plan.

A segment is a run of operations of one repeated module (`model.layers.3` and all that it contains), or a run of
operations between such modules. Its buffers are renumbered in order of first use, which makes equal layers equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from attrs import evolve, frozen

from dsf.intent.tape import Buffer, Op, Tape

__all__ = ["Segment", "cut"]


@frozen(eq=False)
class Segment:
    """A sub-tape with its own buffer numbers, *buffers* (own number -> the whole tape's), and *key*, its structure."""

    tape: Tape
    buffers: tuple[int, ...]
    key: tuple[Any, ...]


def cut(tape: Tape) -> tuple[Segment, ...]:
    """The segments of *tape*, in order."""
    runs = list(_runs(tape.ops))
    last = {n: index for index, ops in enumerate(runs) for op in ops for n in op.buffers}
    return tuple(_segment(tape, ops, index, last) for index, ops in enumerate(runs))


def _runs(ops: tuple[Op, ...]) -> Iterator[list[Op]]:
    run: list[Op] = []
    place: str | None = None
    for op in ops:
        here = unit(op.scope.path)
        if run and here != place:
            yield run
            run = []
        run.append(op)
        place = here
    if run:
        yield run


@lru_cache(maxsize=65536)
def unit(path: str) -> str:
    """The repeated module that *path* lies in: up to its first number (`model.layers.3`); empty where there is none."""
    parts = path.split(".")
    for index, part in enumerate(parts):
        if part.isdecimal():
            return ".".join(parts[: index + 1])
    return ""


def _segment(tape: Tape, ops: list[Op], index: int, last: dict[int, int]) -> Segment:
    numbers: dict[int, int] = {}
    local = []
    for op in ops:
        own = tuple(numbers.setdefault(n, len(numbers)) for n in op.buffers)
        local.append(Op(op.signature, own, op.scope, op.site))
    buffers = tuple(_seen_outside(tape.buffers[n], last[n] > index) for n in numbers)
    key = tuple((op.signature.id, op.buffers) for op in local), tuple(b.live for b in buffers)
    return Segment(Tape(tuple(local), buffers), tuple(numbers), key)


def _seen_outside(buffer: Buffer, read_later: bool) -> Buffer:
    """The buffer as its segment sees it: what a later segment reads must not disappear inside a match."""
    return evolve(buffer, live=True) if read_later and not buffer.live else buffer
