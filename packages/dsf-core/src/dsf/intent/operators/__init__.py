"""One row per ATen operator: what a single operation wants. The rows that take several operations are in `patterns`."""

from __future__ import annotations

from dsf.intent import pointwise
from dsf.intent.activations import ACTIVATIONS
from dsf.intent.graph import Graph, Node
from dsf.intent.ir import Intent
from dsf.intent.operators import contraction, movement, reduction
from dsf.intent.operators.contraction import attention, attention_operands, stored
from dsf.intent.operators.rows import Row, aliases_safely, build, first_result_only, opaque
from dsf.intent.pointwise import POINTWISE, Operands

__all__ = [
    "DECLARED", "OPERATORS", "aliases_safely", "attention", "attention_operands", "build", "opaque", "single", "stored",
]  # fmt: skip

DECLARED = "dsf."  # the namespace of operations that a user declared to mean the kind whose name follows


def single(graph: Graph, node: Node) -> Intent:
    """What one operation wants, by its row; opaque if it has none or the row declines."""
    if node.writes and all(region.numel == 0 for region in node.writes):
        return build("nothing", node, (), *node.writes)
    if node.op.target.startswith(DECLARED):
        return build(node.op.target.removeprefix(DECLARED), node, node.args, *node.outs, **node.kwargs)
    row = OPERATORS.get(node.name) or _out_variant(node)
    intent = row(graph, node) if row else None
    if intent is None or any(r.numel == 0 for r in intent.inputs) or not aliases_safely(intent):
        return opaque(node)
    return intent


def _out_variant(node: Node) -> Row | None:
    """The row of a variant that writes its `out=` argument."""
    base, _, overload = node.name.partition(".")
    if not overload.endswith("out"):
        return None
    kind = overload.removesuffix("out").removesuffix("_")
    names = [kind] if kind else ["default", "Tensor", "self"]
    return next((OPERATORS[f"{base}.{name}"] for name in names if f"{base}.{name}" in OPERATORS), None)


def _pointwise(row: pointwise.Row) -> Row:
    def wanted(graph: Graph, node: Node) -> Intent | None:
        out = node.writes[0]
        if len(node.writes) > 1 and not first_result_only(graph, node):
            return None
        operands = Operands(node, out.shape)
        try:
            expr = row(operands, node)
        except ValueError:  # operands that do not broadcast to the output
            return None
        if expr is None or any(r.dtype.is_complex for r in (out, *operands.inputs)):
            return None
        expr, inputs = operands.cast(expr, out.dtype), tuple(operands.inputs)
        if expr[0] == "in":
            return build("copy", node, inputs, out)
        if expr[0] == "const":
            return build("fill", node, (), out, value=expr[2])
        return build("elementwise", node, inputs, out, expr=expr)

    return wanted


OPERATORS: dict[str, Row] = {
    **{name: _pointwise(row) for name, row in {**POINTWISE, **ACTIVATIONS}.items()},
    **contraction.ROWS, **reduction.ROWS, **movement.ROWS,
}  # fmt: skip
