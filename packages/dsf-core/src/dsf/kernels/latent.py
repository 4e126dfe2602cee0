"""Attention over a latent cache, as DeepSeek's MLA has it with its up-projections absorbed, on any chip.

    matrix  scores = q @ latent^T                               -> workspace, float32
    matrix  more = rope @ key^T                                 -> workspace, float32
    vector  weights = softmax(scale * (scores + more) + mask)   -> workspace, in q's format
    matrix  y = weights @ latent

All heads share the one latent row of a position: at one query they are the rows of one product.
"""

from __future__ import annotations

import torch
from attrs import evolve

from dsf.hdl import Chip
from dsf.intent.ir import Intent
from dsf.intent.tape import Window
from dsf.isa import Program
from dsf.isa.program import contiguous, dtype_name
from dsf.kernels.attention import Heads, products
from dsf.kernels.contraction import FLOATS, EmitProduct, Product, rows_copied_together
from dsf.kernels.kernel import Limit, Rounding
from dsf.kernels.rowwise import masked_softmax
from dsf.kernels.target import Target
from dsf.kernels.vector import Lane, Stream, Tile, reach, vector_phase

__all__ = ["LIMITS", "ROUNDING", "emit_latent", "reference", "row_fits"]

Q, ROPE, LATENT, KEY, MASK = range(5)


def emit_latent(emit: EmitProduct, name: str, target: Target, intent: Intent) -> Program:
    """The four phases; *emit* is the chip's matrix product."""
    b, masked = target.builder(name), intent.attr("has_mask")
    for title, region in zip(("q", "rope", "latent", "key", "mask"), intent.inputs, strict=False):
        b.param(title, "in", reach(region.window))
    out = b.param("y", "out", reach(intent.outputs[0].window))
    dtype, shape = intent.inputs[Q].dtype, _scores(intent)
    total = shape[0] * shape[1] * shape[2] * shape[3]
    scores = b.param("scores", "workspace", total * 4)
    more = b.param("more", "workspace", total * 4)
    weights = b.param("weights", "workspace", total * dtype.itemsize)
    nope, rope, value = _products(intent, out, scores, more, weights)
    emit(b, target, nope)
    emit(b, target, rope)
    dense = contiguous(shape)
    streams = [Stream(n, "in", Window(shape, dense, 0, torch.float32)) for n in (scores, more)]
    streams += [Stream(MASK, "in", intent.inputs[MASK].window)] if masked else []
    streams.append(Stream(weights, "out", Window(shape, dense, 0, dtype)))
    causal, scale = intent.attr("causal"), intent.attr("scale")

    def compute(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        both = lane.op("add", tiles[0], tiles[0], tiles[1])
        return (masked_softmax(target, lane, both, scale, tiles[2] if masked else None, causal, dtype_name(dtype)),)

    vector_phase(b, target, streams, compute, whole_rows=True, rows_apart=causal)
    emit(b, target, value)
    return b.build()


def _scores(intent: Intent) -> tuple[int, int, int, int]:
    batch, heads, queries, _ = intent.inputs[Q].shape
    return batch, heads, queries, intent.inputs[LATENT].shape[1]


def _one_head(window: Window) -> Window:
    """[B, KV, C] as [B, 1, KV, C]."""
    shape, stride = window.shape, window.stride
    return evolve(window, shape=(shape[0], 1, *shape[1:]), stride=(stride[0], 0, *stride[1:]))


def _products(intent: Intent, out: int, scores: int, more: int, weights: int) -> tuple[Product, Product, Product]:
    """q @ latent^T, rope @ key^T and weights @ latent."""
    q, rope, latent, key = (r.window for r in intent.inputs[:4])
    y = intent.outputs[0].window
    batch, heads, queries, keys = _scores(intent)
    own = Heads(batch, 1, heads, queries, keys, q.shape[3], q.shape[3])
    first, last = products(own, q, _one_head(latent), _one_head(latent), y, out, scores, weights)
    narrow = evolve(own, width=rope.shape[3])
    second, _ = products(narrow, rope, _one_head(key), _one_head(latent), y, out, more, weights)
    return (
        evolve(first, b=evolve(first.b, param=LATENT)),
        evolve(second, a=evolve(second.a, param=ROPE), b=evolve(second.b, param=KEY)),
        evolve(last, b=evolve(last.b, param=LATENT)),
    )


def reference(
    intent: Intent, q: torch.Tensor, rope: torch.Tensor, latent: torch.Tensor, key: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """fp32 scores, softmax in fp32, weights rounded to q's format, fp32 product, one rounding."""
    wide = latent.float().unsqueeze(1)
    scores = (q.float() @ wide.mT + rope.float() @ key.float().unsqueeze(1).mT) * intent.attr("scale")
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask.float()
    if intent.attr("causal"):
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    weights = torch.softmax(scores, -1).masked_fill((scores == -torch.inf).all(-1, keepdim=True), 0).to(q.dtype)
    return ((weights.float() @ wide).to(intent.outputs[0].dtype),)


def row_fits(chip: Chip, memory: str, intent: Intent) -> bool:
    """Both scores in float32, weights, a mask as read and as float32, and a column index stay on chip for one row."""
    keys = intent.inputs[LATENT].shape[1]
    mask = (intent.inputs[MASK].dtype.itemsize + 4) if intent.attr("has_mask") else 0
    causal = 5 if intent.attr("causal") else 0
    return keys * (8 + intent.inputs[Q].dtype.itemsize + mask + causal) + 4096 <= chip.memories[memory].nbytes


def _formats(chip: Chip, intent: Intent) -> bool:
    operands = (*intent.inputs[:4], *intent.outputs)
    return all(r.dtype in FLOATS for r in operands) and len({r.dtype for r in operands}) == 1


def _dense(chip: Chip, intent: Intent) -> bool:
    return all(r.stride[-1] == 1 or r.shape[-1] == 1 for r in (*intent.inputs[:4], *intent.outputs))


def _filled(chip: Chip, intent: Intent) -> bool:
    return all(r.numel for r in (*intent.inputs, *intent.outputs))


def _together(chip: Chip, intent: Intent) -> bool:
    return rows_copied_together(chip, *_products(intent, 6, 7, 8, 9))


LIMITS = (
    Limit("q, rope, latent, key and y are fp16, bf16 or fp32, all of one format", _formats),
    Limit("each operand lies densely along its last dimension", _dense),
    Limit("no dimension is empty", _filled),
    Limit("rows lie no further apart than a copy can skip", _together),
)
ROUNDING = Rounding(2, 64, "exp and sums in fp32 in another order, weights and result rounded once each")
