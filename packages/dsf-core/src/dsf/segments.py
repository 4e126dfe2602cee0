"""Cutting a tape by module scope, so that the layers of a model share one plan.

A segment is a run of operations of one repeated module (`model.layers.3` and all that it contains), or a run of
operations between such modules. Its buffers are renumbered in order of first use, which makes equal layers equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from attrs import define, evolve

from dsf.intent.tape import Op, Tape

__all__ = ["Segment", "cut"]


@define(eq=False)
class Segment:
    """A run of operations with *buffers* (own number -> the whole tape's) and *key*, its structure. *own* has each
    operation's buffers by own number, *live* which buffers must not disappear inside a match."""

    ops: list[Op]
    whole: Tape
    buffers: tuple[int, ...]
    own: tuple[tuple[int, ...], ...]
    live: tuple[bool, ...]
    key: tuple[Any, ...]

    @property
    def tape(self) -> Tape:
        """The operations as a tape of their own. It is made only for a structure that nobody has planned yet."""
        ops = tuple(Op(op.signature, own, op.scope, op.site) for op, own in zip(self.ops, self.own, strict=True))
        buffers = (self.whole.buffers[n] for n in self.buffers)
        return Tape(ops, tuple(evolve(b, live=live) for b, live in zip(buffers, self.live, strict=True)))


def cut(tape: Tape) -> tuple[Segment, ...]:
    """The segments of *tape*, in order."""
    runs = list(_runs(tape.ops))
    last = {n: index for index, ops in enumerate(runs) for op in ops for n in op.buffers}
    return tuple([_segment(tape, ops, index, last) for index, ops in enumerate(runs)])


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
    number, own = numbers.setdefault, []
    for op in ops:
        own.append(tuple([number(n, len(numbers)) for n in op.buffers]))
    live = tuple([tape.buffers[n].live or last[n] > index for n in numbers])  # a later segment reads it
    ids = tuple([op.signature.id for op in ops])
    return Segment(ops, tape, tuple(numbers), tuple(own), live, (ids, tuple(own), live))
