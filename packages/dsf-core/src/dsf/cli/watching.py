"""What is being done, as it is done: bars on stderr, where that is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress"]


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar per stage on stderr, gone when the stage is done; nothing where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _unwatched
        return
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    stages: dict[str, TaskID] = {}

    def watch(stage: str, done: int, total: int) -> None:
        if stage not in stages:
            stages[stage] = bars.add_task(stage, total=total)
            bars.start()
        bars.update(stages[stage], completed=done)
        if bars.finished:
            bars.stop()  # the answer is streamed to the same terminal

    try:
        yield watch
    finally:
        bars.stop()


def _unwatched(stage: str, done: int, total: int) -> None:
    """Nobody looks at stderr as it comes."""
