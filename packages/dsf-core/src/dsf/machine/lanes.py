"""Blocks side by side: along which variable of a nest they may run in lockstep, and what is the same in all of them.

Independent blocks differ in the main-memory windows that they name. What every one of them loads from the same place
(the rows of a product whose column tiles are spread over the cores, a table of positions) and what is computed from
nothing else is *uniform*: each core holds the same bytes at the same address. The functional plane keeps one copy of
it and lets all lanes read that.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from attrs import field, frozen

from dsf.isa.crew import CORE
from dsf.isa.program import Affine, Instruction, Loop, Nest, Operand
from dsf.isa.table import Isa

__all__ = ["MOST_LANES", "Lanes", "lanes_of", "step_of"]

Body = tuple[Instruction | Loop, ...]
MOST_LANES = 32
LANE_BYTES = 1 << 20  # what all lanes move in one step: as much as a core's own cache holds, fewer steps beyond
MOST_PLACES = 64  # an operand that stands in more places counts as one that stretches over all of them


@frozen
class Lanes:
    """Up to *most* blocks side by side along *variable*. *uniform* operands hold the same on every core."""

    variable: str = ""
    most: int = 1
    uniform: frozenset[Operand] = field(factory=frozenset)


def lanes_of(nest: Nest, isa: Isa, cores: int) -> Lanes:
    """The lanes of *nest*: its longest variable that moves main-memory operands by whole elements and nothing else,
    where every instruction has a form for lanes; no more than the chip has *cores* where each has its own workspace."""
    body = list(_flat(nest.body))
    rows = [isa.rows[ins.name] for ins in body]
    if any(row.lanes is None for row in rows if not row.synchronises):
        return Lanes()
    free = [(n, v) for v, n in nest.variables if n > 1 and all(_moves_main_only(ins, v) for ins in body)]
    if not free:
        return Lanes()
    widest = max((o.nbytes for ins in body for o in ins.operands), default=1)
    most = max(1, min(MOST_LANES, LANE_BYTES // max(widest, 1)))
    if any(t.variable == CORE for ins in body for o in ins.operands for t in o.offset.terms):
        most = min(most, cores)
    variable = max(free)[1]
    return Lanes(variable, most, _uniform(nest, isa, variable) if most > 1 else frozenset())


def _moves_main_only(ins: Instruction, variable: str) -> bool:
    """Whether *variable* occurs in *ins* only as a plain step of main-memory operands, in whole elements, and what is
    written there lies apart for each of its values (or for each core that has one)."""
    if any(isinstance(v, Affine) and any(t.variable == variable for t in v.terms) for _, v in ins.scalars):
        return False
    for place, operand in enumerate(ins.operands):
        terms = [t for t in operand.offset.terms if t.variable in (variable, CORE)]
        if operand.param is None:
            if terms:
                return False
            continue
        step = sum(t.step for t in terms)
        if step < 0 or (place == 0 and step == 0):  # torch has no negative strides, and writes no element twice
            return False
        if any(t.modulus or t.step % operand.itemsize for t in terms):
            return False
    return True


def step_of(offset: Affine, variable: str) -> int:
    """Bytes from one value of *variable*, which is another core's, to the next."""
    return sum(t.step for t in offset.terms if t.variable in (variable, CORE))


def _flat(body: Body) -> Iterator[Instruction]:
    for item in body:
        if isinstance(item, Loop):
            yield from _flat(item.body)
        else:
            yield item


def _uniform(nest: Nest, isa: Isa, variable: str) -> frozenset[Operand]:
    """The on-chip operands into whose bytes only uniform values are ever written while *nest* runs."""
    body = [ins for ins in _flat(nest.body) if not isa.rows[ins.name].synchronises]
    regions = _regions([o for ins in body for o in ins.operands if o.param is None], _counts(nest))
    mixed: set[int] = set()
    while True:
        found = {regions[ins.operands[0]] for ins in body if _writes_mixed(ins, variable, regions, mixed)}
        if found <= mixed:
            return frozenset(o for o, region in regions.items() if region not in mixed)
        mixed |= found


def _writes_mixed(ins: Instruction, variable: str, regions: dict[Operand, int], mixed: set[int]) -> bool:
    """Whether *ins* writes on chip what is not the same in every lane."""
    if not ins.operands or ins.operands[0].param is not None:
        return False
    return any(regions[o] in mixed if o.param is None else step_of(o.offset, variable) != 0 for o in ins.operands)


def _counts(nest: Nest) -> dict[str, int]:
    """How far every variable of *nest* runs; a name used twice counts with its longest loop."""
    counts = dict(nest.variables)

    def visit(body: Body) -> None:
        for item in body:
            if isinstance(item, Loop):
                counts[item.variable] = max(counts.get(item.variable, 0), item.count)
                visit(item.body)

    visit(nest.body)
    return counts


def _regions(operands: list[Operand], counts: dict[str, int]) -> dict[Operand, int]:
    """A number for every operand; operands that may share a byte, directly or by way of others, have the same."""
    spans = sorted((o.space, low, high, n) for n, o in enumerate(operands) for low, high in _spans(o, counts))
    leader = list(range(len(operands)))

    def find(n: int) -> int:
        while leader[n] != n:
            leader[n] = leader[leader[n]]
            n = leader[n]
        return n

    space, reach, owner = "", 0, 0
    for name, low, high, n in spans:
        if name == space and low < reach:
            leader[find(n)] = find(owner)
        else:
            space, reach, owner = name, 0, n
        if high > reach:
            reach = high
    known: dict[Operand, int] = {}
    for n, operand in enumerate(operands):
        if operand in known:
            leader[find(n)] = find(known[operand])
        known.setdefault(operand, n)
    return {operand: find(n) for operand, n in known.items()}


def _spans(operand: Operand, counts: dict[str, int]) -> list[tuple[int, int]]:
    """The byte ranges [low, high) in which *operand* stands, or one that covers them where they are many."""
    reach, terms = operand.reach, operand.offset.terms
    values = [range(min(counts[t.variable], t.modulus) if t.modulus else counts[t.variable]) for t in terms]
    if prod(map(len, values)) > MOST_PLACES:
        low, high = operand.offset.extremes(counts)
        return [(low, high + reach)]
    places = {
        operand.offset.const + sum(t.step * v for t, v in zip(terms, chosen, strict=True))
        for chosen in product(*values)
    }
    return [(low, low + reach) for low in sorted(places)]
