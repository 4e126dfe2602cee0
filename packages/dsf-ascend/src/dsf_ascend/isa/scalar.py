"""S: the scalar unit, an element at a time over UB. int64 arithmetic and comparisons end up here. [Triton-Ascend]"""

from __future__ import annotations

from dsf.isa import Isa
from dsf.isa.families import add_picks, add_pointwise, add_reductions, add_scans, add_sorts, add_vector_moves
from dsf.isa.primitives import ARG_REDUCTIONS, POINTWISE, REDUCTIONS

__all__ = ["declare"]

SOURCE = "triton-ascend guide: int64 add and int32/int64 compare fall to the scalar unit"
STORED = ("float16", "float32", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")


def declare(isa: Isa) -> None:
    """Add one scalar loop per primitive."""
    add_pointwise(isa, "S", "UB", {key: f"Scalar.{key}" for key in POINTWISE}, STORED, source=SOURCE)
    add_reductions(
        isa, "S", "UB", {key: f"Scalar.reduce.{key}" for key in (*REDUCTIONS, *ARG_REDUCTIONS)}, STORED, SOURCE
    )
    add_scans(isa, "S", "UB", {"cumsum": "Scalar.cumsum"}, STORED, SOURCE)
    add_vector_moves(isa, "S", "UB", {key: f"Scalar.{key}" for key in ("fill", "iota")}, STORED, SOURCE)
    add_picks(isa, "S", "UB", {key: f"Scalar.{key}" for key in ("take", "put", "put.add")}, SOURCE)
    add_sorts(isa, "S", "UB", {f"order.{way}": f"Scalar.order.{way}" for way in ("ascending", "descending")}, SOURCE)
