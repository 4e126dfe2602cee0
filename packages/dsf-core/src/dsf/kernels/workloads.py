"""Intents as real models have them: the shapes that trees are learned from, and those that they are judged by.

The numbers are data, in `workloads.json` beside this module. Which part a shape belongs to follows from a hash of it,
so that no shape is in both, and it stays where it is when others are added.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from dsf.intent.ir import Intent, attributes
from dsf.intent.tape import Region, Window
from dsf.isa.program import contiguous

__all__ = ["KINDS", "PARTS", "workloads"]

PARTS = ("training", "unseen")
UNSEEN = 0.3  # share of the shapes that no tree is learned from
Shape = tuple[int, ...]


def workloads(kind: str, dtype: torch.dtype, part: str, most: int) -> tuple[Intent, ...]:
    """At most *most* intents of *kind* of one of `PARTS`, spread evenly over all that there are, the same every time.
    One in eight of the products is in float32."""
    shapes = dict.fromkeys(KINDS[kind][0]())
    drawn = sorted((_place(kind, shape), shape) for shape in shapes)
    inside = [shape for place, shape in drawn if (place < UNSEEN) == (part == "unseen")][:most]
    make = KINDS[kind][1]
    return tuple(make(torch.float32 if n % 8 == 7 else dtype, *shape) for n, shape in enumerate(inside))


def _place(kind: str, shape: Shape) -> float:
    """A number from 0 to 1 that follows from the shape alone."""
    digest = blake2b(f"{kind}{shape}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64


def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads((Path(__file__).parent / "workloads.json").read_text("utf-8"))
    return data


def _tokens(data: dict[str, Any]) -> Iterator[int]:
    """Rows of a step: one token of each of a batch, or a whole prompt."""
    yield from data["batches"]
    yield from data["lengths"]


def _weights(data: dict[str, Any]) -> Iterator[tuple[int, int, int]]:
    """(n, k, whether stored [n, k]) of every weight, whole and split."""
    for model in data["models"]:
        stored = int(not model.get("plain", False))
        hidden, ffn, width = model["hidden"], model["ffn"], model["width"]
        heads, kv_heads = model["heads"], model["kv_heads"]
        for parts in data["splits"]:
            if heads % parts:
                continue
            q, kv = heads // parts * width, max(kv_heads // parts, 1) * width
            inward = (q, kv, q + 2 * kv, ffn // parts, 2 * ffn // parts, model["vocab"] // parts)
            yield from ((n, hidden, stored) for n in inward)
            yield from ((hidden, k, stored) for k in (q, ffn // parts))
        yield from ((n, k, stored) for n, k in model.get("more", ()))


def _linears() -> Iterator[Shape]:
    data = _data()
    for n, k, stored in _weights(data):
        yield from ((m, n, k, stored) for m in _tokens(data))


def _attentions() -> Iterator[Shape]:
    """(batch, heads, kv_heads, queries, keys, width): prefills, and decode steps over their caches."""
    data = _data()
    for model in data["models"]:
        for parts in data["splits"]:
            if model["heads"] % parts:
                continue
            heads, kv = model["heads"] // parts, max(model["kv_heads"] // parts, 1)
            if heads % kv:
                continue
            for batch in data["batches"][:6]:
                for length in data["lengths"]:
                    if batch * length <= data["lengths"][-1]:
                        yield batch, heads, kv, length, length, model["width"]
                yield from ((batch, heads, kv, 1, keys, model["width"]) for keys in data["contexts"])


def _matmuls() -> Iterator[Shape]:
    """(batch, m, n, k, whether b is stored [n, k]): scores and values of the attentions."""
    for batch, heads, kv, queries, keys, width in _attentions():
        rows, count = (heads // kv, batch * kv) if queries == 1 else (queries, batch * heads)
        yield count, rows, keys, width, 1
        yield count, rows, width, keys, 0


def _rows_of(*names: str, each: str = "") -> Callable[[], Iterator[Shape]]:
    """(rows, columns): as many rows as tokens (times what a model has under *each*), the columns that it has under
    *names*."""

    def rows() -> Iterator[Shape]:
        data = _data()
        for model in data["models"]:
            for parts in data["splits"]:
                rows = max(model[each] // parts, 1) if each else 1
                yield from ((m * rows, model[name] // (1 if each else parts)) for m in _tokens(data) for name in names)

    return rows


def _intent(kind: str, inputs: Iterable[Window], output: Window, **attrs: Any) -> Intent:
    regions = [Region(n, window) for n, window in enumerate((*inputs, output))]
    return Intent(kind, tuple(regions[:-1]), tuple(regions[-1:]), attributes(kind, **attrs))


def _dense(shape: Shape, dtype: torch.dtype) -> Window:
    return Window(shape, contiguous(shape), 0, dtype)


def _linear(dtype: torch.dtype, m: int, n: int, k: int, stored: int) -> Intent:
    w = (n, k) if stored else (k, n)
    operands = (_dense((m, k), dtype), _dense(w, dtype))
    return _intent("linear", operands, _dense((m, n), dtype), has_bias=False, transposed=bool(stored))


def _matmul(dtype: torch.dtype, batch: int, m: int, n: int, k: int, stored: int) -> Intent:
    b = Window((batch, k, n), (k * n, 1, k) if stored else (k * n, n, 1), 0, dtype)
    return _intent("matmul", (_dense((batch, m, k), dtype), b), _dense((batch, m, n), dtype))


def _attention(
    dtype: torch.dtype, batch: int, heads: int, kv_heads: int, queries: int, keys: int, width: int
) -> Intent:
    q, kv = _dense((batch, heads, queries, width), dtype), _dense((batch, kv_heads, keys, width), dtype)
    return _intent(
        "attention", (q, kv, kv), q, causal=queries > 1, groups=heads // kv_heads, has_mask=False, scale=width**-0.5
    )


def _rms_norm(dtype: torch.dtype, rows: int, columns: int) -> Intent:
    x, weight = _dense((rows, columns), dtype), _dense((columns,), dtype)
    return _intent("rms_norm", (x, weight), x, compute=torch.float32, eps=1e-6, weight_after_cast=True)


def _add_rms_norm(dtype: torch.dtype, rows: int, columns: int) -> Intent:
    x, weight = _dense((rows, columns), dtype), _dense((columns,), dtype)
    regions = [Region(n, window) for n, window in enumerate((x, x, weight, x, x))]
    attrs = attributes("add_rms_norm", compute=torch.float32, eps=1e-6, weight_after_cast=True)
    return Intent("add_rms_norm", tuple(regions[:3]), tuple(regions[3:]), attrs)


def _layer_norm(dtype: torch.dtype, rows: int, columns: int) -> Intent:
    x, each = _dense((rows, columns), dtype), _dense((columns,), dtype)
    return _intent("layer_norm", (x, each, each), x, axes=1, eps=1e-5, has_bias=True, has_weight=True)


def _gated(dtype: torch.dtype, rows: int, columns: int) -> Intent:
    x = _dense((rows, columns), dtype)
    return _intent("gated_activation", (x, x), x, act="silu")


def _softmax(dtype: torch.dtype, rows: int, columns: int) -> Intent:
    x = _dense((rows, columns), dtype)
    return _intent("softmax", (x,), x, dim=1, log=False)


def _reduce(dtype: torch.dtype, rows: int, columns: int) -> Intent:
    return _intent(
        "reduce", (_dense((rows, columns), dtype),), _dense((rows,), dtype), dims=(1,), keepdim=False, op="sum"
    )


def _arg_reduce(dtype: torch.dtype, rows: int, columns: int) -> Intent:
    x, y = _dense((rows, columns), dtype), _dense((rows,), torch.int64)
    return _intent("arg_reduce", (x,), y, dim=1, has_values=False, keepdim=False, op="argmax")


def _cumsum(dtype: torch.dtype, rows: int, columns: int) -> Intent:
    x = _dense((rows, columns), dtype)
    return _intent("cumsum", (x,), x, dim=1)


def _rotary(dtype: torch.dtype, rows: int, columns: int) -> Intent:
    x = _dense((rows, columns), dtype)
    return _intent("rotary", (x, x, x), x, style="half")


def _embedding(dtype: torch.dtype, rows: int, columns: int) -> Intent:
    ids, table = _dense((rows,), torch.int64), _dense((32000, columns), dtype)
    return _intent("embedding", (ids, table), _dense((rows, columns), dtype))


def _concat(dtype: torch.dtype, rows: int, columns: int) -> Intent:
    part = _dense((rows, columns), dtype)
    return _intent("concat", (part, part), _dense((2 * rows, columns), dtype), dim=0)


KINDS: dict[str, tuple[Callable[[], Iterable[Shape]], Callable[..., Intent]]] = {
    "linear": (_linears, _linear),
    "matmul": (_matmuls, _matmul),
    "attention": (_attentions, _attention),
    "rms_norm": (_rows_of("hidden", "width"), _rms_norm),
    "add_rms_norm": (_rows_of("hidden"), _add_rms_norm),
    "layer_norm": (_rows_of("hidden"), _layer_norm),
    "gated_activation": (_rows_of("ffn"), _gated),
    "rotary": (_rows_of("width", each="heads"), _rotary),
    "softmax": (_rows_of("heads", "vocab"), _softmax),
    "reduce": (_rows_of("hidden", "heads"), _reduce),
    "arg_reduce": (_rows_of("heads", "vocab"), _arg_reduce),
    "cumsum": (_rows_of("heads"), _cumsum),
    "embedding": (_rows_of("hidden"), _embedding),
    "concat": (_rows_of("width", each="kv_heads"), _concat),
}
"""By kind: all shapes, and the intent of one."""
