"""Attention in three phases that meet in main memory: what any chip with a matrix and a vector engine can do.

    matrix  scores = q @ k^T                            -> workspace, float32
    vector  weights = softmax(scale * scores + mask)    -> workspace, in q's format
    matrix  y = weights @ v

Grouped queries read each key and value head once per group; at one query the group's heads are the rows of one product.
"""

from __future__ import annotations

import torch
from attrs import frozen

from dsf.hdl import Chip
from dsf.intent.ir import Intent
from dsf.intent.tape import Window
from dsf.isa import Builder, Program
from dsf.isa.program import contiguous, dtype_name
from dsf.kernels.contraction import Batch, EmitProduct, Product, Side, rows_copied_together
from dsf.kernels.kernel import Limit, Rounding
from dsf.kernels.rowwise import masked_softmax
from dsf.kernels.target import Target
from dsf.kernels.vector import Lane, Stream, Tile, reach, vector_phase

__all__ = ["LIMITS", "ROUNDING", "emit_attention", "reference"]


NONE: tuple[int, ...] = ()


@frozen
class Heads:
    """The sizes of an attention: batch, key-value heads, query heads per key-value head, queries, keys, head widths."""

    batch: int
    kv_heads: int
    group: int
    queries: int
    keys: int
    width: int
    value_width: int

    @classmethod
    def of(cls, intent: Intent) -> Heads:
        (b, h, s, d), kv, dv = intent.inputs[0].shape, intent.inputs[1].shape[2], intent.inputs[2].shape[3]
        group = intent.attr("groups")
        return cls(b, h // group, group, s, kv, d, dv)


def emit_attention(emit: EmitProduct, name: str, target: Target, intent: Intent) -> Program:
    """The three phases, with scores and weights in workspaces; *emit* is the chip's matrix product."""
    heads = Heads.of(intent)
    masked = intent.attr("has_mask")
    q, k, v = (r.window for r in intent.inputs[:3])
    y = intent.outputs[0].window
    total = heads.batch * heads.kv_heads * heads.group * heads.queries * heads.keys
    b = target.builder(name)
    names = ("q", "k", "v", "mask")[: 3 + masked]
    for name, region in zip(names, intent.inputs, strict=True):
        b.param(name, "in", reach(region.window))
    b.param("y", "out", reach(y))
    scores = b.param("scores", "workspace", total * 4)
    weights = b.param("weights", "workspace", total * q.dtype.itemsize)
    first, second = products(heads, q, k, v, y, len(names), scores, weights)
    emit(b, target, first)
    emit_softmax(b, target, intent, heads, scores, weights)
    emit(b, target, second)
    return b.build()


def products(
    heads: Heads, q: Window, k: Window, v: Window, y: Window, out: int, scores: int, weights: int
) -> tuple[Product, Product]:
    """q @ k^T and weights @ v over the same batches: sequences, key-value heads, heads of a group."""
    s, kv, g = heads.queries, heads.keys, heads.group
    dtype = dtype_name(q.dtype)
    step = s * kv
    if s == 1 and g > 1:  # the group's heads are the rows
        rows, inner = g, NONE
        q_row, y_row = q.stride[1], y.stride[1]
    else:
        rows, inner = s, (g,)
        q_row, y_row = q.stride[2], y.stride[2]
    q_steps, k_steps = (q.stride[0], q.stride[1] * g, q.stride[1]), (k.stride[0], k.stride[1], 0)
    v_steps, y_steps = (v.stride[0], v.stride[1], 0), (y.stride[0], y.stride[1] * g, y.stride[1])
    inner_steps = (heads.kv_heads * g * step, g * step, step)
    counts = (heads.batch, heads.kv_heads, *inner)
    batch_a = tuple(Batch(*dims) for dims in zip(counts, q_steps, k_steps, inner_steps, strict=False))
    batch_b = tuple(Batch(*dims) for dims in zip(counts, inner_steps, v_steps, y_steps, strict=False))
    first = Product(
        rows, kv, heads.width, Side(0, q_row, q.stride[3], dtype), Side(1, k.stride[3], k.stride[2], dtype),
        Side(scores, kv, 1, "float32"), batch_a,
    )  # fmt: skip
    second = Product(
        rows, heads.value_width, kv, Side(weights, kv, 1, dtype), Side(2, v.stride[2], v.stride[3], dtype),
        Side(out, y_row, y.stride[3], dtype), batch_b,
    )  # fmt: skip
    return first, second


def emit_softmax(b: Builder, target: Target, intent: Intent, heads: Heads, scores: int, weights: int) -> None:
    """The vector phase: one row of the workspaces per query."""
    shape = (heads.batch, heads.kv_heads * heads.group, heads.queries, heads.keys)
    dtype = intent.inputs[0].dtype
    streams = [Stream(scores, "in", Window(shape, contiguous(shape), 0, torch.float32))]
    if intent.attr("has_mask"):
        streams.append(Stream(3, "in", intent.inputs[3].window))
    streams.append(Stream(weights, "out", Window(shape, contiguous(shape), 0, dtype)))
    causal, scale = intent.attr("causal"), intent.attr("scale")

    def compute(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        mask = tiles[1] if len(tiles) > 1 else None
        return (masked_softmax(target, lane, tiles[0], scale, mask, causal, dtype_name(dtype)),)

    vector_phase(b, target, streams, compute, whole_rows=True, rows_apart=causal)


def reference(
    intent: Intent, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, ...]:
    """fp32 scores, softmax in fp32, weights rounded to q's format, fp32 product, one rounding."""
    group = intent.attr("groups")
    k, v = (t.float().repeat_interleave(group, 1) for t in (k, v))
    scores = (q.float() @ k.transpose(-1, -2)) * intent.attr("scale")
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask.float()
    if intent.attr("causal"):
        keep = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~keep, -torch.inf)
    weights = torch.softmax(scores, -1).masked_fill((scores == -torch.inf).all(-1, keepdim=True), 0).to(q.dtype)
    return ((weights.float() @ v).to(intent.outputs[0].dtype),)


FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def _formats(chip: Chip, intent: Intent) -> bool:
    operands = (*intent.inputs[:3], *intent.outputs)
    return all(r.dtype in FLOATS for r in operands) and len({r.dtype for r in operands}) == 1


def _dense(chip: Chip, intent: Intent) -> bool:
    return all(r.stride[-1] == 1 or r.shape[-1] == 1 for r in (*intent.inputs[:3], *intent.outputs))


def row_fits(memory: str, chip: Chip, intent: Intent) -> bool:
    """Scores in float32, weights, a mask as read and as float32, and a column index stay in *memory* for one row."""
    keys = intent.inputs[1].shape[2]
    mask = (intent.inputs[3].dtype.itemsize + 4) if intent.attr("has_mask") else 0
    causal = 5 if intent.attr("causal") else 0
    return keys * (4 + intent.inputs[0].dtype.itemsize + mask + causal) + 4096 <= chip.memories[memory].nbytes


def _filled(chip: Chip, intent: Intent) -> bool:
    return all(r.numel for r in (*intent.inputs, *intent.outputs))


def _together(chip: Chip, intent: Intent) -> bool:
    q, k, v = (r.window for r in intent.inputs[:3])
    return rows_copied_together(chip, *products(Heads.of(intent), q, k, v, intent.outputs[0].window, 3, 4, 5))


def _plain(chip: Chip, intent: Intent) -> bool:
    return intent.attr("softcap") is None and intent.attr("window") is None and not intent.attr("has_bias")


LIMITS = (
    Limit("scores are neither capped nor cut to a window", _plain),
    Limit("q, k, v and y are fp16, bf16 or fp32, all of one format", _formats),
    Limit("heads lie densely along the head dimension", _dense),
    Limit("no dimension is empty", _filled),
    Limit("rows lie no further apart than a copy can skip", _together),
)
ROUNDING = Rounding(2, 64, "exp and sums in fp32 in another order, weights and result rounded once each")
