"""What a chip could not beat: an intent's FLOPs at the matrix engines' peak, its bytes at main memory's bandwidth.

A comparison, never a prediction: both numbers are the hardware description's own, and nothing else goes in. Of causal
attention only the scores count that somebody sees.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from attrs import frozen

from dsf import errors
from dsf.hdl import Chip
from dsf.intent.flops import flops
from dsf.intent.ir import Intent
from dsf.intent.tape import Region
from dsf.isa.program import dtype_name

__all__ = ["Roofline", "roofline"]

FEMTO = 10**15
ROWS_BY_INDEX = ("embedding", "index", "gather", "kv_append")  # of their largest operand only what is moved counts


@frozen
class Roofline:
    """The least femtoseconds for an intent's *flops* (0 where no matrix engine computes) and for its *nbytes*."""

    flops: int
    nbytes: int
    compute_fs: int
    memory_fs: int

    @property
    def fs(self) -> int:
        return max(self.compute_fs, self.memory_fs)

    @property
    def bound(self) -> str:
        """Which of the two it is: `compute` or `memory`."""
        return "compute" if self.compute_fs > self.memory_fs else "memory"


def roofline(chip: Chip, intent: Intent) -> Roofline:
    """The roofline of *intent* on *chip*: every byte of its operands moved once, every FLOP at the peak."""
    work, nbytes = _seen_flops(intent), _nbytes(intent)
    bandwidth = chip.main_memory.bandwidth
    compute = work * FEMTO // _peak(chip, intent) if work and _peak(chip, intent) else 0
    return Roofline(work, nbytes, compute, nbytes * FEMTO // bandwidth if bandwidth else 0)


def _peak(chip: Chip, intent: Intent) -> int:
    """FLOPs a second in the format of the first operand; 0 where no matrix engine has it."""
    try:
        return chip.peak_flops(dtype_name(intent.inputs[0].dtype))
    except errors.DtypeError:
        return 0


def _seen_flops(intent: Intent) -> int:
    total = flops(intent)
    if intent.kind != "attention":
        return total
    queries, keys = intent.inputs[0].shape[2], intent.inputs[1].shape[2]
    window = intent.attr("window") or keys
    if not intent.attr("causal") or not queries * keys:
        return total
    return total * sum(min(row + 1, keys, window) for row in range(queries)) // (queries * keys)


def _nbytes(intent: Intent) -> int:
    """Bytes of all operands, each once, however often it is repeated."""
    if intent.kind in ROWS_BY_INDEX:
        moved = intent.inputs[1] if intent.kind == "kv_append" else intent.outputs[0]
        return 2 * _distinct((moved,))
    return _distinct((*intent.inputs, *intent.outputs))


def _distinct(regions: Iterable[Region]) -> int:
    seen = {(region.buffer, region.window): region for region in regions}
    return sum(_elements(region) * region.dtype.itemsize for region in seen.values())


def _elements(region: Region) -> int:
    return prod(n for n, step in zip(region.shape, region.stride, strict=True) if step or not n)
