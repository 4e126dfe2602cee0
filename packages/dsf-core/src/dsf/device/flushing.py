"""When a tape runs and what follows: addresses for what lives, freed memory for what died, errors for what failed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from dsf import errors
from dsf.device import blocks
from dsf.device.blocks import Block
from dsf.device.tape import Draft, draft, lock, recorder
from dsf.intent.tape import Site

__all__ = ["flush", "physical", "reap", "settle"]


def flush() -> None:
    """Run what is recorded. An error is raised here, and again by whoever reads a tensor that it left unknown."""
    with lock, _uncollected():
        if recorder.log:
            _run(draft(recorder.log, recorder.epoch))
        reap()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Python's search for garbage waits: a flush makes thousands of objects and no cycle among them."""
    wanted = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if wanted:
            gc.enable()


def _run(work: Draft) -> None:
    session = recorder.needs()
    epoch, recorder.log, recorder.epoch = recorder.epoch, [], recorder.epoch + 1
    try:
        addresses = session.run(work.tape)
    except BaseException as error:
        for block in work.blocks:
            if block.written == epoch:
                blocks.poison(block, _lasting(error))
        raise
    for number, address in addresses.items():
        _place(work.blocks[number], address)
    for block in work.blocks:
        if block.written == epoch:
            block.uploaded = False


def _lasting(error: BaseException) -> BaseException:
    """What readers of a lost value are told: the error itself, but a Ctrl-C stops its own moment only."""
    if isinstance(error, Exception):
        return error
    return errors.DeviceError(
        "DSF-D007",
        f"{recorder.name}: the step that would have made this tensor was interrupted ({type(error).__name__}), so it "
        "has no value; compute it again",
    )


def _place(block: Block, address: int) -> None:
    block.physical = address
    if not block.alive:
        blocks.dead.append(block)


def reap() -> None:
    """Give back the memory of dead blocks, unless a recorded operation may still touch it."""
    session = recorder.session
    while blocks.dead and not recorder.log and session is not None:
        block = blocks.dead.pop()
        if block.physical is not None:  # None: it died while a flush placed it and is listed twice
            session.free(block.physical)
            block.physical = None


def settle(block: Block) -> None:
    """Make the bytes of *block* those that the program's order demands."""
    if recorder.is_pending(block):
        flush()
    if block.error is not None:
        raise blocks.stripped(block.error)


def physical(block: Block, site: Site | None) -> int:
    """The address of *block*, taken now if it has none."""
    if block.physical is None:
        block.physical = _allocate(block.nbytes, site)
    return block.physical


def _allocate(nbytes: int, site: Site | None) -> int:
    """Memory now; if there is none, first run what is recorded, since that may be all that keeps dead blocks."""
    reap()
    session = recorder.needs()
    try:
        return session.allocate(nbytes, site)
    except errors.OutOfMemory:
        if not recorder.log:
            raise
    flush()
    return session.allocate(nbytes, site)
