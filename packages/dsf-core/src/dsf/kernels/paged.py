"""Attention over keys and values that lie in pages, on any chip: the pages are brought together, then three phases.

    vector  place of every token in the pages, from the table      -> workspace
    vector  keys, values by these places                           -> workspaces, token after token
    matrix  scores = q @ k^T                                       -> workspace, float32
    vector  weights = softmax(scale * scores), up to each length   -> workspace
    matrix  y = weights @ v

Programs' loops are fixed before any length is known: all the tokens that the table has room for are brought and
multiplied, and what lies behind a sequence's end has weight 0.
"""

from __future__ import annotations

import torch
from attrs import evolve

from dsf.hdl import Chip
from dsf.intent.ir import Intent
from dsf.intent.meaning import meaning
from dsf.intent.tape import Window
from dsf.isa import Builder, Program
from dsf.isa.program import contiguous, dtype_name
from dsf.kernels.attention import Heads, products
from dsf.kernels.contraction import FLOATS, EmitProduct, rows_copied_together
from dsf.kernels.indexed import rows_by_index
from dsf.kernels.kernel import Limit, Rounding
from dsf.kernels.rowwise import masked_softmax
from dsf.kernels.target import Target
from dsf.kernels.vector import Lane, Stream, Tile, reach, vector_phase

__all__ = ["LIMITS", "ROUNDING", "emit_paged", "reference", "row_fits"]

Q, K, V, TABLE, LENGTHS, OUT = range(6)
MOST_TOKENS = 1 << 24  # places are counted in 32 bits, by way of float32 where a chip multiplies only that


def emit_paged(emit: EmitProduct, name: str, target: Target, intent: Intent) -> Program:
    """The phases; *emit* is the chip's matrix product."""
    b, regions = target.builder(name), (*intent.inputs, *intent.outputs)
    for title, region in zip(("q", "k", "v", "table", "lengths", "y"), regions, strict=True):
        b.param(title, "out" if title == "y" else "in", reach(region.window))
    heads, dtype = _heads(intent), intent.inputs[Q].dtype
    tokens, wide = heads.batch * heads.keys, heads.kv_heads * heads.width
    place = _places(b, target, intent, tokens)
    gathered = [_gathered(b, target, intent, side, place, tokens, wide) for side in (K, V)]
    total = heads.batch * heads.kv_heads * heads.group * heads.queries * heads.keys
    scores = b.param("scores", "workspace", total * 4)
    weights = b.param("weights", "workspace", total * dtype.itemsize)
    dense = _dense_keys(heads, dtype)
    q, y = intent.inputs[Q].window, intent.outputs[0].window
    first, second = products(heads, q, dense, dense, y, OUT, scores, weights)
    emit(b, target, evolve(first, b=evolve(first.b, param=gathered[0])))
    _softmax(b, target, intent, heads, scores, weights)
    emit(b, target, evolve(second, b=evolve(second.b, param=gathered[1])))
    return b.build()


def _heads(intent: Intent) -> Heads:
    (batch, heads, queries, width), (_, page, kv_heads, _) = intent.inputs[Q].shape, intent.inputs[K].shape
    return Heads(batch, kv_heads, heads // kv_heads, queries, intent.inputs[TABLE].shape[1] * page, width, width)


def _dense_keys(heads: Heads, dtype: torch.dtype) -> Window:
    """Keys or values brought together, [B, H, KV, D] of what lies as [B, KV, H, D]."""
    row = heads.kv_heads * heads.width
    shape = (heads.batch, heads.kv_heads, heads.keys, heads.width)
    return Window(shape, (heads.keys * row, heads.width, row, 1), 0, dtype)


def _places(b: Builder, target: Target, intent: Intent, tokens: int) -> Stream:
    """One phase: the place of every token, page * table + its place in the page. Entries of the table that name no page
    (of places behind a sequence's end) count as the first or last one."""
    table, (pages, page) = intent.inputs[TABLE].window, intent.inputs[K].shape[:2]
    places = b.param("places", "workspace", tokens * 4)
    own = evolve(table, shape=(*table.shape, 1), stride=(*table.stride, 1))
    out = Window((*table.shape, page), contiguous((*table.shape, page)), 0, torch.int32)

    def compute(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        number = lane.cast(tiles[0], "int32")
        number = lane.new("max", number.rows, 1, "int32", number, lane.constant(0, "int32"))
        number = lane.new("min", number.rows, 1, "int32", number, lane.constant(pages - 1, "int32"))
        number = lane.new("mul", number.rows, 1, "int32", number, lane.constant(page, "int32"))
        column = lane.new("iota", 1, page, "int32", start=0, step=1)
        return (lane.new("add", number.rows, page, "int32", number, column),)

    vector_phase(b, target, [Stream(TABLE, "in", own), Stream(places, "out", out)], compute, whole_rows=True)
    return Stream(places, "in", Window((tokens,), (1,), 0, torch.int32))


def _gathered(b: Builder, target: Target, intent: Intent, side: int, place: Stream, tokens: int, wide: int) -> int:
    """One phase: the tokens' rows of the pages one after the other; the workspace that holds them."""
    window = intent.inputs[side].window
    result = b.param(f"{'qkv'[side]}_rows", "workspace", tokens * wide * window.dtype.itemsize)
    table = Window((window.shape[0] * window.shape[1], wide), (window.stride[1], 1), 0, window.dtype)
    rows = Window((tokens, wide), (wide, 1), 0, window.dtype)
    rows_by_index(b, target, Stream(side, "in", table), place, Stream(result, "out", rows))
    return result


def _softmax(b: Builder, target: Target, intent: Intent, heads: Heads, scores: int, weights: int) -> None:
    """Row i of a sequence's queries sees the keys before its length - queries + i + 1."""
    shape = (heads.batch, heads.kv_heads * heads.group, heads.queries, heads.keys)
    lengths, dtype = intent.inputs[LENGTHS].window, intent.inputs[Q].dtype
    length = Window((*shape[:3], 1), (lengths.stride[0], 0, 0, 1), 0, lengths.dtype)
    streams = [Stream(scores, "in", Window(shape, contiguous(shape), 0, torch.float32)), Stream(LENGTHS, "in", length),
               Stream(weights, "out", Window(shape, contiguous(shape), 0, dtype))]  # fmt: skip

    def compute(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        before = lane.op("iota", lane.tile(tiles[0].rows, 1, "int32"), start=lane.row + -heads.queries, step=1)
        last = lane.new("add", tiles[0].rows, 1, "int32", before, lane.cast(tiles[1], "int32"))
        return (masked_softmax(target, lane, tiles[0], intent.attr("scale"), None, False, dtype_name(dtype), last),)

    vector_phase(b, target, streams, compute, whole_rows=True, rows_apart=True)


def reference(intent: Intent, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What it means; the weights' own rounding is within the bound."""
    return meaning(intent, *inputs)


def row_fits(chip: Chip, memory: str, intent: Intent) -> bool:
    """Scores in float32, weights and a column index stay on chip for one row."""
    keys = _heads(intent).keys
    return keys * (9 + intent.inputs[Q].dtype.itemsize) + 4096 <= chip.memories[memory].nbytes


def _formats(chip: Chip, intent: Intent) -> bool:
    operands = (*intent.inputs[:3], *intent.outputs)
    whole = all(r.dtype in (torch.int32, torch.int64) for r in intent.inputs[3:])
    return whole and all(r.dtype in FLOATS for r in operands) and len({r.dtype for r in operands}) == 1


def _dense(chip: Chip, intent: Intent) -> bool:
    q, y = intent.inputs[Q], intent.outputs[0]
    pages = all(r.stride == contiguous(r.shape) for r in intent.inputs[1:3])
    return pages and all(r.stride[-1] == 1 or r.shape[-1] == 1 for r in (q, y))


def _filled(chip: Chip, intent: Intent) -> bool:
    return all(r.numel for r in (*intent.inputs, *intent.outputs))


def _countable(chip: Chip, intent: Intent) -> bool:
    return intent.inputs[K].shape[0] * intent.inputs[K].shape[1] <= MOST_TOKENS


def _together(chip: Chip, intent: Intent) -> bool:
    heads, dtype = _heads(intent), intent.inputs[Q].dtype
    dense = _dense_keys(heads, dtype)
    return rows_copied_together(
        chip, *products(heads, intent.inputs[Q].window, dense, dense, intent.outputs[0].window, OUT, 6, 7)
    )


LIMITS = (
    Limit("q, k, v and y are fp16, bf16 or fp32, all of one format, table and lengths int32 or int64", _formats),
    Limit("pages lie densely, queries and results along the head dimension", _dense),
    Limit("no dimension is empty", _filled),
    Limit("the pages have 16 million places at most", _countable),
    Limit("rows lie no further apart than a copy can skip", _together),
)
ROUNDING = Rounding(4, 64, "exp and sums in fp32 in another order, weights and result rounded once each")
