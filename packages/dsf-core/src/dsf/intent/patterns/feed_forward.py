"""Rows of gated feed-forward blocks."""

from __future__ import annotations

from dsf.intent.ir import Intent
from dsf.intent.operators import build
from dsf.intent.patterns.match import Match, require
from dsf.intent.views import same

__all__ = ["ACTIVATIONS", "gated_activation"]

ACTIVATIONS = {"silu.default": "silu", "gelu.default": "gelu", "relu.default": "relu", "sigmoid.default": "sigmoid"}


def gated_activation(m: Match) -> Intent:
    """act(gate) * up: SwiGLU, GeGLU and their kin [Shazeer 2020, arXiv 2002.05202]."""
    activated, up = m.operands(m.anchor, *ACTIVATIONS)
    node = m.made_by(activated, *ACTIVATIONS)
    gate, act = node.args[0], ACTIVATIONS[node.name]
    if act == "gelu" and node.arg(1, "approximate", "none") == "tanh":
        act = "gelu_tanh"
    require(gate.shape == up.shape == m.anchor.out.shape and not same(gate, up))
    made = m.graph.producer(gate)  # x * sigmoid(1.702 * x) is one expression, no gate
    require(made is None or not any(same(region, up) for region in made.reads))
    require(gate.dtype == up.dtype == m.anchor.out.dtype and gate.dtype.is_floating_point)
    return build("gated_activation", m.anchor, (gate, up), act=act)
