"""The vector cores' library under the vendor's names: norms, SwiGlu, rotary embedding, softmax, reductions, movement.

The generators are the shared ones of dsf.kernels; the instruction table that they are written to makes them Ascend's.
"""

from __future__ import annotations

from dsf.kernels.shared import library

__all__ = ["KERNELS"]

NAMES = {
    "rms_norm": "RmsNorm",
    "add_rms_norm": "AddRmsNorm",
    "layer_norm": "LayerNorm",
    "add_layer_norm": "AddLayerNorm",
    "group_norm": "GroupNorm",
    "quantise": "AscendQuant",
    "gated_activation": "SwiGlu",
    "rotary": "ApplyRotaryPosEmb",
    "softmax": "Softmax",
    "embedding": "Embedding",
    "concat": "Cat",
    "reduce": "Reduce",
    "arg_reduce": "ArgMax",
    "cumsum": "Cumsum",
    "index": "GatherV2",
    "gather": "Gather",
    "scatter": "Scatter",
    "index_put": "IndexPutImpl",
    "kv_append": "ScatterUpdate",
    "sort": "Sort.scalar",
    "top_k": "Topk.scalar",
    "histogram": "Histc",
    "pool": "Pooling",
}

KERNELS = tuple(
    library("ascend", {kind: (name, f"aclnn{name.removesuffix('.scalar')}") for kind, name in NAMES.items()})
)
