"""From a tape to intents: patterns first, then one intent per operation, then pointwise chains joined."""

from __future__ import annotations

import torch
from attrs import evolve

from dsf.intent.expression import Expr, const, evaluate, nodes, substitute
from dsf.intent.graph import Graph
from dsf.intent.ir import Intent, attributes
from dsf.intent.operators import aliases_safely, single
from dsf.intent.patterns import PATTERNS, Pattern, match
from dsf.intent.tape import Region, Tape
from dsf.intent.views import same

__all__ = ["MAX_INPUTS", "MAX_NODES", "parse"]

MAX_INPUTS, MAX_NODES = 8, 32
"""The largest expression that chains are joined to: beyond it a kernel would run out of registers and buffers."""


def parse(tape: Tape, patterns: tuple[Pattern, ...] = PATTERNS) -> tuple[Intent, ...]:
    """What the operations of *tape* want, in an order that keeps every dependence (that of their last operations).

    Looks at structure only, never at addresses or values, so that equal segments have equal intents. A value that
    something outside a match can see stays visible: its buffer is live, or another operation reads it.
    """
    graph = Graph(tape)
    found = _matches(graph, patterns)
    covered = {index for intent in found for index in intent.ops}
    found += [single(graph, node) for node in graph.nodes if node.index not in covered]
    found.sort(key=lambda intent: intent.ops[-1])
    return tuple(_mark_gated_ffn(_join_chains(graph, found)))


def _matches(graph: Graph, patterns: tuple[Pattern, ...]) -> list[Intent]:
    anchors: dict[str, list[int]] = {}
    for node in graph.nodes:
        anchors.setdefault(node.name, []).append(node.index)
    found: list[Intent] = []
    claimed: set[int] = set()
    for pattern in patterns:
        for index in (i for name in pattern.anchors for i in anchors.get(name, ())):
            if index in claimed or graph.nodes[index].inplace:
                continue
            if intent := match(pattern, graph, graph.nodes[index], claimed):
                found.append(intent)
                claimed.update(intent.ops)
    return found


# Pointwise chains


def _join_chains(graph: Graph, intents: list[Intent]) -> list[Intent]:
    """Every pointwise intent takes in the pointwise intents and fills whose only reader it is."""
    made: dict[int, Intent] = {}
    joined: dict[int, Intent] = {}
    for intent in intents:
        if intent.kind == "elementwise":
            intent = _absorb(graph, intent, made, joined)
        joined[intent.ops[-1]] = intent
        for region in intent.outputs:
            made[region.buffer] = intent
    return list(joined.values())


def _absorb(graph: Graph, intent: Intent, made: dict[int, Intent], joined: dict[int, Intent]) -> Intent:
    """*intent* with the producers of its inputs inside, as far as that is safe; they leave *joined*."""
    position = 0
    while position < len(intent.inputs):
        source = made.get(intent.inputs[position].buffer)
        merged = _merge(graph, intent, source, position) if source else None
        if source is None or merged is None:
            position += 1
            continue
        del joined[source.ops[-1]]
        intent, position = merged, 0
    return intent


def _merge(graph: Graph, intent: Intent, source: Intent, position: int) -> Intent | None:
    """*intent* computing its input *position* itself, as *source* does; None where that would change a value."""
    region = intent.inputs[position]
    if not graph.hidden(region.buffer) or len(graph.readers[region.buffer]) != 1:
        return None
    leaf = _inner(source, region)
    if leaf is None:
        return None
    if any(graph.written_between(r.buffer, source.ops[-1], intent.ops[-1]) for r in source.inputs):
        return None
    inputs = tuple(dict.fromkeys((*intent.inputs[:position], *source.inputs, *intent.inputs[position + 1 :])))
    inner = substitute(leaf, [("in", inputs.index(r)) for r in source.inputs])
    leaves = [inner if i == position else ("in", inputs.index(r)) for i, r in enumerate(intent.inputs)]
    expr = substitute(intent.attr("expr"), leaves)
    if len(inputs) > MAX_INPUTS or sum(1 for _ in nodes(expr)) > MAX_NODES:
        return None
    ops = tuple(sorted((*source.ops, *intent.ops)))
    if not inputs:
        return evolve(intent, kind="fill", inputs=(), attrs=attributes(value=evaluate(expr, ()).item()), ops=ops)
    merged = evolve(intent, inputs=inputs, attrs=attributes(expr=expr), ops=ops)
    return merged if aliases_safely(merged) else None


def _inner(source: Intent, region: Region) -> Expr | None:
    """The expression of *region* by its producer: a pointwise one of the same window, or a fill (the same anywhere)."""
    if source.kind == "elementwise" and same(source.outputs[0], region):
        expr: Expr = source.attr("expr")
        return expr
    if source.kind == "fill":
        stored = torch.tensor(source.attr("value"), dtype=region.dtype)  # rounded as the buffer would have it
        return const(region.dtype, stored.item())
    return None


# Groups


def _mark_gated_ffn(intents: list[Intent]) -> list[Intent]:
    """Marks the linears around a gated activation as one feed-forward block: gate, up (or both in one), down."""
    makers = {r.buffer: i for i, intent in enumerate(intents) if intent.kind == "linear" for r in intent.outputs}
    takers = {intent.inputs[0].buffer: i for i, intent in enumerate(intents) if intent.kind == "linear"}
    for at, intent in enumerate(intents):
        if intent.kind != "gated_activation":
            continue
        gate, up = (makers.get(r.buffer) for r in intent.inputs)
        down = takers.get(intent.outputs[0].buffer)
        if gate is None or up is None or down is None or not same(intents[gate].inputs[0], intents[up].inputs[0]):
            continue
        roles = {gate: "gate", up: "up"} if gate != up else {gate: "gate_up"}
        for i, role in (*roles.items(), (at, "activation"), (down, "down")):
            intents[i] = intents[i].in_group("gated_ffn", intent.ops[-1], role)
    return intents
