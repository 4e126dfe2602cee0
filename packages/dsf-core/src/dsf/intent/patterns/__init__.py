"""Rows that recognise several operations as one intent, by structure alone. A new family is a new row of `PATTERNS`.

A row has a name, the operations that may end it, and a matcher that walks back from such an anchor.
"""

from __future__ import annotations

from dsf.intent.patterns import attention, feed_forward, norms, positions, quantised
from dsf.intent.patterns.match import Match, Matcher, Miss, Pattern, match

__all__ = ["PATTERNS", "Match", "Miss", "Pattern", "match"]

_CAST = "_to_copy.default"


def _row(
    name: str, anchors: str, matcher: Matcher, needs: str = "", after: str = "", operand: int | None = None
) -> Pattern:
    return Pattern(name, tuple(anchors.split()), matcher, tuple(needs.split()), frozenset(after.split()), operand)


_SOFTMAX = f"softmax.int _softmax.default {_CAST}"

PATTERNS: tuple[Pattern, ...] = (
    _row("paged attention", attention.SDPA, attention.paged, "index.Tensor lt.Tensor"),
    _row("attention into rows", "clone.default", attention.sdpa_into_rows, attention.SDPA, attention.SDPA),
    _row("attention", attention.SDPA, attention.sdpa),
    _row("latent attention", "matmul.default", attention.latent, "add.Tensor", _SOFTMAX, 0),
    _row("attention, step by step", "matmul.default bmm.default", attention.eager, "", _SOFTMAX, 0),
    _row("rms norm, weight in float32", _CAST, norms.rms_norm_weight_inside, "rsqrt.default mean.dim", "mul.Tensor"),
    _row("rms norm", "mul.Tensor", norms.rms_norm, "rsqrt.default mean.dim", f"mul.Tensor {_CAST}"),
    _row(
        "rms norm without weight",
        f"{_CAST} mul.Tensor",
        norms.rms_norm_without_weight,
        "rsqrt.default mean.dim",
        "mul.Tensor rsqrt.default",
    ),
    _row("rotary in float32", _CAST, positions.rotary_wide, "neg.default", "add.Tensor"),
    _row("rotary", "add.Tensor", positions.rotary, "neg.default", "mul.Tensor"),
    _row("rotary, by halves", "cat.default", positions.rotary_by_halves, "sub.Tensor add.Tensor", "sub.Tensor"),
    _row("gated activation", "mul.Tensor", feed_forward.gated_activation, "", " ".join(feed_forward.ACTIVATIONS)),
    _row(
        "scaled product of bytes",
        f"{_CAST} add.Tensor mul.Tensor",
        quantised.scaled_linear,
        "_int_mm.default",
        "mul.Tensor add.Tensor",
    ),
    _row(
        "linear of quantised weights",
        "linear.default matmul.default mm.default",
        quantised.quant_linear,
        _CAST,
        "mul.Tensor",
        1,
    ),
    _row("quantised", _CAST, quantised.quantise, "round.default", "clamp.default"),
)
"""In the order they are tried: an earlier row takes the operations it covers from the later ones."""
