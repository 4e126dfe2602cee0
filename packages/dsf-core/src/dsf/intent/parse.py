"""From a tape to intents: patterns first, then one intent per operation, then what stands next to each other joined."""

from __future__ import annotations

from dsf.intent import chains, fuse, groups
from dsf.intent.chains import MAX_INPUTS, MAX_NODES
from dsf.intent.fuse import Serves
from dsf.intent.graph import Graph
from dsf.intent.ir import Intent
from dsf.intent.operators import single
from dsf.intent.patterns import PATTERNS, Pattern, match
from dsf.intent.tape import Tape

__all__ = ["MAX_INPUTS", "MAX_NODES", "parse"]


def anybody(intent: Intent) -> bool:
    """Every intent is served: what the step wants, whoever may do it."""
    return True


def parse(tape: Tape, patterns: tuple[Pattern, ...] = PATTERNS, serves: Serves = anybody) -> tuple[Intent, ...]:
    """What the operations of *tape* want, in an order that keeps every dependence (that of their last operations).

    Looks at structure only, never at addresses or values, so that equal segments have equal intents. A value that
    something outside a match can see stays visible: its buffer is live, or another operation reads it. What takes
    several operations at once is left in pieces where nobody *serves* the whole.
    """
    graph = Graph(tape)
    found = _matches(graph, patterns, serves)
    covered = {index for intent in found for index in intent.ops}
    found += [single(graph, node) for node in graph.nodes if node.index not in covered]
    found.sort(key=lambda intent: intent.ops[-1])
    return tuple(groups.mark(fuse.fuse(graph, chains.join(graph, found), serves)))


def _matches(graph: Graph, patterns: tuple[Pattern, ...], serves: Serves) -> list[Intent]:
    anchors: dict[str, list[int]] = {}
    for node in graph.nodes:
        anchors.setdefault(node.name, []).append(node.index)
    found: list[Intent] = []
    claimed: set[int] = set()
    for pattern in patterns:
        if not all(name in anchors for name in pattern.needs):
            continue
        for index in (i for name in pattern.anchors for i in anchors.get(name, ())):
            node = graph.nodes[index]
            if index in claimed or node.inplace or not pattern.may_end_in(graph, node):
                continue
            intent = match(pattern, graph, node, claimed)
            if intent is not None and (len(intent.ops) == 1 or serves(intent)):
                found.append(intent)
                claimed.update(intent.ops)
    return found
