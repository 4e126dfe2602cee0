"""What is the same in every step: ALiBi slopes, causal masks, widened router weights. Found once, computed once.

An intent is constant if it depends on nothing but fills, iotas and constant buffers. What it writes must be a temporary
of the step: a buffer that outlives it is somebody's own, and is written each time.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from dsf.intent.ir import Intent
from dsf.intent.tape import Buffer, Region

__all__ = ["Constants", "constants"]


@frozen
class Constants:
    """*once*: the positions of the intents that need to run only the first time. *kept*: the buffers that must then
    keep what those wrote, since others read it. *sources*: the constant buffers it depends on; when one of them is
    written or freed, all of it is forgotten. *saved*: the bytes that the intents move, saved in every further step."""

    once: tuple[int, ...]
    kept: tuple[int, ...]
    sources: tuple[int, ...]
    saved: int


def constants(intents: Sequence[Intent], buffers: Sequence[Buffer]) -> Constants:
    """What of *intents* is constant. They are those of a whole step, with its own buffers: a segment would call live
    whatever another one reads."""
    writers: dict[int, list[int]] = {}
    for at, intent in enumerate(intents):
        for region in intent.outputs:
            writers.setdefault(region.buffer, []).append(at)
    found = {at for at, intent in enumerate(intents) if intent.outputs and _may_be(intent, buffers)}
    while late := _not(found, intents, buffers, writers):
        found -= late
    once = tuple(sorted(found))
    read = {r.buffer for at, intent in enumerate(intents) if at not in found for r in intent.inputs}
    mine = [intents[at] for at in once]
    made = {r.buffer for intent in mine for r in intent.outputs}
    sources = {r.buffer for intent in mine for r in intent.inputs} - made
    saved = sum(_nbytes(r) for intent in mine for r in (*intent.inputs, *intent.outputs))
    return Constants(once, tuple(sorted(made & read)), tuple(sorted(sources)), saved)


def _may_be(intent: Intent, buffers: Sequence[Buffer]) -> bool:
    """Are its outputs temporaries?"""
    return all(buffers[r.buffer].address is None and not buffers[r.buffer].live for r in intent.outputs)


def _not(
    found: set[int], intents: Sequence[Intent], buffers: Sequence[Buffer], writers: dict[int, list[int]]
) -> set[int]:
    """Those of *found* that depend on, or write together with, an intent that is not among them."""
    last_safe = {b: at[-1] for b, at in writers.items() if len(at) > 1}
    early = {
        r.buffer for at, intent in enumerate(intents) if at not in found
        for r in intent.inputs if at <= last_safe.get(r.buffer, -1)
    }  # fmt: skip
    return {at for at in found if not _depends_on_constants(at, intents[at], buffers, writers, found, early)}


def _depends_on_constants(
    at: int, intent: Intent, buffers: Sequence[Buffer], writers: dict[int, list[int]], found: set[int], early: set[int]
) -> bool:
    for region in intent.inputs:
        made = writers.get(region.buffer)
        if made is None:
            if not buffers[region.buffer].constant:
                return False
        elif not found.issuperset(made) or made[0] >= at:  # written later only: what it reads came from elsewhere
            return False
    return all(found.issuperset(writers[r.buffer]) and r.buffer not in early for r in intent.outputs)


def _nbytes(region: Region) -> int:
    return region.numel * region.dtype.itemsize
