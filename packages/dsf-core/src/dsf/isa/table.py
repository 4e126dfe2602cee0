"""An instruction set as a table: one row per instruction, declared once, read by everybody.

From a row come the functional machine (`semantics`, `fast`), the timing machine (`engine`, `cycles`), the checks
(`operands`, `rules`), the manual (`print(ISA)`) and the tests. Semantics are pure: operand arrays in, the written
operand's new value out; they know no clock. Cycles are pure as well: shapes and chip in, cycles out, no values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from functools import lru_cache
from inspect import signature
from typing import Any

import torch
from attrs import field, frozen

from dsf import errors
from dsf.hdl import Chip
from dsf.isa.program import Instruction, Scalar
from dsf.numerics.rounding import Rounding

__all__ = ["SET_FLAG", "WAIT_FLAG", "Isa", "Role", "Row", "accumulate", "read", "write"]

SET_FLAG, WAIT_FLAG = "set", "wait"


@frozen
class Role:
    """What an operand must be: read, write or accumulate (read and written), in which memories, in which dtypes."""

    mode: str
    spaces: tuple[str, ...]
    dtypes: tuple[str, ...] = ()


def read(*spaces: str, dtypes: Iterable[str] = ()) -> Role:
    """An operand that is read. No dtypes: any."""
    return Role("read", spaces, tuple(dtypes))


def write(*spaces: str, dtypes: Iterable[str] = ()) -> Role:
    """An operand that is written whole."""
    return Role("write", spaces, tuple(dtypes))


def accumulate(*spaces: str, dtypes: Iterable[str] = ()) -> Role:
    """An operand that is read and written."""
    return Role("accumulate", spaces, tuple(dtypes))


Semantics = Callable[..., torch.Tensor]
Cycles = Callable[[Chip, "Row", Instruction], int]
Rule = Callable[[Chip, Instruction], str | None]


@frozen(eq=False)
class Row:
    """One instruction of an ISA.

    *semantics(\\*operands, \\*\\*scalars)* returns the new value of the first operand, which is the written one.
    *fast(dst, \\*sources, \\*\\*scalars)* does the same in place, bit for bit as the semantics at the operands' own
    precision; *lanes* is the in-place form for several cores in lockstep, every operand with a leading dimension more,
    bit for bit as one core after the other; only a product's terms may be added in another order. *flag* marks the two
    synchronising instructions, *barrier* the one that joins all engines of a core. *implements* is the neutral
    primitive it serves. *rounding* is how the machine makes the written operand's numbers of what the semantics return,
    where the instruction says so and not the HDL.
    *macs(instruction)* counts multiply-accumulates including padding, None for what is not a matrix instruction.
    """

    name: str
    engine: str
    cycles: Cycles
    operands: tuple[tuple[str, Role], ...]
    semantics: Semantics
    summary: str
    fast: Callable[..., Any] | None = None
    rules: tuple[Rule, ...] = ()
    implements: str | None = None
    flag: str | None = None
    macs: Callable[[Chip, Instruction], int] | None = None
    source: str = ""
    opclass: str = "default"
    lanes: Callable[..., Any] | None = None
    rounding: Rounding | None = None
    barrier: bool = False

    @property
    def synchronises(self) -> bool:
        """Whether the instruction orders engines and has no value."""
        return self.flag is not None or self.barrier

    @property
    def scalars(self) -> tuple[tuple[str, str], ...]:
        """(name, type) of its scalars: what the semantics take beside the operands; src, dst and event of a flag."""
        return _scalars(self)


@lru_cache(maxsize=4096)
def _scalars(row: Row) -> tuple[tuple[str, str], ...]:
    if row.flag is not None:
        return ("src", "str"), ("dst", "str"), ("event", "int")
    takes = [p for p in signature(row.semantics).parameters.values() if p.kind is not p.VAR_KEYWORD]
    rest = [p for p in takes if p.kind is p.VAR_POSITIONAL]  # one that stands for all the operands that are left
    scalars = takes[takes.index(rest[0]) + 1 :] if rest else takes[len(row.operands) :]
    return tuple((p.name, getattr(p.annotation, "__name__", str(p.annotation))) for p in scalars)


@frozen(eq=False)
class Isa:
    """The rows of an instruction set by name, and *wide*: memories whose numbers the functional plane holds in
    float32 containers (lossless for the 16-bit formats that the chip holds there)."""

    name: str
    rows: dict[str, Row] = field(factory=dict)
    wide: frozenset[str] = frozenset()
    flags: tuple[str, str] = ("SetFlag", "WaitFlag")

    def instruction(
        self,
        engine: str,
        cycles: Cycles,
        *,
        name: str | None = None,
        fast: Callable[..., Any] | None = None,
        rules: Iterable[Rule] = (),
        implements: str | None = None,
        macs: Callable[[Chip, Instruction], int] | None = None,
        source: str = "",
        opclass: str = "default",
        lanes: Callable[..., Any] | None = None,
        **operands: Role,
    ) -> Callable[[Semantics], Semantics]:
        """Declare the decorated pure function as an instruction; the first operand is the one it writes."""

        def declare(semantics: Semantics) -> Semantics:
            title = name or semantics.__name__
            summary = (semantics.__doc__ or "").strip()
            self.add(
                Row(title, engine, cycles, tuple(operands.items()), semantics, summary, fast, tuple(rules),
                    implements, None, macs, source, opclass, lanes)
            )  # fmt: skip
            return semantics

        return declare

    def add(self, row: Row) -> None:
        if row.name in self.rows:
            raise errors.IsaError("DSF-I001", f"{self.name}: instruction '{row.name}' is declared twice")
        self.rows[row.name] = row

    def add_flags(self, cycles: Cycles, source: str = "") -> None:
        """Declare the pair that orders two engines: set on the source's queue, wait on the target's queue."""
        for title, kind, text in zip(
            self.flags,
            (SET_FLAG, WAIT_FLAG),
            ("raise flag *event* for engine *dst* when all earlier work of engine *src* is done",
             "hold engine *dst* until engine *src* has raised flag *event*, and take the flag"),
            strict=True,
        ):  # fmt: skip
            self.add(Row(title, "", cycles, (), _no_value, text, flag=kind, source=source))

    def __getitem__(self, name: str) -> Row:
        row = self.rows.get(name)
        if row is None:
            raise errors.IsaError("DSF-I002", self.unknown(name))
        return row

    def unknown(self, name: str) -> str:
        """What to say about a name that is in no row: the nearest names, else where all are listed."""
        folded = {known.lower(): known for known in self.rows}
        near = [folded[n] for n in get_close_matches(name.lower(), folded, n=3, cutoff=0.75)]
        hint = f"did you mean {' or '.join(near)}?" if near else f"`dsf-cli isa` lists all {len(self.rows)}"
        return f"{self.name}: no instruction named '{name}'; {hint}"

    @property
    def engines(self) -> frozenset[str]:
        """The engines that have a row."""
        return frozenset(row.engine for row in self.rows.values() if row.engine)

    def serving(self, primitive: str) -> Iterator[Row]:
        """The rows that implement a neutral primitive, in the order of declaration."""
        return (row for row in self.rows.values() if row.implements == primitive)

    def engine_of(self, ins: Instruction) -> str:
        """The engine in whose queue an instruction stands."""
        row = self[ins.name]
        if row.flag is None:
            return row.engine
        scalars: dict[str, Scalar] = dict(ins.scalars)
        return str(scalars["src" if row.flag == SET_FLAG else "dst"])

    def __str__(self) -> str:
        """The manual's table, one line per row."""
        lines = [f"{self.name}: {len(self.rows)} instructions"]
        for row in self.rows.values():
            ops = ", ".join(f"{n}:{'|'.join(r.spaces)}" for n, r in row.operands)
            lines.append(
                f"  {row.name:24} {row.engine or 'any':6} {ops:48} {row.summary.splitlines()[0] if row.summary else ''}"
            )
        return "\n".join(lines)


def _no_value(*_: Any, **__: Any) -> torch.Tensor:
    raise AssertionError("a flag has no value")
