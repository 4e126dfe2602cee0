"""FlashAttentionScore: attention in one pass over the keys, scores never whole in main memory [Dao 2022, 2205.14135].

A team of a cube core and its vector cores works on a block of query rows. Tile after tile of the keys,

    cube     S = q @ k^T                                 L0C -> a slot in main memory
    vector   m, l, P = exp(scale * (S - m))              slot -> UB -> another slot
    cube     U = P @ v                                   slot -> L1 -> L0C -> a third slot
    vector   O = O * alpha + U                           slot -> UB

and at the end y = O / l. The cores meet in main memory alone, in slots that each team has for itself (and that its
second-level cache holds), by flags that cross. The cube is two tiles ahead: it multiplies the next two q @ k^T
before it asks for P, so that both kinds of cores are busy.
"""

from __future__ import annotations

from dsf_ascend.kernels.flash.kernel import KERNELS

__all__ = ["KERNELS"]
