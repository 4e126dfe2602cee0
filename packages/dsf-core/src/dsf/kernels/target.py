"""A chip as a kernel's author sees it: its HDL, its instruction table, and which instructions serve which primitive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from attrs import define, field

from dsf import errors
from dsf.hdl import Chip
from dsf.isa import Builder, Isa, Row
from dsf.kernels.tree import Trees
from dsf.machine.timing import Timing

__all__ = ["Target"]


@define(eq=False)
class Target:
    """What kernels are written against. *timing* is the judge between candidate programs, *trees* is what it taught us
    before; *memory* keeps what a generator has found out (the best tile of a shape). Under *strict_layouts* a tile on
    chip lies in the very order that the chip's engines want; else it is tagged with its shape and lies as in main
    memory."""

    chip: Chip
    isa: Isa
    timing: Timing
    strict_layouts: bool = False
    trees: Trees = field(factory=Trees)
    memory: dict[Any, Any] = field(factory=dict)
    sketching: bool = False
    _serving: dict[tuple[str, str | None], Row] = field(factory=dict)

    def builder(self, name: str) -> Builder:
        return Builder(name, self.isa, self.chip, self.sketching)

    @contextmanager
    def sketches(self) -> Iterator[None]:
        """Programs that are written inside are not verified: most candidates are only timed."""
        before, self.sketching = self.sketching, True
        try:
            yield
        finally:
            self.sketching = before

    def row(self, primitive: str, dtype: str | None = None) -> Row:
        """The first instruction that serves *primitive* on *dtype*; a KernelError when none does."""
        key = primitive, dtype
        found = self._serving.get(key)
        if found is None:
            found = self._serving[key] = self._find(primitive, dtype)
        return found

    def serves(self, primitive: str, dtype: str | None = None, kind: str | None = None) -> bool:
        """Whether some instruction serves *primitive* on *dtype*, on an engine of *kind* if one is named."""
        return any(
            _takes(row, dtype) and (kind is None or self.chip.engines[row.engine].kind == kind)
            for row in self.isa.serving(primitive)
        )

    def _find(self, primitive: str, dtype: str | None) -> Row:
        for row in self.isa.serving(primitive):
            if _takes(row, dtype):
                return row
        kind = f" on {dtype}" if dtype else ""
        raise errors.KernelError("DSF-K001", f"{self.isa.name}: no instruction serves '{primitive}'{kind}")

    def core_of(self, row: Row) -> str:
        """The kind of core that runs *row*: the owner of its on-chip memories, else the first that has its engine."""
        memories = (self.chip.memories[space] for _, role in row.operands for space in role.spaces)
        return next((m.core for m in memories if m.core is not None), self.chip.engines[row.engine].core[0])


def _takes(row: Row, dtype: str | None) -> bool:
    """Whether the sources of *row* (or its result, where it has none) take *dtype*."""
    if dtype is None:
        return True
    roles = [role for _, role in (row.operands[1:] or row.operands[:1]) if role.dtypes != ("bool",)] or [
        row.operands[0][1]
    ]
    return all(not role.dtypes or dtype in role.dtypes for role in roles)
