"""The vector kernels that every chip's library may offer under its own names: generators by kind, with their limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from dsf.isa import Program
from dsf.kernels import indexed, rowwise, sorting, windows
from dsf.kernels.kernel import Kernel, Limit
from dsf.kernels.reference import REFERENCES, ROUNDINGS

__all__ = ["GENERATORS", "library"]

GENERATORS: dict[str, Callable[..., Program]] = {
    "rms_norm": rowwise.rms_norm,
    "add_rms_norm": rowwise.add_rms_norm,
    "layer_norm": rowwise.layer_norm,
    "add_layer_norm": rowwise.add_layer_norm,
    "group_norm": rowwise.group_norm,
    "quantise": rowwise.quantise,
    "gated_activation": rowwise.gated_activation,
    "rotary": rowwise.rotary,
    "softmax": rowwise.softmax,
    "embedding": rowwise.embedding,
    "concat": rowwise.concat,
    "reduce": rowwise.reduce,
    "arg_reduce": rowwise.arg_reduce,
    "cumsum": rowwise.cumsum,
    "index": indexed.index,
    "gather": indexed.gather,
    "scatter": indexed.scatter,
    "index_put": indexed.index_put,
    "kv_append": indexed.kv_append,
    "sort": sorting.sort,
    "top_k": sorting.top_k,
    "histogram": sorting.histogram,
    "pool": windows.pool,
}
"""Who writes the programs of each kind."""

LIMITS: dict[str, tuple[Limit, ...]] = {**rowwise.LIMITS, **indexed.LIMITS, **sorting.LIMITS, **windows.LIMITS}


def library(owner: str, names: Mapping[str, tuple[str, str]]) -> Iterator[Kernel]:
    """The kernels of library *owner* on vector cores: a (name, source) for each kind that it offers."""
    for kind, (name, source) in names.items():
        yield Kernel(
            name, kind, owner, partial(GENERATORS[kind], name=name), REFERENCES[kind], LIMITS.get(kind, ()),
            ROUNDINGS[kind], source,
        )  # fmt: skip
