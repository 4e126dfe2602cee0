"""Random operands that each kind can be tried on: of the shapes and dtypes of a call, with sensible values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dsf.intent.ir import KINDS

__all__ = ["DECLARABLE", "samples"]

_INDEXED = frozenset({"arg_reduce", "collective", "cumsum", "gather", "histogram", "iota", "kv_append", "scatter",
                      "sort", "top_k", "fill", "copy", "nothing"})  # fmt: skip

DECLARABLE = tuple(
    sorted(
        name
        for name, kind in KINDS.items()
        if name not in _INDEXED and not any(operand.endswith("*") for operand in (*kind.inputs, *kind.outputs))
    )
)
"""The kinds that a function can be declared to mean: those with a fixed number of operands that compute with values."""

Shapes = dict[str, torch.Tensor]
Maker = Callable[[torch.Tensor, Shapes, torch.Generator], torch.Tensor]


def samples(kind: str, operands: Shapes, attrs: dict[str, Any]) -> Shapes:
    """CPU tensors like *operands*, whose values are not read; the same for the same call."""
    random = torch.Generator().manual_seed(0)
    made = {}
    for name, like in operands.items():
        maker = _MAKERS.get((kind, name)) or _MAKERS.get(("", name)) or _any
        made[name] = maker(like, operands, random).to(like.dtype)
    return made


def _any(like: torch.Tensor, operands: Shapes, random: torch.Generator) -> torch.Tensor:
    """Normal numbers; whole numbers over the whole range of their dtype, or of a byte where that is wider."""
    if like.is_floating_point():
        return torch.randn(like.shape, generator=random)
    if like.dtype == torch.bool:
        return torch.rand(like.shape, generator=random) < 0.5
    lowest = max(torch.iinfo(like.dtype).min, -128)
    return torch.randint(lowest, lowest + 256, like.shape, generator=random)


def _positive(like: torch.Tensor, operands: Shapes, random: torch.Generator) -> torch.Tensor:
    return torch.rand(like.shape, generator=random) / 8 + 1 / 64


def _nibble(like: torch.Tensor, operands: Shapes, random: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 16, like.shape, generator=random)


def _mask(like: torch.Tensor, operands: Shapes, random: torch.Generator) -> torch.Tensor:
    """Every row sees its first column, since kernels differ in what a row that sees nothing is."""
    mask = _any(like, operands, random)
    if like.dtype == torch.bool:
        mask[..., 0] = True
    return mask


def _rows(of: str) -> Maker:
    """Row numbers of the operand *of*."""
    return lambda like, operands, random: torch.randint(0, operands[of].shape[0], like.shape, generator=random)


def _pages(like: torch.Tensor, operands: Shapes, random: torch.Generator) -> torch.Tensor:
    """Pages in any order, no two sequences sharing one while there are enough."""
    count = operands["k"].shape[0]
    order = torch.randperm(count, generator=random).repeat(-(-like.numel() // count))
    return order[: like.numel()].reshape(like.shape)


def _lengths(like: torch.Tensor, operands: Shapes, random: torch.Generator) -> torch.Tensor:
    """From as many keys as there are queries to full pages."""
    least, most = operands["q"].shape[2], operands["table"].shape[1] * operands["k"].shape[1]
    return torch.randint(min(least, most), most + 1, like.shape, generator=random)


def _ends(like: torch.Tensor, operands: Shapes, random: torch.Generator) -> torch.Tensor:
    """Ascending, the last one at the last row; an expert may have no row."""
    rows = operands["x"].shape[0]
    ends = torch.randint(0, rows + 1, like.shape, generator=random).sort().values
    ends[-1] = rows
    return ends


_MAKERS: dict[tuple[str, str], Maker] = {
    **{("", name): _positive for name in ("scale", "x_scale", "w_scale")},
    ("", "mask"): _mask, ("", "zero"): _nibble,
    ("embedding", "ids"): _rows("table"),
    ("paged_attention", "table"): _pages, ("paged_attention", "lengths"): _lengths,
    ("grouped_linear", "ends"): _ends,
}  # fmt: skip
"""By kind and operand; those of no kind hold for every kind."""
