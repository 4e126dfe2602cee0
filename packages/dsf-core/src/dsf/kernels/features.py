"""What a decision about an intent may look at: its plain sizes, and numbers computed from these.

A feature is named: `m` is a size as it is, `m%16` what is left of it after whole sixteens.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from math import prod
from typing import TYPE_CHECKING

import torch
from attrs import frozen

from dsf.hdl import Chip
from dsf.intent.ir import Intent
from dsf.isa.program import torch_dtype

if TYPE_CHECKING:
    from dsf.kernels.contraction import Product

__all__ = ["FRACTAL", "Feature", "Sizes", "bucket", "feature", "product_sizes", "sizes"]

Sizes = dict[str, int]
SIZES = frozenset((
    "m", "n", "k", "batch", "item", "transposed", "cores", "heads", "groups", "queries", "keys", "width",
    "value_width", "causal", "mask", "rows", "columns", "operands", "integer", "double",
))  # fmt: skip
FRACTAL = 16  # elements: what matrix engines round rows and columns up to
BUCKET = 128  # sizes that grow from step to step count as alike within this many


def sizes(intent: Intent, chip: Chip) -> Sizes:
    """The sizes of *intent*, those of its family: products, attentions, and rows for everything else."""
    return _FAMILIES.get(intent.kind, _rows)(intent, chip)


def product_sizes(product: Product, chip: Chip) -> Sizes:
    """The sizes of a product inside a kernel: those of a `matmul`."""
    return {
        "m": product.m, "n": product.n, "k": product.k, "batch": prod(batch.count for batch in product.batch),
        "item": torch_dtype(product.a.dtype).itemsize, "transposed": int(product.b.column != 1),
        "cores": _matrix_cores(chip),
    }  # fmt: skip


def bucket(kind: str, found: Sizes) -> tuple[object, ...]:
    """What intents have in common that one decision serves: equal sizes, where those that grow with a KV cache are
    rounded up to whole buckets."""
    grows = _GROWING.get(kind, ())
    return kind, *((name, _up(n) if name in grows else n) for name, n in found.items())


def _up(size: int) -> int:
    return size if size <= BUCKET else -(-size // BUCKET) * BUCKET


@cache
def _matrix_cores(chip: Chip) -> int:
    """Cores that have a matrix engine."""
    kinds = {core for engine in chip.engines.values() if engine.kind == "matrix" for core in engine.core}
    return sum(chip.cores[kind].count for kind in kinds) or 1


def _linear(intent: Intent, chip: Chip) -> Sizes:
    x, y = intent.inputs[0].window, intent.outputs[0].window
    return {
        "m": prod(y.shape[:-1]), "n": y.shape[-1], "k": x.shape[-1], "batch": 1, "item": x.dtype.itemsize,
        "transposed": int(intent.attr("transposed")), "cores": _matrix_cores(chip),
    }  # fmt: skip


def _matmul(intent: Intent, chip: Chip) -> Sizes:
    a, b, y = intent.inputs[0].window, intent.inputs[1].window, intent.outputs[0].window
    return {
        "m": y.shape[-2], "n": y.shape[-1], "k": a.shape[-1], "batch": prod(y.shape[:-2]), "item": a.dtype.itemsize,
        "transposed": int(b.stride[-1] != 1), "cores": _matrix_cores(chip),
    }  # fmt: skip


def _attention(intent: Intent, chip: Chip) -> Sizes:
    (b, h, s, d), (kv, dv) = intent.inputs[0].shape, intent.inputs[2].shape[2:]
    return {
        "batch": b, "heads": h, "groups": intent.attr("groups"), "queries": s, "keys": kv, "width": d,
        "value_width": dv, "item": intent.inputs[0].dtype.itemsize, "causal": int(intent.attr("causal")),
        "mask": int(intent.attr("has_mask")), "cores": _matrix_cores(chip),
    }  # fmt: skip


def _rows(intent: Intent, chip: Chip) -> Sizes:
    """The first operand (the result, where there is none) as rows of its last dimension."""
    window = (intent.inputs or intent.outputs)[0].window
    columns = window.shape[-1] if window.shape else 1
    return {
        "rows": prod(window.shape[:-1]), "columns": columns, "item": window.dtype.itemsize,
        "operands": len(intent.inputs), "integer": int(not window.dtype.is_floating_point),
        "double": int(window.dtype == torch.float64),
    }  # fmt: skip


_FAMILIES: dict[str, Callable[[Intent, Chip], Sizes]] = {
    "linear": _linear,
    "matmul": _matmul,
    "attention": _attention,
}
_GROWING = {"matmul": ("n", "k"), "attention": ("keys",)}


@frozen(eq=False)
class Feature:
    """A number that a tree asks for: its *name*, in *words* for people, and how it follows from sizes."""

    name: str
    words: str
    of: Callable[[Sizes], float]


@cache
def feature(name: str) -> Feature:
    """The feature called *name*; a KeyError where there is none."""
    if (found := re.fullmatch(r"([a-z_]+)%(\d+)", name)) and found[1] in SIZES:
        size, step = found[1], int(found[2])
        return Feature(name, name, lambda sizes: sizes[size] % step)
    if name in SIZES:
        return Feature(name, name.replace("_", " "), lambda sizes: sizes[name])
    raise KeyError(name)
