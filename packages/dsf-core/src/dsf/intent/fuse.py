"""Neighbours that are one intent: a product with what follows it, a sum with its norm, a gate written out.

Every rule asks whether somebody serves the whole; where nobody does, the pieces stay. The rules change no number: where
two intents become one, the value between them is rounded as it was, or not at all where it was rounded to 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from attrs import evolve

from dsf.intent.expression import PRIMITIVES, Expr, nodes
from dsf.intent.graph import Graph
from dsf.intent.ir import Intent, attributes
from dsf.intent.operators import aliases_safely
from dsf.intent.tape import Region
from dsf.intent.views import reshape, same

__all__ = ["Serves", "activation", "fuse"]

Serves = Callable[[Intent], bool]


def fuse(graph: Graph, intents: list[Intent], serves: Serves) -> list[Intent]:
    """*intents* with what belongs together as one, as far as somebody serves it."""
    work = _Work(graph, intents, serves)
    for at, intent in enumerate(intents):
        if intent.kind == "elementwise":
            work.put(at, _gated(_plain(intent), serves))
    for at, intent in enumerate(intents):
        if intent.kind in _NORMS:
            _norm_of_sum(work, at)
    for at, left in enumerate(work.intents):
        if left is not None and left.kind == "elementwise":
            _epilogue(work, at)
    return [intent for intent in work.intents if intent is not None]


class _Work:
    """The intents by position, None where one went into another, and who covers which operation."""

    def __init__(self, graph: Graph, intents: list[Intent], serves: Serves) -> None:
        self.graph, self.serves = graph, serves
        self.intents: list[Intent | None] = [*intents]
        self.owner = {index: at for at, intent in enumerate(intents) for index in intent.ops}

    def put(self, at: int, intent: Intent, *absorbed: int) -> None:
        """*intent* in the place *at*; what it absorbed leaves its own."""
        self.intents[at] = intent
        for other in absorbed:
            self.intents[other] = None
            self.owner.update(dict.fromkeys(intent.ops, at))

    def maker(self, region: Region) -> int | None:
        """The position of the intent that wrote the region's buffer, if that was written once, here."""
        writers = self.graph.writers.get(region.buffer, ())
        return self.owner.get(writers[0]) if len(writers) == 1 and region.buffer in self.graph.fresh else None

    def untouched(self, source: Intent, later: Intent) -> bool:
        """Do the inputs of *source* still hold the same when *later* runs?"""
        written, first, last = self.graph.written_between, source.ops[-1], later.ops[-1]
        return not any(written(r.buffer, first, last) for r in source.inputs)


def _as(region: Region, other: Region) -> Region | None:
    """*region* under the shape of *other*, if that is the same elements."""
    return region if region.shape == other.shape else reshape(region, other.shape)


# Activations


def _samples() -> torch.Tensor:
    return torch.cat((torch.linspace(-6, 6, 97, dtype=torch.float64), torch.tensor([-40.0, 30.0], dtype=torch.float64)))


_SMOOTH = frozenset({"mul", "add", "sub", "div", "pow", "tanh", "erf", "sigmoid", "exp", "neg", "reciprocal", "cast",
                     "silu", "gelu", "gelu_tanh"})  # fmt: skip
_NAMED = ("silu", "gelu", "gelu_tanh", "sigmoid", "tanh")
_MOST_NODES = 24
_CLOSE = 1e-6  # constants are written with seven digits


@lru_cache(maxsize=4096)
def activation(expr: Expr) -> str | None:
    """The name of the activation that *expr* is of its only input: relu, silu, gelu, gelu_tanh, sigmoid, tanh.

    However it is written out: it is one if it agrees with it at a hundred points in float64. Only smooth primitives
    take part, so that it cannot agree there and differ elsewhere.
    """
    if expr[0] in _NAMED and expr[2][0] == "in":
        return str(expr[0])
    if expr[0] == "max" and expr[2][0] == "in" and expr[3][0] == "const" and expr[3][2] == 0:
        return "relu"
    every = list(nodes(expr))
    leaves = {node for node in every if node[0] == "in"}
    inner = [node for node in every if node[0] not in ("in", "const")]
    if len(leaves) != 1 or len(every) > _MOST_NODES or not _SMOOTH.issuperset(node[0] for node in inner):
        return None
    if len(inner) < 2 or not all(node[1].is_floating_point for node in inner):
        return None
    x = _samples()
    found = _wide_value(expr, x)
    for name in _NAMED:
        if torch.allclose(found, PRIMITIVES[name].function(x), rtol=_CLOSE, atol=_CLOSE):
            return name
    return None


def _wide_value(expr: Expr, x: torch.Tensor) -> torch.Tensor:
    """The expression in float64, without the roundings on the way."""
    if expr[0] == "in":
        return x
    if expr[0] == "const":
        return torch.tensor(float(expr[2]), dtype=torch.float64)
    return PRIMITIVES[expr[0]].function(*(_wide_value(operand, x) for operand in expr[2:])).double()


def _only_input(expr: Expr) -> int | None:
    """The number of the only input that *expr* reads."""
    leaves = {node[1] for node in nodes(expr) if node[0] == "in"}
    return leaves.pop() if len(leaves) == 1 else None


def _plain(intent: Intent) -> Intent:
    """An activation that is written out, by its name."""
    expr, dtype = intent.attr("expr"), intent.outputs[0].dtype
    if len(intent.inputs) != 1 or expr[0] not in ("mul", "div", "cast") or intent.inputs[0].dtype != dtype:
        return intent
    name = activation(expr)
    return intent if name in (None, "relu") else evolve(intent, attrs=attributes(expr=(name, dtype, ("in", 0))))


_GATES = ("silu", "gelu", "gelu_tanh", "relu", "sigmoid")


def _gated(intent: Intent, serves: Serves) -> Intent:
    """act(gate) * up as a gated activation, however the activation is written."""
    expr, out = intent.attr("expr"), intent.outputs[0]
    if expr[0] != "mul" or len(intent.inputs) != 2 or not out.dtype.is_floating_point:
        return intent
    for gate, up in (expr[2:], expr[:1:-1]):
        number = _only_input(gate) if up[0] == "in" else None
        if number in (None, up[1]) or any(r.dtype != out.dtype or _broadcast(r) for r in intent.inputs):
            continue
        if (name := activation(gate)) in _GATES:
            inputs = intent.inputs[number], intent.inputs[up[1]]
            found = evolve(intent, kind="gated_activation", inputs=inputs, attrs=attributes(act=name))
            if aliases_safely(found) and serves(found):
                return found
    return intent


def _broadcast(region: Region) -> bool:
    return any(n > 1 and not stride for n, stride in zip(region.shape, region.stride, strict=True))


# Norms of sums


_NORMS = {"rms_norm": "add_rms_norm", "layer_norm": "add_layer_norm"}


def _norm_of_sum(work: _Work, at: int) -> None:
    """A norm takes in the addition that made its input; the sum stays visible, since the next residual reads it."""
    norm = work.intents[at]
    assert norm is not None
    made = work.maker(norm.inputs[0])
    add = work.intents[made] if made is not None else None
    if made is None or add is None or not _is_plain_sum(add):
        return
    total = _as(add.outputs[0], norm.inputs[0])
    if total is None or not same(total, norm.inputs[0]) or not work.untouched(add, norm):
        return
    readers = work.graph.readers.get(total.buffer, ())
    if any(index <= norm.ops[-1] and index not in norm.ops for index in readers):  # somebody reads it before
        return
    terms = [_as(r, total) for r in add.inputs]
    if None in terms:
        return
    inputs = tuple(r for r in (*terms, *norm.inputs[1:]) if r is not None)
    ops = tuple(sorted((*add.ops, *norm.ops)))
    whole = evolve(norm, kind=_NORMS[norm.kind], inputs=inputs, outputs=(norm.outputs[0], total), ops=ops)
    if aliases_safely(whole) and work.serves(whole):
        work.put(at, whole, made)


def _is_plain_sum(intent: Intent) -> bool:
    """x + residual of one dtype."""
    if intent.kind != "elementwise":
        return False
    dtype = intent.outputs[0].dtype
    wanted = ("add", dtype, ("in", 0), ("in", 1))
    return intent.attr("expr") == wanted and all(r.dtype == dtype for r in intent.inputs) and dtype.is_floating_point


# Epilogues


def _epilogue(work: _Work, at: int) -> None:
    """An activation or a residual goes into the linear whose result only it reads: of two, the one made last."""
    follower = work.intents[at]
    assert follower is not None
    makers = [(work.maker(r), number) for number, r in enumerate(follower.inputs)]
    for made, number in sorted((m, n) for m, n in makers if m is not None)[::-1]:
        source = work.intents[made]
        if source is None or source.kind != "linear" or source.attr("has_residual"):
            continue
        whole = _finished(work.graph, source, follower, number)
        if whole is not None and work.untouched(source, follower) and work.serves(whole):
            work.put(at, whole, made)
            return


def _finished(graph: Graph, linear: Intent, follower: Intent, number: int) -> Intent | None:
    """*linear* with *follower*, which reads its result as input *number*; None where that is more or something else."""
    result, out = linear.outputs[0], follower.outputs[0]
    seen = _as(follower.inputs[number], result)
    if not graph.hidden(result.buffer) or seen is None or not same(seen, result) or out.dtype != result.dtype:
        return None
    if not set(follower.ops).issuperset(graph.readers[result.buffer]) or not out.dtype.is_floating_point:
        return None
    if any(r.buffer == result.buffer for n, r in enumerate(follower.inputs) if n != number):
        return None
    name, other = _steps(follower, number)
    if (name is None and other is None) or (name is not None and linear.attr("activation") is not None):
        return None
    y = _as(out, result)
    residual = None if other is None else _as(follower.inputs[other], result)
    if y is None or (other is not None and (residual is None or residual.dtype != out.dtype)):
        return None
    attrs = dict(linear.attrs) | {"activation": name or linear.attr("activation"), "has_residual": other is not None}
    inputs = (*linear.inputs, *((residual,) if residual is not None else ()))
    ops = tuple(sorted((*linear.ops, *follower.ops)))
    whole = evolve(follower, kind="linear", inputs=inputs, outputs=(y,), attrs=attributes("linear", **attrs), ops=ops)
    return whole if aliases_safely(whole) else None


def _steps(follower: Intent, number: int) -> tuple[str | None, int | None]:
    """What the expression does to input *number*: the activation, then the input that is added."""
    expr, dtype = follower.attr("expr"), follower.outputs[0].dtype
    other = None
    if expr[:2] == ("add", dtype) and len(follower.inputs) == 2:
        for left, right in (expr[2:], expr[:1:-1]):
            if right == ("in", 1 - number):
                expr, other = left, 1 - number
                break
    if expr == ("in", number):
        return None, other
    name = (
        activation(expr) if _only_input(expr) == number and (other is not None or len(follower.inputs) == 1) else None
    )
    return (name, other) if name else (None, None)
