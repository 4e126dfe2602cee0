"""Who works on a phase's blocks: one core of a kind, or a *team* of cores of several kinds.

In a team's phase every instruction belongs to the member whose memory it works on, and engines are named with their
member (`AIC.MTE2`), since two kinds may each have a queue of that name. Two variables stand around every block there
and count nothing in the listing: `part`, which of the cores of its kind it is that carries an instruction out (each of
a team's two vector cores its half of a tile), and, in any phase, `core`, which core or team has taken the block, so
that each may have a workspace of its own.
"""

from __future__ import annotations

from functools import lru_cache

from attrs import field, frozen

from dsf.hdl import Chip
from dsf.isa.program import Instruction
from dsf.isa.table import Row

__all__ = ["CORE", "PART", "Crew", "crew_of"]

CORE, PART = "core", "part"


@frozen
class Crew:
    """*count* cores or teams; *members* are the kinds of cores in one, with their number."""

    name: str
    count: int
    clock: str
    members: tuple[tuple[str, int], ...]
    _owners: tuple[tuple[str, str], ...] = field(repr=False)

    @property
    def is_team(self) -> bool:
        return len(self.members) > 1

    @property
    def cores(self) -> int:
        """Cores in one of it."""
        return sum(number for _, number in self.members)

    @property
    def parts(self) -> int:
        """The most cores of one kind."""
        return max(number for _, number in self.members)

    def member(self, ins: Instruction) -> str:
        """The kind of core that carries *ins* out: the owner of its first operand on chip."""
        if self.is_team:
            owners = dict(self._owners)
            return next((owners[o.space] for o in ins.operands if o.space in owners), self.members[0][0])
        return self.name

    def engine(self, row: Row, ins: Instruction) -> str:
        """The queue of *ins*, as flags name it here."""
        return f"{self.member(ins)}.{row.engine}" if self.is_team else row.engine

    def number(self, member: str) -> int:
        """How many cores of the kind *member* there are in one of it."""
        return dict(self.members).get(member, 1)

    def split(self, engine: str) -> tuple[str, str]:
        """(member, queue) of an engine as it is named here."""
        member, dot, queue = engine.partition(".")
        return (member, queue) if self.is_team and dot else (self.name, engine)


@lru_cache(maxsize=64)
def crew_of(chip: Chip, name: str) -> Crew:
    """The crew of phases on *name*, a kind of core or a team of *chip*; KeyError if it has none of that name."""
    if name in chip.cores:
        core = chip.cores[name]
        return Crew(name, core.count, core.clock, ((name, 1),), ())
    members = chip.teams[name]
    owners = tuple((m.name, m.core) for m in chip.memories.values() if m.core is not None)
    count = min(chip.cores[member].count // number for member, number in members.items())
    clock = chip.cores[next(iter(members))].clock
    return Crew(name, count, clock, tuple(members.items()), owners)
