"""The device's main memory in use: who has which bytes, what they hold, and what is said when there are no more."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from attrs import define, field, frozen

from dsf import errors
from dsf.hdl import Chip
from dsf.intent.tape import Site, Window
from dsf.machine.arena import Arena
from dsf.memory.pool import Pool

__all__ = ["DeviceOutOfMemory", "Storage", "Workspace"]

GRANULE = 512  # bytes: blocks start on whole lines, so that programs find the alignment they were cut for
LARGE = 1 << 20
MOST_LISTED = 5  # kinds of residents that an OutOfMemory lists


class DeviceOutOfMemory(errors.OutOfMemory, torch.OutOfMemoryError):
    """An OutOfMemory that scripts which expect torch's own error catch too."""


@define(eq=False)
class Workspace:
    """Device memory that stays where it is while it is large enough, so that programs bound to it stay valid. Between
    steps it gives way to whoever needs the room."""

    storage: Storage
    address: int = 0
    nbytes: int = 0
    in_use: bool = False

    def at_least(self, nbytes: int, site: Site | None) -> int:
        """The workspace's address, after it has grown to *nbytes* where it was smaller, for who recorded *site*."""
        if nbytes > self.nbytes:
            self.give_back()
            self.address = self.storage.allocate(nbytes, site, "workspace")
            self.nbytes = nbytes
        self.in_use = True
        return self.address

    def give_back(self) -> None:
        """Return the memory; the next step takes it again."""
        if self.nbytes:
            self.storage.free(self.address)
            self.nbytes = 0


@frozen
class Resident:
    """Who has a block of memory: a `tensor` or a `workspace`, and the user's line that asked for it."""

    what: str
    site: Site | None

    def said(self, count: int, nbytes: int) -> str:
        """So many of them in words."""
        where = f"recorded at {self.site}" if self.site else "whose line was not recorded"
        return f"{_mib(nbytes)} in {count} {self.what}{'s' if count > 1 else ''} {where}"


@define(eq=False)
class Storage:
    """Main memory of *chip*. Without *valued* it has addresses and no bytes: every window reads as zeros."""

    chip: Chip
    valued: bool
    pool: Pool = field(init=False)
    arena: Arena | None = field(init=False)
    temporaries: Workspace = field(init=False)
    scratch: Workspace = field(init=False)
    _residents: dict[int, Resident] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        memory = self.chip.main_memory
        granule = max(memory.alignment, GRANULE)
        self.pool = Pool(memory.usable // granule * granule, granule)
        self.arena = Arena(memory.nbytes) if self.valued else None
        self.temporaries, self.scratch = Workspace(self), Workspace(self)

    def allocate(self, nbytes: int, site: Site | None, what: str = "tensor") -> int:
        """Take memory; an OutOfMemory says what was needed, what there is, what would fit and who has the rest."""
        address = self.pool.take(nbytes)
        for workspace in (self.temporaries, self.scratch):
            if address is None and not workspace.in_use:
                workspace.give_back()
                address = self.pool.take(nbytes)
        if address is None:
            raise self._out_of_memory(nbytes, site)
        self._residents[address] = Resident(what, site)
        return address

    def _out_of_memory(self, nbytes: int, site: Site | None) -> DeviceOutOfMemory:
        memory, free = self.chip.main_memory, self.pool.capacity - self.pool.used
        where = f", recorded at {site}" if site else ""
        kept = f"; the runtime keeps {_mib(memory.reserved)} more for itself" if memory.reserved else ""
        sentence = (
            f"{memory.name} of {self.chip.name}: needed {_mib(nbytes)}, available {_mib(free)} of "
            f"{_mib(self.pool.capacity)} (largest piece {_mib(self.pool.largest_hole)}{kept}){where}; "
            "use a smaller model, batch or context, a narrower dtype, or a chip with more memory (dsf-cli chips)"
        )
        return DeviceOutOfMemory("DSF-M001", "\n  ".join([sentence, *self._held()]))

    def _held(self) -> Iterator[str]:
        """Who has the memory: what one line asked for as one sum, the largest sums first, then the rest."""
        sums: dict[Resident, tuple[int, int]] = {}
        for address, nbytes in self.pool.blocks.items():
            count, total = sums.get(self._residents[address], (0, 0))
            sums[self._residents[address]] = count + 1, total + nbytes
        ranked = sorted(sums.items(), key=lambda item: item[1][1], reverse=True)
        yield from (resident.said(count, nbytes) for resident, (count, nbytes) in ranked[:MOST_LISTED])
        if rest := [held for _, held in ranked[MOST_LISTED:]]:
            yield f"{_mib(sum(nbytes for _, nbytes in rest))} in {sum(count for count, _ in rest)} others"

    def free(self, address: int) -> None:
        """Give memory back, and its pages to the host."""
        size = self.pool.give(address)
        del self._residents[address]
        if self.arena is not None and size >= LARGE:
            self.arena.discard(address, size)

    def window(self, address: int, window: Window) -> torch.Tensor:
        """The bytes themselves, as a CPU tensor that aliases them."""
        if self.arena is None:
            return torch.zeros(window.shape, dtype=window.dtype)
        at = address + window.offset * window.dtype.itemsize
        return self.arena.window(at, window.shape, window.stride, window.dtype)

    def settle(self) -> None:
        """A step is over: its workspaces may give way."""
        self.temporaries.in_use = self.scratch.in_use = False


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB"
