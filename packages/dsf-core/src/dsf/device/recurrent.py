"""Recurrent cells: torch asks an accelerator for each as one operation; here it is the operations that it consists of.

Composed above autograd, so that its gradients are theirs; the third result, which torch keeps for a fused backward, is
never read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["CELLS", "gru_cell", "lstm_cell"]

Tensor = torch.Tensor


def _biased(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias


def lstm_cell(
    input_gates: Tensor, hidden_gates: Tensor, cell: Tensor, input_bias: Any = None, hidden_bias: Any = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The next hidden state and cell: i, f, g, o = gates; c' = f c + i g; h' = o tanh(c')."""
    gates = _biased(input_gates, input_bias) + _biased(hidden_gates, hidden_bias)
    entering, forgetting, candidate, leaving = gates.chunk(4, 1)
    after = forgetting.sigmoid() * cell + entering.sigmoid() * candidate.tanh()
    return leaving.sigmoid() * after.tanh(), after, gates


def gru_cell(
    input_gates: Tensor, hidden_gates: Tensor, hidden: Tensor, input_bias: Any = None, hidden_bias: Any = None
) -> tuple[Tensor, Tensor]:
    """The next hidden state: r, z, n = gates, n of the hidden side reset by r; h' = n + z (h - n)."""
    ours, theirs = _biased(input_gates, input_bias), _biased(hidden_gates, hidden_bias)
    (reset, update, new), (reset_, update_, new_) = ours.chunk(3, 1), theirs.chunk(3, 1)
    candidate = (new + (reset + reset_).sigmoid() * new_).tanh()
    return candidate + (update + update_).sigmoid() * (hidden - candidate), ours


CELLS: dict[str, Callable[..., Any]] = {"_thnn_fused_lstm_cell": lstm_cell, "_thnn_fused_gru_cell": gru_cell}
