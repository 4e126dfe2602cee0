"""Rows that recognise several operations as one intent, by structure alone. A new family is a new row of `PATTERNS`.

A row has a name, the operations that may end it, and a matcher that walks back from such an anchor.
"""

from __future__ import annotations

from dsf.intent.patterns import attention, feed_forward, norms, positions, quantised
from dsf.intent.patterns.match import Match, Miss, Pattern, match

__all__ = ["PATTERNS", "Match", "Miss", "Pattern", "match"]

_PRODUCTS = ("matmul.default", "bmm.default")

PATTERNS: tuple[Pattern, ...] = (
    Pattern("paged attention", (attention.SDPA,), attention.paged),
    Pattern("attention into rows", ("clone.default",), attention.sdpa_into_rows),
    Pattern("attention", (attention.SDPA,), attention.sdpa),
    Pattern("latent attention", _PRODUCTS, attention.latent),
    Pattern("attention, step by step", _PRODUCTS, attention.eager),
    Pattern("rms norm, weight in float32", ("_to_copy.default",), norms.rms_norm_weight_inside),
    Pattern("rms norm", ("mul.Tensor",), norms.rms_norm),
    Pattern("rms norm without weight", ("_to_copy.default", "mul.Tensor"), norms.rms_norm_without_weight),
    Pattern("rotary in float32", ("_to_copy.default",), positions.rotary_wide),
    Pattern("rotary", ("add.Tensor",), positions.rotary),
    Pattern("rotary, by halves", ("cat.default",), positions.rotary_by_halves),
    Pattern("gated activation", ("mul.Tensor",), feed_forward.gated_activation),
    Pattern("scaled product of bytes", ("_to_copy.default", "add.Tensor", "mul.Tensor"), quantised.scaled_linear),
    Pattern("linear of quantised weights", ("linear.default", "matmul.default", "mm.default"), quantised.quant_linear),
    Pattern("quantised", ("_to_copy.default",), quantised.quantise),
)
"""In the order they are tried: an earlier row takes the operations it covers from the later ones."""
