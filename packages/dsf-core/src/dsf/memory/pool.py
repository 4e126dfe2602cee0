"""The device's main memory as an allocator: first fit over address-ordered holes, neighbours merged when freed."""

from __future__ import annotations

from bisect import bisect_left, insort

from attrs import define, field

__all__ = ["Pool"]


@define(eq=False)
class Pool:
    """*capacity* bytes from address *base*; every block starts on a multiple of *alignment*."""

    capacity: int
    alignment: int
    base: int = 0
    used: int = 0
    peak: int = 0
    _holes: list[tuple[int, int]] = field(init=False)  # (address, size), by address
    _blocks: dict[int, int] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self._holes = [(self.base, self.capacity)] if self.capacity else []

    def rounded(self, nbytes: int) -> int:
        """The bytes that a request of *nbytes* takes: whole units, at least one."""
        return max(1, -(-nbytes // self.alignment)) * self.alignment

    def take(self, nbytes: int) -> int | None:
        """An address for *nbytes*, or None where no hole is large enough."""
        size = self.rounded(nbytes)
        for index, (address, room) in enumerate(self._holes):
            if room >= size:
                if room == size:
                    del self._holes[index]
                else:
                    self._holes[index] = address + size, room - size
                self._blocks[address] = size
                self.used += size
                self.peak = max(self.peak, self.used)
                return address
        return None

    def give(self, address: int) -> int:
        """Free the block at *address*; returns its size."""
        size = self._blocks.pop(address)
        self.used -= size
        start, room = address, size
        index = bisect_left(self._holes, (address, 0))
        if index < len(self._holes) and self._holes[index][0] == start + room:
            room += self._holes.pop(index)[1]
        if index and sum(self._holes[index - 1]) == start:
            start, before = self._holes.pop(index - 1)
            room += before
        insort(self._holes, (start, room))
        return size

    @property
    def largest_hole(self) -> int:
        """The largest request that fits now."""
        return max((size for _, size in self._holes), default=0)

    @property
    def blocks(self) -> dict[int, int]:
        """Address -> size of every block that is taken."""
        return dict(self._blocks)
