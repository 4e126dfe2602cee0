"""Pointwise chains: every pointwise intent takes in the pointwise intents and fills whose only reader it is."""

from __future__ import annotations

import torch
from attrs import evolve

from dsf.intent.expression import Expr, const, evaluate, nodes, substitute
from dsf.intent.graph import Graph
from dsf.intent.ir import Intent, attributes
from dsf.intent.operators import aliases_safely
from dsf.intent.tape import Region
from dsf.intent.views import same

__all__ = ["MAX_INPUTS", "MAX_NODES", "join"]

MAX_INPUTS, MAX_NODES = 8, 32
"""The largest expression that chains are joined to: beyond it a kernel would run out of registers and buffers."""


def join(graph: Graph, intents: list[Intent]) -> list[Intent]:
    """*intents* with their chains as one expression each."""
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
