"""Rows of attention: torch's own operation, and what models write in its place."""

from __future__ import annotations

from typing import Any

import torch
from attrs import evolve, field, frozen

from dsf.intent.graph import Node
from dsf.intent.ir import Intent
from dsf.intent.operators import attention, attention_operands, build
from dsf.intent.patterns.match import Match, cast_source, miss, require
from dsf.intent.tape import Region
from dsf.intent.views import expand, is_contiguous, permute, same, transposed, view

__all__ = ["SDPA", "eager", "latent", "paged", "sdpa", "sdpa_into_rows"]

SDPA = "scaled_dot_product_attention.default"
_CAST = "_to_copy.default"
_INTO_ROWS = (0, 2, 1, 3)  # [B, H, S, D] <-> [B, S, H, D]


def _unrepeated(m: Match, region: Region) -> Region:
    """Keys or values before `repeat_kv` copied every head n times [B, Hkv, n, KV, D]; or as they are."""
    if m.maker(region) != "clone.default" or not m.pick((True, False)):
        return region
    node = m.graph.nodes[m.graph.writers[region.buffer][0]]
    require(is_contiguous(node.out) and is_contiguous(region))
    source: Region = node.args[0]
    require(len(source.shape) == 5 and source.stride[2] == 0 and source.shape[2] > 1)
    require(region.offset == node.out.offset)
    batch, heads, repeats, length, width = source.shape
    require(region.shape == (batch, heads * repeats, length, width))
    m.made_by(node.out, "clone.default")
    return view(source, (batch, heads, length, width), (*source.stride[:2], *source.stride[3:]))


# torch's operation


def sdpa(m: Match) -> Intent:
    """scaled_dot_product_attention, with grouped queries whether by `enable_gqa` or by repeated keys and values."""
    return _attention(m, m.anchor)


def _attention(m: Match, node: Node) -> Intent:
    operands = attention_operands(node) or miss()
    q, k, v, mask = operands
    keys, values = _unrepeated(m, k), _unrepeated(m, v)
    require(keys.shape[:3] == values.shape[:3])
    return attention(node, q, keys, values, mask)


def sdpa_into_rows(m: Match) -> Intent:
    """Attention whose result is only copied with heads and rows exchanged: it writes [B, S, H, D] at once."""
    source: Region = m.anchor.args[0]
    require(m.maker(source) == SDPA and len(source.shape) == 4)
    node = m.graph.nodes[m.graph.writers[source.buffer][0]]
    require(same(permute(node.out, _INTO_ROWS), source))
    m.made_by(node.out, SDPA)
    intent = _attention(m, node)
    return evolve(intent, outputs=(permute(m.anchor.out, _INTO_ROWS),), scope=m.anchor.op.scope, site=m.anchor.op.site)


def paged(m: Match) -> Intent:
    """One query over keys and values taken page by page through a table, those past a length hidden: the plain form of
    paged attention [Kwon 2023, arXiv 2309.06180]."""
    q, k, v, mask = attention_operands(m.anchor) or miss()
    require(mask is not None and mask.dtype == torch.bool and not m.anchor.arg(5, "is_causal", False))
    require(q.shape[2] == 1 and len(m.anchor.args[0].shape) == 4)
    table, k_pages = _pages(m, _unrepeated(m, k))
    v_table, v_pages = _pages(m, _unrepeated(m, v))
    require(same(table, v_table) and k_pages.shape == v_pages.shape)
    lengths = _lengths(m, m.anchor.arg(3, "attn_mask"), q.shape[0], k.shape[2])
    scale = m.anchor.arg(6, "scale")
    return build("paged_attention", m.anchor, (q, k_pages, v_pages, table, lengths), m.anchor.out,
                 groups=q.shape[1] // k_pages.shape[2],
                 scale=float(q.shape[-1] ** -0.5 if scale is None else scale))  # fmt: skip


def _pages(m: Match, region: Region) -> tuple[Region, Region]:
    """Table and pages of region[B, H, n * page, D], which is pages[table] with heads and rows exchanged."""
    require(m.maker(region) == "index.Tensor")
    node = m.graph.nodes[m.graph.writers[region.buffer][0]]
    pages, indices, taken = node.args[0], node.args[1], node.out
    require(len(pages.shape) == 4 and len(indices) == 1 and indices[0] is not None and len(taken.shape) == 5)
    batch, count, page, heads, width = taken.shape
    rows = view(taken, (batch, count * page, heads, width), (*taken.stride[:1], *taken.stride[2:]))
    require(is_contiguous(taken) and same(permute(rows, _INTO_ROWS), region))
    m.made_by(taken, "index.Tensor")
    return indices[0], pages


def _lengths(m: Match, mask: Region, batch: int, keys: int) -> Region:
    """The lengths of arange(keys) < lengths[:, None], which *mask* is for every head and row."""
    expanded = expand(mask, (batch, 1, 1, keys))
    test = m.made_as(view(expanded, (batch, keys), (expanded.stride[0], expanded.stride[3])), "lt.Tensor")
    columns, lengths = test.args[:2]
    require(isinstance(columns, Region) and isinstance(lengths, Region) and lengths.shape == (batch, 1))
    counted = m.made_as(columns, "arange.default", "arange.start", "arange.start_step")
    numbers = [a for a in counted.args if isinstance(a, (int, float))]
    require(numbers in ([keys], [0, keys], [0, keys, 1]) and columns.numel == columns.shape[-1] == keys)
    return view(lengths, (batch,), lengths.stride[:1])


# step by step


def _uncast(m: Match, region: Region) -> Region:
    """What *region* was before a cast, perhaps under another shape; or *region* itself."""
    if m.maker(region) == _CAST and m.pick((True, False)):
        return cast_source(m.made_as(region, _CAST))
    return region


@frozen
class _Scores:
    """What lies between the softmax and the product of queries and keys. *shape* is that of the scores [..., S, KV]
    with as many dimensions as there ever were; *added* is expanded to it, the outermost addend first. *dtype* is that
    of the weights."""

    raw: Region
    shape: tuple[int, ...]
    dtype: torch.dtype
    scale: float
    softcap: float | None
    added: tuple[Region, ...] = field(factory=tuple)


def _scores(m: Match, weights: Region) -> _Scores:
    """softmax(cap(scale * raw) + mask + bias), with casts wherever models put them."""
    softmax = m.made_as(_uncast(m, weights), "softmax.int", "_softmax.default")
    scores: Region = softmax.args[0]
    require(softmax.args[1] in (-1, len(scores.shape) - 1))
    shape = scores.shape
    added: list[Region] = []
    scores = _uncast(m, scores)
    while m.maker(scores) == "add.Tensor" and len(added) < 2 and m.pick((True, False)):
        node = m.made_as(scores, "add.Tensor")
        scores, addend = m.operands(node)
        require(scores.shape == node.out.shape)
        added.append(_heads(expand(addend, node.out.shape), shape))
        scores = _uncast(m, scores)
    softcap = None
    if m.maker(scores) in ("mul.Tensor", "mul.Scalar") and m.pick((True, False)):
        scores, softcap = _capped(m, scores)
    scale = 1.0
    if m.maker(scores) in ("mul.Tensor", "mul.Scalar", "div.Tensor", "div.Scalar") and m.pick((True, False)):
        scores, scale = _scaled(m, scores)
    return _Scores(_uncast(m, scores), shape, softmax.out.dtype, scale, softcap, tuple(added))


def _scaled(m: Match, region: Region) -> tuple[Region, float]:
    """x and s of x * s or x / (1 / s)."""
    node = m.made_as(region, "mul.Tensor", "mul.Scalar", "div.Tensor", "div.Scalar")
    x, number = node.args[:2]
    require(isinstance(x, Region) and isinstance(number, (int, float)) and number and len(node.args) == 2)
    require(x.dtype == region.dtype and x.dtype.is_floating_point)
    return x, float(number) if node.name.startswith("mul") else 1 / number


def _capped(m: Match, region: Region) -> tuple[Region, float]:
    """x and c of c * tanh(x / c) [Gemma 2, arXiv 2408.00118]."""
    curved, cap = _scaled(m, region)
    inner, inverse = _scaled(m, m.made_as(curved, "tanh.default").args[0])
    require(abs(cap * inverse - 1) < 1e-12)
    return inner, cap


def _heads(region: Region, shape: tuple[int, ...]) -> Region:
    """[batch * heads, m, n] as [batch, heads, m, n], with the batch and heads of *shape* (1 and all, if it says none);
    four dimensions stay as they are."""
    if len(region.shape) == 4:
        return region
    batch, heads = shape[:2] if len(shape) == 4 else (1, shape[0])
    require(len(region.shape) == 3 and region.shape[0] == batch * heads)
    step, *rest = region.stride
    return view(region, (batch, heads, *region.shape[1:]), (step * heads, step, *rest))


def eager(m: Match) -> Intent:
    """softmax(q @ k^T * scale + mask, float32) @ v, step by step [transformers eager_attention_forward], capped
    [Gemma 2], over flattened heads with ALiBi added by the product [BLOOM], without a scale [T5]."""
    weights, v = m.anchor.args[:2]
    scores = _scores(m, weights)
    product = m.made_as(scores.raw, "matmul.default", "bmm.default", "baddbmm.default")
    scale, added = scores.scale, scores.added
    if product.name == "baddbmm.default":
        bias, *operands = product.args
        require(product.arg(3, "beta", 1) == 1)
        scale *= product.arg(4, "alpha", 1)
        require(scores.softcap is None and scores.scale == 1.0)
        added = (*added, _heads(expand(bias, product.out.shape), scores.shape))
    else:
        operands = list(product.args)
    require(len(added) <= 2 and all(len(r.shape) >= 3 for r in (*operands[:2], v)))
    q, k, v = (_heads(r, scores.shape) for r in (operands[0], transposed(operands[1]), v))
    return _attends(m, (q, k, v), scores, scale, added)


def _attends(m: Match, qkv: tuple[Region, ...], scores: _Scores, scale: float, added: tuple[Region, ...]) -> Intent:
    q, k, v = qkv
    out = _heads(m.anchor.out, scores.shape)
    require(len(out.shape) == 4 and k.shape[:3] == v.shape[:3] and q.shape[0] == k.shape[0])
    require(k.shape[1] in (1, q.shape[1]) and out.shape == (*q.shape[:3], v.shape[3]))
    require(q.dtype == k.dtype == v.dtype == out.dtype and q.dtype.is_floating_point)
    require(
        torch.promote_types(scores.dtype, q.dtype) == scores.dtype
    )  # a softmax narrower than its scores rounds them
    keys, values = _unrepeated(m, k), _unrepeated(m, v)
    require(keys.shape[:3] == values.shape[:3] and q.shape[1] % keys.shape[1] == 0)
    return build(
        "attention", m.anchor, (q, keys, values, *added), out, causal=False, groups=q.shape[1] // keys.shape[1],
        has_bias=len(added) == 2, has_mask=bool(added), scale=scale, softcap=scores.softcap,
    )  # fmt: skip


# latent


def latent(m: Match) -> Intent:
    """softmax((q @ latent^T + rope @ key^T) * scale + mask) @ latent: MLA with its projections absorbed [DeepSeek-V2,
    arXiv 2405.04434, 2.1.2]."""
    weights, values = m.anchor.args[:2]
    require(len(values.shape) == 4)
    scores = _scores(m, weights)
    require(scores.softcap is None and len(scores.added) <= 1)
    require(torch.promote_types(scores.dtype, values.dtype) == scores.dtype)
    left, right = m.operands(m.made_as(scores.raw, "add.Tensor"))
    (q, first), (rope, second) = (m.made_as(r, "matmul.default").args[:2] for r in (left, right))
    require(all(len(r.shape) == 4 for r in (q, first, rope, second)) and q.shape[:3] == rope.shape[:3])
    compressed, key = (_for_all_heads(transposed(r)) for r in (first, second))
    require(same(compressed, _for_all_heads(values)) and compressed.shape[:2] == key.shape[:2])
    require(compressed.shape[0] == q.shape[0] and len({r.dtype for r in (q, rope, compressed, key, m.anchor.out)}) == 1)
    attrs: dict[str, Any] = {"causal": False, "has_mask": bool(scores.added), "scale": scores.scale}
    return build("latent_attention", m.anchor, (q, rope, compressed, key, *scores.added), **attrs)


def _for_all_heads(region: Region) -> Region:
    """[B, KV, R] of a region [B, heads, KV, R] that is the same for all heads."""
    require(region.shape[1] == 1 or region.stride[1] == 0)
    drop = (region.shape[0], *region.shape[2:]), (region.stride[0], *region.stride[2:])
    return view(region, *drop)
