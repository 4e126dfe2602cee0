"""What well-formed intents look like: checked between passes, so that a mistake is named where it was made."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dsf import errors
from dsf.intent.expression import dtype_of, nodes
from dsf.intent.graph import Graph, Node
from dsf.intent.ir import KINDS, Intent
from dsf.intent.operators import aliases_safely
from dsf.intent.tape import Tape

__all__ = ["check"]


def check(intents: Sequence[Intent], tape: Tape) -> None:
    """KernelError unless *intents* say what *tape* says: every operation covered once, every value read after it was
    written and before it is overwritten, nothing visible left out, operands and attributes as their kind has them."""
    graph = Graph(tape)
    _check_coverage(intents, graph)
    _check_order(intents, graph)
    for position, intent in enumerate(intents):
        _check_form(position, intent)


def _fail(code: str, position: int, intent: Intent, found: str) -> None:
    raise errors.KernelError(code, f"intent {position} ({intent}): {found}")


def _name(node: Node) -> str:
    return f"operation {node.index} ({node.op.target})"


def _check_coverage(intents: Sequence[Intent], graph: Graph) -> None:
    owner: dict[int, int] = {}
    for position, intent in enumerate(intents):
        for index in intent.ops:
            if index in owner:
                found = f"covers {_name(graph.nodes[index])}, as intent {owner[index]} does; cover each once"
                _fail("DSF-K010", position, intent, found)
            owner[index] = position
    for node in graph.nodes:
        if node.index not in owner:
            sentence = f"{_name(node)}: no intent covers it; every operation needs one"
            raise errors.KernelError("DSF-K011", sentence)


def _check_order(intents: Sequence[Intent], graph: Graph) -> None:
    """Counts the writes of each buffer as the intents run, and compares with what each operation saw on the tape."""
    written: dict[int, int] = {}
    for position, intent in enumerate(intents):
        inside = set(intent.ops)
        for index in intent.ops:
            for region in graph.nodes[index].reads:
                before = [w for w in graph.writers.get(region.buffer, ()) if w < index and w not in inside]
                if len(before) != written.get(region.buffer, 0):
                    found = f"{written.get(region.buffer, 0)} writes, {_name(graph.nodes[index])} after {len(before)}"
                    _fail(
                        "DSF-K012",
                        position,
                        intent,
                        f"reads buffer {region.buffer} after {found}; keep the tape's order",
                    )
        _check_operands(position, intent, graph)
        for index in intent.ops:
            for region in graph.nodes[index].writes:
                _check_write(position, intent, index, region.buffer, inside, graph)
                written[region.buffer] = written.get(region.buffer, 0) + 1


def _check_operands(position: int, intent: Intent, graph: Graph) -> None:
    read = {region.buffer for index in intent.ops for region in graph.nodes[index].op.reads}
    written = {region.buffer for index in intent.ops for region in graph.nodes[index].writes}
    for region in intent.inputs:
        if region.buffer not in read:
            found = f"takes buffer {region.buffer}, which none of its operations reads; take what they read"
            _fail("DSF-K019", position, intent, found)
    for region in intent.outputs:
        if region.buffer not in written:
            found = f"gives buffer {region.buffer}, which none of its operations writes; give what they write"
            _fail("DSF-K019", position, intent, found)


def _check_write(position: int, intent: Intent, index: int, buffer: int, inside: set[int], graph: Graph) -> None:
    """A write that is not an output must be invisible: in a buffer that nobody else reads and nothing outside holds."""
    if any(out.buffer == buffer for out in intent.outputs):
        return
    if graph.hidden(buffer) and inside.issuperset(graph.readers.get(buffer, ())):
        return
    found = f"hides buffer {buffer}, which {_name(graph.nodes[index])} writes and others see"
    _fail("DSF-K013", position, intent, f"{found}; make it an output or leave the operation out")


def _check_form(position: int, intent: Intent) -> None:
    kind = KINDS.get(intent.kind)
    if kind is None:
        known = ", ".join(sorted(KINDS))
        raise errors.KernelError("DSF-K014", f"intent {position}: no kind named {intent.kind!r}; known kinds: {known}")
    names, defaults = tuple(name for name, _ in intent.attrs), dict(kind.defaults)
    if names != tuple(sorted((*kind.attrs, *defaults.keys() & set(names)))):
        found = f"has the attributes ({', '.join(names)}); a {intent.kind} has ({', '.join(kind.attrs)})"
        _fail("DSF-K015", position, intent, found)
    for name, value in intent.attrs:
        if name in defaults and type(value) is type(defaults[name]) and value == defaults[name]:
            found = f"says {name}={value}, which a {intent.kind} is without saying so; leave it out"
            _fail("DSF-K015", position, intent, found)
    for what, operands, wanted in (("input", intent.inputs, kind.inputs), ("output", intent.outputs, kind.outputs)):
        expected = [name for name in wanted if not name.endswith("?") or intent.attr(f"has_{name[:-1]}")]
        starred = any(name.endswith("*") for name in expected)
        if len(operands) < len(expected) - starred or (len(operands) > len(expected) and not starred):
            found = f"has {len(operands)} {what}s; a {intent.kind} has ({' '.join(expected)})"
            _fail("DSF-K016", position, intent, found)
    if not aliases_safely(intent):
        _fail("DSF-K017", position, intent, "writes over an input that it still reads; make it opaque")
    if problem := _SHAPES.get(intent.kind, _any_shape)(intent):
        _fail("DSF-K018", position, intent, problem)


# Shapes: each rule answers with what is wrong, or "".


def _any_shape(intent: Intent) -> str:
    return ""


def _linear(intent: Intent) -> str:
    x, w, *rest = intent.inputs
    n, k = w.shape if intent.attr("transposed") else w.shape[::-1]
    want = (*x.shape[:-1], n)
    if x.shape[-1:] != (k,):
        return f"x ends in {x.shape[-1:]}, w contracts {k}"
    if intent.attr("has_bias") and rest[0].shape != (n,):
        return f"bias has shape {rest[0].shape}; expected ({n},)"
    if intent.attr("has_residual") and rest[-1].shape != want:
        return f"residual has shape {rest[-1].shape}; expected {want}"
    return _output(intent, want)


def _quant_linear(intent: Intent) -> str:
    (x, w, *groups), bits = intent.inputs, intent.attr("bits")
    bias = groups.pop() if intent.attr("has_bias") else None
    n, k = w.shape[0], w.shape[1] * (2 if bits == 4 else 1)
    if x.shape[-1] != k or k % intent.attr("group"):
        return f"x ends in {x.shape[-1:]}, w contracts {k} in groups of {intent.attr('group')}"
    if any(r.shape != (n, k // intent.attr("group")) for r in groups):
        return f"scale has shape {groups[0].shape}; expected {(n, k // intent.attr('group'))}"
    if bias is not None and bias.shape != (n,):
        return f"bias has shape {bias.shape}; expected ({n},)"
    return _output(intent, (*x.shape[:-1], n))


def _scaled_linear(intent: Intent) -> str:
    x, w, x_scale, w_scale, *bias = intent.inputs
    n, k = w.shape if intent.attr("transposed") else w.shape[::-1]
    if x.shape[-1] != k:
        return f"x ends in {x.shape[-1:]}, w contracts {k}"
    if x_scale.shape != (*x.shape[:-1], 1) or any(r.shape != (n,) for r in (w_scale, *bias)):
        return f"the scales have shapes {x_scale.shape} and {w_scale.shape}; expected {(*x.shape[:-1], 1)} and ({n},)"
    return _output(intent, (*x.shape[:-1], n))


def _grouped_linear(intent: Intent) -> str:
    x, w, ends = intent.inputs
    experts, k, n = w.shape if not intent.attr("transposed") else (w.shape[0], w.shape[2], w.shape[1])
    if x.shape[1:] != (k,) or ends.shape != (experts,):
        return f"x has shape {x.shape} and ends {ends.shape}; {experts} experts contract {k}"
    return _output(intent, (x.shape[0], n))


def _output(intent: Intent, want: tuple[int, ...]) -> str:
    have = intent.outputs[0].shape
    return "" if have == want else f"y has shape {have}; expected {want}"


def _matmul(intent: Intent) -> str:
    a, b = intent.inputs
    if a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        return f"a {a.shape} and b {b.shape} do not multiply; write broadcast batches with stride 0"
    return _output(intent, (*a.shape[:-1], b.shape[-1]))


def _attention(intent: Intent) -> str:
    q, k, v, *added = intent.inputs
    if any(len(r.shape) != 4 for r in intent.inputs):
        return "q, k, v and mask have four dimensions each"
    groups = intent.attr("groups")
    if k.shape[:3] != v.shape[:3] or (k.shape[0], k.shape[1] * groups, k.shape[3]) != (*q.shape[:2], q.shape[3]):
        return f"q {q.shape}, k {k.shape}, v {v.shape} do not fit groups={groups}"
    if wrong := [a for a in added if a.shape != (*q.shape[:3], k.shape[2])]:
        return f"mask has shape {wrong[0].shape}; expected {(*q.shape[:3], k.shape[2])}"
    return _output(intent, (*q.shape[:3], v.shape[3]))


def _rms_norm(intent: Intent) -> str:
    x, *weight = intent.inputs
    if any(w.shape != x.shape[-1:] for w in weight):
        return f"weight has shape {weight[0].shape}; expected {x.shape[-1:]}"
    return _output(intent, x.shape)


def _norm_of_sum(intent: Intent) -> str:
    x, residual = intent.inputs[:2]
    if x.shape != residual.shape or intent.outputs[1].shape != x.shape:
        return f"x, residual and total have shapes {x.shape}, {residual.shape}, {intent.outputs[1].shape}; all are one"
    return _output(intent, x.shape)


def _rotary(intent: Intent) -> str:
    x, cos, sin = intent.inputs
    allowed = x.shape, (*x.shape[:-1], x.shape[-1] // 2)
    if x.shape[-1] % 2 or cos.shape not in allowed or sin.shape != cos.shape:
        return f"cos has shape {cos.shape} and sin {sin.shape}; expected {allowed[0]} or {allowed[1]}"
    return _output(intent, x.shape)


def _latent_attention(intent: Intent) -> str:
    q, rope, latent, key, *mask = intent.inputs
    if q.shape[:3] != rope.shape[:3] or latent.shape[:2] != key.shape[:2] or latent.shape[0] != q.shape[0]:
        return f"q {q.shape}, rope {rope.shape}, latent {latent.shape} and key {key.shape} do not fit"
    if any(m.shape != (*q.shape[:3], latent.shape[1]) for m in mask):
        return f"mask has shape {mask[0].shape}; expected {(*q.shape[:3], latent.shape[1])}"
    return _output(intent, q.shape)


def _uniform(intent: Intent) -> str:
    want = intent.outputs[0].shape
    for region in intent.inputs:
        if region.shape != want:
            return f"an input has shape {region.shape}, y has {want}; write broadcast with stride 0"
    return ""


def _first(intent: Intent) -> str:
    return _output(intent, intent.inputs[0].shape)


def _elementwise(intent: Intent) -> str:
    expr, dtypes = intent.attr("expr"), [r.dtype for r in intent.inputs]
    used = {node[1] for node in nodes(expr) if node[0] == "in"}
    if used != set(range(len(intent.inputs))):
        return f"the expression reads inputs {sorted(used)} of {len(intent.inputs)}"
    if dtype_of(expr, dtypes) != intent.outputs[0].dtype:
        return f"the expression is {dtype_of(expr, dtypes)}, y is {intent.outputs[0].dtype}"
    return _uniform(intent)


def _reduce(intent: Intent) -> str:
    x, dims, keep = intent.inputs[0], intent.attr("dims"), intent.attr("keepdim")
    return _output(intent, tuple(1 if d in dims else n for d, n in enumerate(x.shape) if keep or d not in dims))


def _embedding(intent: Intent) -> str:
    ids, table = intent.inputs
    return _output(intent, (*ids.shape, *table.shape[1:]))


def _concat(intent: Intent) -> str:
    dim = intent.attr("dim")
    shapes = [list(r.shape) for r in intent.inputs]
    total = sum(shape[dim] for shape in shapes)
    if any(shape[:dim] + shape[dim + 1 :] != shapes[0][:dim] + shapes[0][dim + 1 :] for shape in shapes):
        return f"the inputs differ in more than dimension {dim}"
    return _output(intent, (*shapes[0][:dim], total, *shapes[0][dim + 1 :]))


_SHAPES: dict[str, Callable[[Intent], str]] = {
    "linear": _linear, "matmul": _matmul, "attention": _attention, "rms_norm": _rms_norm, "layer_norm": _first,
    "add_rms_norm": _norm_of_sum, "add_layer_norm": _norm_of_sum, "group_norm": _first, "quantise": _uniform,
    "quant_linear": _quant_linear, "scaled_linear": _scaled_linear, "grouped_linear": _grouped_linear,
    "latent_attention": _latent_attention, "paged_attention": _first, "sort": _first, "kv_append": _first,
    "rotary": _rotary, "softmax": _first, "elementwise": _elementwise, "gated_activation": _uniform, "copy": _uniform,
    "reduce": _reduce, "cumsum": _first, "embedding": _embedding, "concat": _concat, "scatter": _first,
    "index_put": _first,
}  # fmt: skip
