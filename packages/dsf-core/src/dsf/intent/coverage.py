"""How much of a step is understood: the share of its matrix FLOPs and of its operations inside named intents, and what
stayed opaque, with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import prod
from typing import Any

from attrs import frozen

from dsf.intent.flops import flops
from dsf.intent.ir import Intent
from dsf.intent.operators import OPERATORS

__all__ = ["Coverage", "GroupRow", "KindRow", "OpaqueRow", "coverage"]


@frozen
class KindRow:
    """All intents of one kind: how many, how many recorded operations they cover, their matrix FLOPs."""

    kind: str
    intents: int
    operations: int
    flops: int


@frozen
class GroupRow:
    """Intents that are one thing together: the kind of the whole, how many wholes, how many intents in all."""

    kind: str
    groups: int
    intents: int


@frozen
class OpaqueRow:
    """One operator that no kind means, *count* times; *scope* is the class of the module that asked for it first."""

    target: str
    count: int
    flops: int
    scope: str
    why: str


@frozen
class Coverage:
    """What is named and what is not. A *named* operation lies in an intent that is not opaque."""

    operations: int
    named_operations: int
    flops: int
    named_flops: int
    kinds: tuple[KindRow, ...]
    groups: tuple[GroupRow, ...]
    opaque: tuple[OpaqueRow, ...]

    @property
    def operations_share(self) -> float:
        """Named operations of all; 1 where there are none."""
        return self.named_operations / self.operations if self.operations else 1.0

    @property
    def flops_share(self) -> float:
        """Named matrix FLOPs of all; 1 where there are none."""
        return self.named_flops / self.flops if self.flops else 1.0

    def to_json(self) -> dict[str, Any]:
        """The same as plain data, shares included."""
        return {
            "operations": self.operations,
            "named_operations": self.named_operations,
            "operations_share": self.operations_share,
            "flops": self.flops,
            "named_flops": self.named_flops,
            "flops_share": self.flops_share,
            "kinds": [{"kind": r.kind, "intents": r.intents, "operations": r.operations, "flops": r.flops}
                      for r in self.kinds],
            "groups": [{"kind": r.kind, "groups": r.groups, "intents": r.intents} for r in self.groups],
            "opaque": [{"target": r.target, "count": r.count, "flops": r.flops, "scope": r.scope, "why": r.why}
                       for r in self.opaque],
        }  # fmt: skip


def coverage(parts: Iterable[tuple[int, tuple[Intent, ...]]]) -> Coverage:
    """The coverage of a step that was parsed in *parts*: of each the number of recorded operations, and its intents.
    Equal layers may share the intents themselves."""
    made = list(parts)
    distinct = {id(intents): intents for _, intents in made}
    work = {id(intent): _flops(intent) for intents in distinct.values() for intent in intents}
    every = [intent for _, intents in made for intent in intents]
    opaque = [intent for intent in every if intent.kind == "opaque"]
    total = sum(count for count, _ in made)
    all_flops = sum(work[id(intent)] for intent in every)
    return Coverage(
        operations=total,
        named_operations=total - sum(len(intent.ops) for intent in opaque),
        flops=all_flops,
        named_flops=all_flops - sum(work[id(intent)] for intent in opaque),
        kinds=_kinds(every, work),
        groups=_groups([intents for _, intents in made]),
        opaque=_opaque(opaque, work),
    )


def _flops(intent: Intent) -> int:
    """Matrix FLOPs, also of the opaque contraction that torch's own counter does not know: it must not look named."""
    if intent.kind == "opaque" and str(intent.attr("target")).startswith("aten._grouped_mm."):
        return 2 * prod(intent.outputs[0].shape) * intent.inputs[0].shape[-1]
    return flops(intent)


def _kinds(intents: list[Intent], work: dict[int, int]) -> tuple[KindRow, ...]:
    """Most FLOPs first, then most operations."""
    counts: Counter[str] = Counter()
    operations: Counter[str] = Counter()
    contracted: Counter[str] = Counter()
    for intent in intents:
        counts[intent.kind] += 1
        operations[intent.kind] += len(intent.ops)
        contracted[intent.kind] += work[id(intent)]
    ranked = sorted(counts, key=lambda kind: (-contracted[kind], -operations[kind], kind))
    return tuple(KindRow(kind, counts[kind], operations[kind], contracted[kind]) for kind in ranked)


def _groups(parts: list[tuple[Intent, ...]]) -> tuple[GroupRow, ...]:
    wholes: Counter[str] = Counter()
    members: Counter[str] = Counter()
    for intents in parts:
        grouped = [intent.group for intent in intents if intent.group is not None]
        wholes.update(kind for kind, _ in {(group.kind, group.anchor) for group in grouped})
        members.update(group.kind for group in grouped)
    return tuple(GroupRow(kind, wholes[kind], members[kind]) for kind in sorted(wholes))


def _opaque(intents: list[Intent], work: dict[int, int]) -> tuple[OpaqueRow, ...]:
    first: dict[str, Intent] = {}
    counts: Counter[str] = Counter()
    contracted: Counter[str] = Counter()
    for intent in intents:
        target = str(intent.attr("target"))
        first.setdefault(target, intent)
        counts[target] += 1
        contracted[target] += work[id(intent)]
    ranked = sorted(counts, key=lambda target: (-contracted[target], -counts[target], target))
    return tuple(
        OpaqueRow(target, counts[target], contracted[target], first[target].scope.module, _why(first[target]))
        for target in ranked
    )


def _why(intent: Intent) -> str:
    """Why no kind means the operation."""
    name = str(intent.attr("target")).removeprefix("aten.")
    if any(region.numel == 0 for region in intent.inputs):
        return "an input has no element"
    base, _, overload = name.partition(".")
    known = f"{base.removesuffix('_')}.{overload}" in OPERATORS
    return "its row declines these operands" if known else "no kind of intent means this operator"
