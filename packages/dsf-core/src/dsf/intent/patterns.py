"""Rows that recognise several operations as one intent, by structure alone. A new family is a new row of `PATTERNS`.

A row has a name, the operations that may end it, and a matcher that walks back from such an anchor. A matcher reads
like the model's source, backwards; wherever it finds something else it raises `Miss`. Where the source leaves a choice
(the order of factors, an optional cast) it says `pick`, and is run again with the next choice when it misses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

import torch
from attrs import evolve, frozen

from dsf.intent.graph import Graph, Node
from dsf.intent.ir import Intent
from dsf.intent.operators import attention, attention_operands, build
from dsf.intent.tape import Region
from dsf.intent.views import expand, is_contiguous, narrow, permute, same, transposed, view

__all__ = ["PATTERNS", "Match", "Miss", "Pattern", "match"]

T = TypeVar("T")


class Miss(Exception):
    """The structure in front of the matcher is not the one its row describes."""


class Match:
    """What a row has claimed so far, from its anchor back; and the choices it made on the way."""

    def __init__(self, graph: Graph, anchor: Node, claimed: set[int], script: list[int]) -> None:
        self.graph, self.anchor = graph, anchor
        self.nodes = [anchor]
        self._claimed, self._script = claimed, script
        self._choices: list[tuple[int, int]] = []

    def pick(self, options: Sequence[T]) -> T:
        """One of *options*; the next one after each miss."""
        at = len(self._choices)
        choice = self._script[at] if at < len(self._script) else 0
        self._choices.append((choice, len(options)))
        return options[choice]

    def next_script(self) -> list[int] | None:
        """The choices to try after this miss; None when all have been tried."""
        choices = self._choices[:]
        while choices and choices[-1][0] + 1 == choices[-1][1]:
            choices.pop()
        return [*(c for c, _ in choices[:-1]), choices[-1][0] + 1] if choices else None

    def made_by(self, region: Region, *names: str) -> Node:
        """The operation that makes *region*, one of *names*; it becomes part of the match."""
        node = self.graph.producer(region)
        if node is None or node.name not in names or node.index in self._claimed:
            raise Miss
        if node not in self.nodes:
            self.nodes.append(node)
        return node

    def operands(self, node: Node) -> tuple[Region, Region]:
        """The two tensors of a commutative operation, in either order. An `add` with a factor is none."""
        a, b = node.args[:2]
        require(isinstance(a, Region) and isinstance(b, Region))
        require(node.kwargs.get("alpha", 1) == 1)
        return self.pick(((a, b), (b, a)))

    def through_cast(self, region: Region) -> Region:
        """What *region* was before a cast, or *region* itself."""
        node = self.graph.producer(region)
        if node is None or node.name != "_to_copy.default" or node.args[0].shape != region.shape:
            return region
        if self.pick((True, False)):
            return cast_source(self.made_by(region, node.name))
        return region

    def finish(self, intent: Intent) -> Intent:
        """The intent with all it covers, if no value it hides is seen elsewhere and no input changes meanwhile."""
        inside = {node.index for node in self.nodes}
        for node in self.nodes:
            if node is self.anchor:
                continue
            for region in node.writes:
                require(self.graph.hidden(region.buffer))
                require(inside.issuperset(self.graph.readers.get(region.buffer, ())))
            for region in node.reads:
                require(not self.graph.written_between(region.buffer, node.index, self.anchor.index))
        return evolve(intent, ops=tuple(sorted(inside)))


def require(condition: object) -> None:
    if not condition:
        raise Miss


def _miss() -> NoReturn:
    raise Miss


def cast_source(node: Node) -> Region:
    """The operand of a cast."""
    source: Region = node.args[0]
    return source


Matcher = Callable[[Match], Intent]


@frozen
class Pattern:
    """A row: *anchors* are the operations that may end the structure, *matcher* walks back from one of them."""

    name: str
    anchors: tuple[str, ...]
    matcher: Matcher


def match(pattern: Pattern, graph: Graph, anchor: Node, claimed: set[int]) -> Intent | None:
    """The intent that *pattern* sees ending in *anchor*, without the operations already *claimed*."""
    script: list[int] | None = []
    while script is not None:
        attempt = Match(graph, anchor, claimed, script)
        try:
            return attempt.finish(pattern.matcher(attempt))
        except Miss:
            script = attempt.next_script()
    return None


# Normalisation


def _vector(region: Region, size: int) -> Region:
    """A weight over the last dimension as a vector: it must not vary along any other."""
    require(region.numel == size and region.shape[-1:] == (size,))
    return view(region, (size,), region.stride[-1:])


def _normalised(m: Match, region: Region) -> tuple[Region, torch.dtype, float]:
    """x * rsqrt(mean(x ** 2, -1, keepdim) + eps) with an optional cast of x: x before it, the dtype inside, eps."""
    x, inverse = m.operands(m.made_by(region, "mul.Tensor"))
    shifted = m.made_by(m.made_by(inverse, "rsqrt.default").args[0], "add.Tensor", "add.Scalar")
    total, eps = shifted.args[:2]
    require(isinstance(eps, float) and shifted.arg(2, "alpha", 1) == 1)
    mean = m.made_by(total, "mean.dim")
    require(mean.args[0].shape == x.shape and mean.arg(2, "keepdim", False) and mean.kwargs.get("dtype") is None)
    require(mean.args[1] in ((-1,), (len(x.shape) - 1,)))
    square = m.made_by(mean.args[0], "pow.Tensor_Scalar", "mul.Tensor")
    require(same(square.args[0], x))
    require(square.args[1] == 2 if square.name.startswith("pow") else square.args[0] == square.args[1])
    return m.through_cast(x), x.dtype, eps


def rms_norm(m: Match) -> Intent:
    """weight * cast(normalised): Llama, Qwen, Mistral [transformers LlamaRMSNorm]."""
    out = m.anchor.out
    weight, scaled = m.operands(m.anchor)
    require(weight.dtype == scaled.dtype == out.dtype)
    x, compute, eps = _normalised(m, m.through_cast(scaled))
    require(x.dtype == out.dtype and x.shape == out.shape)
    inputs = x, _vector(weight, x.shape[-1])
    return build("rms_norm", m.anchor, inputs, compute=compute, eps=eps, weight_after_cast=True)


def rms_norm_weight_inside(m: Match) -> Intent:
    """cast(normalised * weight), the weight in the inner dtype: Gemma [transformers GemmaRMSNorm]."""
    product = m.made_by(cast_source(m.anchor), "mul.Tensor")
    weight, scaled = m.operands(product)
    x, compute, eps = _normalised(m, scaled)
    require(x.dtype == m.anchor.out.dtype and x.shape == m.anchor.out.shape)
    inputs = x, _vector(weight, x.shape[-1])
    return build("rms_norm", m.anchor, inputs, compute=compute, eps=eps, weight_after_cast=False)


# Positions


def rotary(m: Match) -> Intent:
    """x * cos + cat(-x2, x1) * sin with the halves x1, x2 of the last dimension: Llama [apply_rotary_pos_emb]."""
    plain, turned = m.operands(m.anchor)
    x, cos = m.operands(m.made_by(plain, "mul.Tensor"))
    rotated, sin = m.operands(m.made_by(turned, "mul.Tensor"))
    halves = m.made_by(rotated, "cat.default")
    require(len(halves.args[0]) == 2)
    negative, first = halves.args[0]
    second = m.made_by(negative, "neg.default").args[0]
    require(x.shape == rotated.shape == m.anchor.out.shape)
    half = first.shape[-1]
    require(same(first, narrow(x, -1, 0, half)) and same(second, narrow(x, -1, half, half)))
    require(x.dtype == cos.dtype == sin.dtype == m.anchor.out.dtype)
    return build("rotary", m.anchor, (x, expand(cos, x.shape), expand(sin, x.shape)), style="half")


# Feed-forward


_ACTIVATIONS = {"silu.default": "silu", "gelu.default": "gelu", "relu.default": "relu", "sigmoid.default": "sigmoid"}


def gated_activation(m: Match) -> Intent:
    """act(gate) * up: SwiGLU, GeGLU and their kin [Shazeer 2020, arXiv 2002.05202]."""
    activated, up = m.operands(m.anchor)
    node = m.made_by(activated, *_ACTIVATIONS)
    gate, act = node.args[0], _ACTIVATIONS[node.name]
    if act == "gelu" and node.arg(1, "approximate", "none") == "tanh":
        act = "gelu_tanh"
    require(gate.shape == up.shape == m.anchor.out.shape and not same(gate, up))
    require(gate.dtype == up.dtype == m.anchor.out.dtype and gate.dtype.is_floating_point)
    return build("gated_activation", m.anchor, (gate, up), act=act)


# Attention


def _unrepeated(m: Match, region: Region) -> Region:
    """Keys or values before `repeat_kv` copied every head n times [B, Hkv, n, KV, D]; or as they are."""
    if not m.pick((True, False)):
        return region
    node = m.graph.nodes[m.graph.writers[region.buffer][0]] if m.graph.hidden(region.buffer) else _miss()
    require(node.name == "clone.default" and is_contiguous(node.out) and is_contiguous(region))
    source: Region = node.args[0]
    require(len(source.shape) == 5 and source.stride[2] == 0 and source.shape[2] > 1)
    require(region.offset == node.out.offset)
    batch, heads, repeats, length, width = source.shape
    require(region.shape == (batch, heads * repeats, length, width))
    m.made_by(node.out, "clone.default")
    return view(source, (batch, heads, length, width), (*source.stride[:2], *source.stride[3:]))


def sdpa(m: Match) -> Intent:
    """scaled_dot_product_attention, with grouped queries whether by `enable_gqa` or by repeated keys and values."""
    return _attention(m, m.anchor)


def _attention(m: Match, node: Node) -> Intent:
    operands = attention_operands(node)
    if operands is None:
        raise Miss
    q, k, v, mask = operands
    keys, values = _unrepeated(m, k), _unrepeated(m, v)
    require(keys.shape[:3] == values.shape[:3])
    return attention(node, q, keys, values, mask)


def sdpa_into_rows(m: Match) -> Intent:
    """Attention whose result is only copied with heads and rows exchanged: it writes [B, S, H, D] at once."""
    source: Region = m.anchor.args[0]
    require(m.graph.hidden(source.buffer) and len(source.shape) == 4)
    node = m.graph.nodes[m.graph.writers[source.buffer][0]]
    require(node.name == _SDPA and same(permute(node.out, _ROWS), source))
    m.made_by(node.out, _SDPA)
    intent = _attention(m, node)
    return evolve(intent, outputs=(permute(m.anchor.out, _ROWS),), scope=m.anchor.op.scope, site=m.anchor.op.site)


_SDPA = "scaled_dot_product_attention.default"
_ROWS = (0, 2, 1, 3)  # [B, H, S, D] <-> [B, S, H, D]


def eager_attention(m: Match) -> Intent:
    """softmax(q @ k^T * scale + mask, float32) @ v, step by step [transformers eager_attention_forward]."""
    weights, v = m.anchor.args[:2]
    softmax = m.made_by(m.through_cast(weights), "softmax.int", "_softmax.default")
    scores = softmax.args[0]
    require(len(scores.shape) == 4 and softmax.args[1] in (-1, 3))
    mask = None
    if m.pick((True, False)):
        scores, mask = m.operands(m.made_by(scores, "add.Tensor"))
    scores, scale = m.made_by(scores, "mul.Tensor", "mul.Scalar").args[:2]
    require(isinstance(scale, float))
    product = m.made_by(scores, "matmul.default")
    q, k = product.args[0], transposed(product.args[1])
    require(len(q.shape) == len(k.shape) == len(v.shape) == 4)
    keys, values = _unrepeated(m, k), _unrepeated(m, v)
    require(q.shape[:1] == keys.shape[:1] and keys.shape[:3] == values.shape[:3] and q.shape[1] % keys.shape[1] == 0)
    require(k.shape[1] == v.shape[1] == q.shape[1] and q.dtype == k.dtype == v.dtype == m.anchor.out.dtype)
    inputs = (q, keys, values) if mask is None else (q, keys, values, expand(mask, scores.shape))
    return build("attention", m.anchor, inputs, causal=False, groups=q.shape[1] // keys.shape[1],
                 has_mask=mask is not None, scale=scale)  # fmt: skip


PATTERNS: tuple[Pattern, ...] = (
    Pattern("attention into rows", ("clone.default",), sdpa_into_rows),
    Pattern("attention", (_SDPA,), sdpa),
    Pattern("attention, step by step", ("matmul.default",), eager_attention),
    Pattern("rms norm, weight in float32", ("_to_copy.default",), rms_norm_weight_inside),
    Pattern("rms norm", ("mul.Tensor",), rms_norm),
    Pattern("rotary, halves", ("add.Tensor",), rotary),
    Pattern("gated activation", ("mul.Tensor",), gated_activation),
)
"""In the order they are tried: an earlier row takes the operations it covers from the later ones."""
