"""Which bytes an access touches, and whether two accesses share one."""

from __future__ import annotations

import numpy as np
from attrs import define, frozen

from dsf.isa.program import Operand

__all__ = ["Access", "Footprint", "window_of"]

LARGEST = 1 << 24  # bytes that two windows of different strides may stretch over and still be compared one by one


@frozen
class Footprint:
    """The bytes of a window from its offset on: to *end*, in rows of *width*; *rows* has (pitch, count) of the
    dimensions that keep the rows apart, the closest first."""

    end: int
    width: int
    rows: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, operand: Operand) -> Footprint:
        dims = sorted((s, n) for n, s in zip(operand.shape, operand.stride, strict=True) if n > 1 and s > 0)
        item, width = operand.itemsize, operand.itemsize
        while dims and dims[0][0] * item <= width:
            stride, n = dims.pop(0)
            width = (n - 1) * stride * item + width
        return cls(operand.reach, width, tuple((stride * item, n) for stride, n in dims))

    @property
    def pitch(self) -> int:
        """Bytes from row to row where one dimension keeps them apart; 0 for a dense or an irregular window."""
        return self.rows[0][0] if len(self.rows) == 1 else 0


@define(eq=False)
class Access:
    """One access: which bytes, by which engine, as its how-manieth step, on which line, whether it wrote, and in which
    block."""

    start: int
    end: int
    form: Footprint
    engine: str
    step: int
    line: int
    wrote: bool
    block: int
    operand: Operand

    def meets(self, other: Access) -> bool:
        """Whether the two share a byte. Windows of equal pitch are compared by column, others byte by byte."""
        if other.end <= self.start or self.end <= other.start:
            return False
        mine, its = self.form, other.form
        if not (mine.rows or its.rows):
            return True
        pitch = mine.pitch
        if pitch and pitch == its.pitch:
            shift = (other.start - self.start) % pitch
            return shift < mine.width or shift + its.width > pitch
        low = min(self.start, other.start)
        size = max(self.end, other.end) - low
        if size > LARGEST:
            return True
        touched = np.zeros(size, dtype=bool)
        window_of(touched, self, low)[...] = True
        return bool(window_of(touched, other, low).any())

    def covers(self, other: Access) -> bool:
        """Whether every byte of *other* is in this one, as far as can be told from bounds and columns."""
        if self.start > other.start or other.end > self.end:
            return False
        mine, its = self.form, other.form
        if not mine.rows or (self.start == other.start and mine == its):
            return True
        pitch = mine.pitch
        if not pitch or (its.rows and pitch != its.pitch):
            return False
        return (other.start - self.start) % pitch + its.width <= mine.width


def window_of(memory: np.ndarray, access: Access, low: int = 0) -> np.ndarray:
    """The bytes of *access* in *memory*, an array of as many bytes that begins at *low*."""
    o = access.operand
    shape, strides = (*o.shape, o.itemsize), (*(s * o.itemsize for s in o.stride), 1)
    return np.lib.stride_tricks.as_strided(memory[access.start - low :], shape, strides)
