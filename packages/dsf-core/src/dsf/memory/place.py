"""Where the temporaries of a step lie: offsets in one workspace, shared by those whose lives do not meet."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from dsf.memory.pool import Pool

__all__ = ["Life", "Placement", "place"]

LARGEST = 1 << 62


@frozen
class Life:
    """A temporary: its size in bytes, the first and the last position of the step that touches it."""

    nbytes: int
    first: int
    last: int


@frozen
class Placement:
    """Offsets of the temporaries, in their order, in a workspace of *nbytes*."""

    offsets: tuple[int, ...]
    nbytes: int


def place(lives: Sequence[Life], alignment: int) -> Placement:
    """First fit in order of birth: what dies at a position gives its room to what is born after it."""
    pool = Pool(LARGEST, alignment)
    offsets = [0] * len(lives)
    dying: dict[int, list[int]] = {}
    top, now = 0, -1
    for index in sorted(range(len(lives)), key=lambda i: (lives[i].first, i)):
        life = lives[index]
        for position in range(now, life.first):
            for dead in dying.pop(position, ()):
                pool.give(offsets[dead])
        now = life.first
        address = pool.take(life.nbytes)
        assert address is not None, "the planning pool is unbounded"
        offsets[index] = address
        top = max(top, address + pool.rounded(life.nbytes))
        dying.setdefault(life.last, []).append(index)
    return Placement(tuple(offsets), top)
