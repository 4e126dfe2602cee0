"""What every operator row is made of: the intent it builds, and what may lie in one buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsf.intent.graph import Graph, Node
from dsf.intent.ir import Intent, attributes
from dsf.intent.tape import Region, Slot
from dsf.intent.views import overlap, same

__all__ = ["Row", "aliases_safely", "build", "first_result_only", "named", "one_dtype", "opaque"]

Row = Callable[[Graph, Node], "Intent | None"]

# Kinds whose element i of the output needs nothing of an input but its element i, so that they may work in place.
_IN_PLACE = frozenset({"elementwise", "copy", "gated_activation", "scatter", "index_put", "kv_append", "collective"})


def build(kind: str, node: Node, inputs: tuple[Region, ...], *outputs: Region, **attrs: Any) -> Intent:
    """The intent of one operation; its outputs are what the operation produces unless given."""
    outputs = outputs or ((node.out,) if node.writes else ())
    return Intent(kind, inputs, outputs, attributes(kind, **attrs), (node.index,), node.op.scope, node.op.site)


def aliases_safely(intent: Intent) -> bool:
    """May a kernel write the outputs while it still reads the inputs? An output that overlaps an input must be the
    very same window, and the kind one that works in place. (An opaque operation sees to that itself.)"""
    if intent.kind == "opaque":
        return True
    written = {out.buffer for out in intent.outputs}
    for source in intent.inputs:
        if source.buffer not in written:
            continue
        for out in intent.outputs:
            if overlap(source, out) and not (intent.kind in _IN_PLACE and same(source, out)):
                return False
    return True


def opaque(node: Node) -> Intent:
    """The operation as it stands, for whoever can run any of them: the host."""
    signature = node.op.signature
    places: dict[int, int] = {}

    def renumber(value: Any) -> Any:
        if isinstance(value, Slot):
            return Slot(places.setdefault(value.index, len(places)))
        return tuple(map(renumber, value)) if isinstance(value, tuple) else value

    args = renumber(signature.args)
    kwargs = tuple((name, renumber(value)) for name, value in signature.kwargs)
    outs = signature.outs
    results = tuple(("input", places[s]) if s in places else ("result", outs.index(s)) for s in signature.writes)
    inputs = tuple(node.op.region(slot) for slot in places)
    attrs = {"target": signature.target, "args": args, "kwargs": kwargs, "results": results}
    return build("opaque", node, inputs, *node.writes, **attrs)


def named(names: str, row: Row) -> dict[str, Row]:
    """The same row for several operators."""
    return dict.fromkeys(names.split(), row)


def one_dtype(*regions: Region | None) -> bool:
    return len({r.dtype for r in regions if r is not None}) == 1


def first_result_only(graph: Graph, node: Node) -> bool:
    """Does nobody look at any result but the first?"""
    return all(graph.hidden(r.buffer) and r.buffer not in graph.readers for r in node.outs[1:])
