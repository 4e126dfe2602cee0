"""Simulated time, in integer femtoseconds. One timeline per cluster; nothing else keeps time."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

__all__ = ["Timeline"]


class Timeline:
    """Actions in order of time; ties break by order of arrival, so that a run repeats exactly."""

    def __init__(self) -> None:
        self.now_fs = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()

    @property
    def due_fs(self) -> int | None:
        """When the next action is due; None if nothing is."""
        return self._queue[0][0] if self._queue else None

    def at(self, time_fs: int, action: Callable[[], None]) -> None:
        """Do *action* at *time_fs*, which is not over yet."""
        assert time_fs >= self.now_fs, f"{time_fs} fs is over: it is {self.now_fs} fs"
        heappush(self._queue, (time_fs, next(self._order), action))

    def advance(self, time_fs: int) -> None:
        """Do everything that is due up to *time_fs*, which is then the present."""
        while self._queue and self._queue[0][0] <= time_fs:
            self.now_fs, _, action = heappop(self._queue)
            action()
        self.now_fs = max(self.now_fs, time_fs)

    def run(self) -> None:
        """Do everything that is due, until nothing is; a control loop, which is due again and again, never ends."""
        while self._queue:
            self.advance(self._queue[0][0])
