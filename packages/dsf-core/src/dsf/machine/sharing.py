"""What cores share: the blocks of a phase, and the bandwidth of a memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

__all__ = ["deal", "fair_share_fs"]

FEMTO = 10**15


def deal(blocks: Sequence[int], cycles: Sequence[int], cores: int) -> Mapping[tuple[int, ...], int]:
    """List scheduling: blocks of several kinds, in order, each to the core that is free first (of several, the first).

    *blocks* says how many of each kind there are, *cycles* how long one takes. The answer has, for every load (blocks
    of each kind) that some core has, the number of such cores; cores that get nothing are left out. As long as no core
    is a whole block ahead of another, a round of all cores leaves their order as it is, so whole rounds are dealt at
    once.
    """
    free = [0] * cores
    loads = [[0] * len(blocks) for _ in range(cores)]
    for kind, (count, length) in enumerate(zip(blocks, cycles, strict=True)):
        while count:
            rounds = count // cores if max(free) - min(free) < length or max(free) == min(free) else 0
            if rounds:
                for core in range(cores):
                    free[core] += rounds * length
                    loads[core][kind] += rounds
                count -= rounds * cores
                continue
            core = min(range(cores), key=free.__getitem__)
            free[core] += length
            loads[core][kind] += 1
            count -= 1
    return Counter(tuple(load) for load in loads if any(load))


def fair_share_fs(parts: Mapping[int, int], bandwidth: int | None, most: int | None) -> int:
    """Femtoseconds until every core has moved its bytes through a memory of *bandwidth* bytes per second.

    *parts* has, for a number of bytes, how many cores move as many. All that are still at it get equal shares, at most
    *most* bytes per second each; what a finished core leaves goes to the others.
    """
    if not bandwidth:
        return 0
    active, done, now = sum(parts.values()), 0, 0
    for nbytes in sorted(parts):
        step = nbytes - done
        now += max(step * active * FEMTO // bandwidth, step * FEMTO // most if most else 0)
        active -= parts[nbytes]
        done = nbytes
    return now
