"""What follows wants: for every operand the order in which its intent reads it, and what is known about its life.

Choosing formats reads this. Nothing here is a decision: it says how a matrix is contracted, that a weight comes back in
every step, that a cache grows, and who takes a result next.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from dsf.intent.ir import KINDS, Intent
from dsf.intent.tape import Buffer

__all__ = ["WANTS", "Hints", "OperandHint", "hints"]

WANTS: dict[str, str] = {
    "matrix": "an operand of a product: `contracted` is the axis that it is summed over",
    "rows": "whole rows along the last axis, or along the axis that is reduced",
    "vector": "one row for all: a bias, a scale, the weight of a norm",
    "numbers": "element by element, in any order",
    "places": "whole numbers that say where to read or write",
    "slices": "pieces at places that other operands name",
}
"""The orders in which an operand is read."""


@frozen
class OperandHint:
    """How an intent reads one operand, `wants` of `WANTS`. *constant*: a weight, the same in every step. *grows*: keys
    and values of the steps before, to which every step adds."""

    wants: str
    contracted: int | None = None
    constant: bool = False
    grows: bool = False


@frozen
class Hints:
    """Of one intent: a hint for each input, and for each output who reads it next, as (position of the intent, number
    of its input)."""

    inputs: tuple[OperandHint, ...]
    readers: tuple[tuple[tuple[int, int], ...], ...]


def hints(intents: Sequence[Intent], buffers: Sequence[Buffer]) -> tuple[Hints, ...]:
    """The hints of *intents*, in their order."""
    growing = _growing(intents, buffers)
    waiting: dict[int, list[tuple[int, int]]] = {}
    found: list[Hints] = []
    for at in range(len(intents) - 1, -1, -1):
        intent = intents[at]
        readers = tuple(tuple(sorted(waiting.get(r.buffer, ()))) for r in intent.outputs)
        for region in intent.outputs:  # what was written before this has other readers
            waiting.pop(region.buffer, None)
        for number, region in enumerate(intent.inputs):
            waiting.setdefault(region.buffer, []).append((at, number))
        found.append(Hints(_inputs(intent, buffers, growing), readers))
    return tuple(found[::-1])


def _inputs(intent: Intent, buffers: Sequence[Buffer], growing: set[int]) -> tuple[OperandHint, ...]:
    names = _names(intent)
    made = []
    for name, region in zip(names, intent.inputs, strict=True):
        wants, contracted = _wanted(intent, name)
        buffer = buffers[region.buffer]
        axis = None if contracted is None else contracted % len(region.shape)
        made.append(OperandHint(wants, axis, buffer.constant, region.buffer in growing))
    return tuple(made)


def _names(intent: Intent) -> list[str]:
    """The operand's name in the kind's row for each input; a starred one counts for all that there are."""
    names: list[str] = []
    for name in KINDS[intent.kind].inputs:
        if name.endswith("*"):
            others = len(KINDS[intent.kind].inputs) - 1 - len(names)
            names += [name[:-1]] * (len(intent.inputs) - len(names) - others)
        elif not name.endswith("?") or intent.attr(f"has_{name[:-1]}"):
            names.append(name.removesuffix("?"))
    return names


def _wanted(intent: Intent, name: str) -> tuple[str, int | None]:
    """How this kind reads the operand *name*, and the axis it sums over."""
    row = _BY_OPERAND.get((intent.kind, name)) or _BY_NAME.get(name)
    if row is None:
        return _BY_KIND.get(intent.kind, "numbers"), None
    wants, axis = row
    if name == "w" and axis is not None and intent.kind in _PRODUCTS and not intent.attr("transposed"):
        axis = -2
    return wants, axis


_BY_KIND: dict[str, str] = {
    **dict.fromkeys(("rms_norm", "add_rms_norm", "layer_norm", "add_layer_norm", "group_norm", "softmax", "reduce",
                     "arg_reduce", "cumsum", "sort", "top_k", "pool", "rotary"), "rows"),
    **dict.fromkeys(("index", "gather"), "slices"),
}  # fmt: skip

_BY_NAME: dict[str, tuple[str, int | None]] = {
    **dict.fromkeys(("weight", "bias", "zero", "w_scale"), ("vector", None)),
    **dict.fromkeys(("ids", "index", "position", "ends", "lengths"), ("places", None)),
}

_PRODUCTS = ("linear", "grouped_linear", "scaled_linear")
_BY_OPERAND: dict[tuple[str, str], tuple[str, int | None]] = {
    **{(kind, "x"): ("matrix", -1) for kind in (*_PRODUCTS, "quant_linear")},
    **{(kind, "w"): ("matrix", -1) for kind in _PRODUCTS},
    ("matmul", "a"): ("matrix", -1), ("matmul", "b"): ("matrix", -2),
    ("convolution", "x"): ("matrix", 1), ("convolution", "w"): ("matrix", 1), ("quant_linear", "w"): ("matrix", -1),
    ("attention", "q"): ("matrix", -1), ("attention", "k"): ("matrix", -1), ("attention", "v"): ("matrix", -2),
    ("attention", "bias"): ("numbers", None),
    ("paged_attention", "q"): ("matrix", -1), ("paged_attention", "k"): ("slices", None),
    ("paged_attention", "v"): ("slices", None), ("paged_attention", "table"): ("places", None),
    ("latent_attention", "q"): ("matrix", -1), ("latent_attention", "rope"): ("matrix", -1),
    ("latent_attention", "latent"): ("matrix", -1), ("latent_attention", "key"): ("matrix", -1),
    ("embedding", "table"): ("slices", None),
    ("kv_append", "cache"): ("slices", None), ("scatter", "x"): ("slices", None), ("index_put", "x"): ("slices", None),
}  # fmt: skip

_KEYS: dict[str, tuple[int, ...]] = {"attention": (1, 2), "paged_attention": (1, 2), "latent_attention": (2, 3)}


def _growing(intents: Sequence[Intent], buffers: Sequence[Buffer]) -> set[int]:
    """The buffers of keys and values that outlive the step: those attention reads, and what was joined into them."""
    makers = {r.buffer: intent for intent in intents for r in intent.outputs}
    found: set[int] = set()
    for intent in intents:
        for number in _KEYS.get(intent.kind, ()):
            buffer = intent.inputs[number].buffer
            maker = makers.get(buffer)
            if maker is not None and maker.kind == "concat":
                older = {r.buffer for r in maker.inputs if buffers[r.buffer].address is not None}
                found |= {buffer, *older} if older else set()
            elif buffers[buffer].address is not None and not buffers[buffer].constant:
                found.add(buffer)
    return found
