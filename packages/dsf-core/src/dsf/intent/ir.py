"""Intents: what a recorded step wants, before anybody decides how. One row of `KINDS` per kind.

Two rules hold for every kind. *Broadcast is stride 0*: wherever operands broadcast, their windows already have the
common shape, with stride 0 along what is repeated. *Axes are counted from the front*: `dim` and `dims` are never
negative.
"""

from __future__ import annotations

from typing import Any

from attrs import frozen

from dsf.intent.expression import text
from dsf.intent.tape import Region, Scope, Site

__all__ = ["KINDS", "Group", "Intent", "Kind", "attributes", "key"]


@frozen
class Kind:
    """One row: the canonical operands of a kind, its attributes, and what it means. A trailing `?` marks an operand
    that is there only if the attribute `has_<name>` says so, a `*` one that occurs any number of times. *defaults* are
    attributes that an intent leaves out where they have this value, so that equal intents are written alike."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: tuple[str, ...]
    meaning: str
    defaults: tuple[tuple[str, Any], ...] = ()


def _kind(inputs: str, outputs: str, attrs: str, meaning: str, **defaults: Any) -> Kind:
    names = [tuple(part.split()) for part in (inputs, outputs, attrs)]
    return Kind(names[0], names[1], names[2], meaning, tuple(sorted(defaults.items())))


KINDS: dict[str, Kind] = {
    # contractions
    "linear": _kind(
        "x w bias? residual?", "y", "has_bias transposed",
        "y[..., N] = activation(x[..., K] @ w + bias[N]) + residual[..., N], rounded to y's dtype before "
        "the activation and before the residual; w is stored [N, K] if transposed (as nn.Linear does), else [K, N]; "
        "activation: None relu silu gelu gelu_tanh sigmoid tanh; int8 operands are added up in int32",
        activation=None, has_residual=False),
    "matmul": _kind(
        "a b", "y", "", "y[*batch, M, N] = a[*batch, M, K] @ b[*batch, K, N], any strides"),
    "attention": _kind(
        "q k v mask? bias?", "y", "causal groups has_mask scale",
        "y[B, H, S, Dv] = softmax(cap(scale * q[B, H, S, D] @ k[B, H/groups, KV, D]^T) + mask) @ v[B, H/groups, KV, "
        "Dv]; causal: row i sees columns 0..i (top left), with a window only the last *window* of these; cap(x) = "
        "softcap * tanh(x / softcap); a bool mask[B, H, S, KV] keeps where true, a float one is added, and so is a "
        "bias[B, H, S, KV] (ALiBi)",
        has_bias=False, softcap=None, window=None),
    "paged_attention": _kind(
        "q k v table lengths", "y", "groups scale",
        "attention of q[B, H, S, D] over keys and values in pages [P, page, H/groups, D]: sequence b has lengths[b] "
        "keys in the pages table[b, 0..]; its S queries are the last ones and see what lies before them"),
    "latent_attention": _kind(
        "q rope latent key mask?", "y", "causal has_mask scale",
        "MLA, absorbed: y[B, H, S, R] = softmax(scale * (q[B, H, S, R] @ latent[B, KV, R]^T + rope[B, H, S, P] @ "
        "key[B, KV, P]^T) + mask) @ latent; causal and mask as in attention"),
    "grouped_linear": _kind(
        "x w ends", "y", "transposed",
        "expert e's rows ends[e-1]..ends[e] of x[T, K] by w[e] of w[E, K, N] (or [E, N, K] if transposed): y[T, N]; "
        "rows past the last end are zero"),
    "quant_linear": _kind(
        "x w scale zero? bias?", "y", "bits group has_bias has_zero",
        "y = x @ dequantised(w)^T + bias: w[N, K] of int8, or two int4 to an uint8 along K (low one first), where bits "
        "is 4; each *group* numbers along K have their own scale[N, K/group] and zero: (w - zero) * scale, in x's "
        "dtype"),
    "scaled_linear": _kind(
        "x w x_scale w_scale bias?", "y", "has_bias transposed",
        "W8A8: y = (x @ w in int32) * x_scale[..., 1] * w_scale[N] + bias, in float32, rounded once; int8 x and w"),
    "convolution": _kind(
        "x w bias?", "y", "dilation groups has_bias padding stride",
        "torch.convolution of x[B, C, ...] with w[O, C/groups, ...], one to three spatial dimensions; a transposed one "
        "has w[C, O/groups, ...] and output_padding",
        output_padding=None, transposed=False),
    # normalisation and positions
    "rms_norm": _kind(
        "x weight?", "y", "compute eps weight_after_cast",
        "n = x * rsqrt(mean(x ** 2, last) + eps) in dtype compute; y = weight * n, with n rounded to y's dtype first "
        "if weight_after_cast, else the product is",
        has_weight=True),
    "add_rms_norm": _kind(
        "x residual weight?", "y total", "compute eps weight_after_cast",
        "total = x + residual, rounded to its dtype; y = rms_norm(total, weight)",
        has_weight=True),
    "add_layer_norm": _kind(
        "x residual weight? bias?", "y total", "axes eps has_bias has_weight",
        "total = x + residual, rounded to its dtype; y = layer_norm(total)"),
    "group_norm": _kind(
        "x weight? bias?", "y", "eps groups has_bias has_weight",
        "over the channels of each group and all that follows: x[B, C, ...], weight[C], in float32"),
    "layer_norm": _kind(
        "x weight? bias?", "y", "axes eps has_bias has_weight", "over the last *axes* dimensions, in float32"),
    "rotary": _kind(
        "x cos sin", "y", "style",
        "y = x * cos + rotate(x) * sin, every step rounded to dtype compute (x's, if None), y at the end; style half: "
        "rotate(x) = (-x2, x1) of the two halves of the last dimension; interleaved: of each two neighbours; gathered: "
        "neighbours in x are halves in y, y = half(x[::2], x[1::2]); x and y [..., D], cos and sin [..., D] as y has "
        "its pairs, or [..., D/2] if both of a pair share theirs",
        compute=None),
    "softmax": _kind("x", "y", "dim log", "softmax over dim, log-softmax if log, in at least float32"),
    # pointwise
    "elementwise": _kind("x*", "y", "expr", "y = expr(inputs), see dsf.intent.expression; all inputs have y's shape"),
    "gated_activation": _kind(
        "gate up", "y", "act", "y = act(gate) * up, act(gate) rounded first; act: silu gelu gelu_tanh relu sigmoid"),
    "quantise": _kind(
        "x scale zero?", "y", "has_zero",
        "y = round(x / scale) + zero, halves to even, saturated to y's whole numbers"),
    "copy": _kind("x", "y", "", "y = x, same dtype and shape, any strides"),
    "fill": _kind("", "y", "value", "every element of y = value"),
    "iota": _kind("", "y", "start step", "y[i] = start + i * step"),
    "nothing": _kind("x*", "y*", "", "the operation leaves no defined value: empty tensors, uninitialised memory"),
    # reductions
    "reduce": _kind(
        "x", "y", "dims keepdim op", "op over dims: sum mean prod max min any all; x is converted to y's dtype first, "
        "except for max, min, any and all; 16-bit floats accumulate in float32"),
    "arg_reduce": _kind(
        "x", "values? indices", "dim has_values keepdim op",
        "op argmax or argmin along dim, or over the flattened x if dim is None; the first of equals, NaN wins"),
    "cumsum": _kind("x", "y", "dim", "running sum along dim, in y's dtype"),
    "pool": _kind(
        "x", "y", "kernel op padding stride",
        "op max or mean over windows of the last dimensions, as torch's max_pool and avg_pool; count_padding: a mean "
        "divides by the whole window; the ragged end is a window of its own where *ceil*",
        ceil=False, count_padding=True, dilation=None),
    "sort": _kind("x", "values indices", "descending dim", "sorted along dim; equal ones keep their order"),
    "top_k": _kind("x", "values indices", "dim k largest", "the k largest (or smallest) along dim, in their order"),
    "histogram": _kind("x", "y", "bins high low", "y[i]: how many of x lie in the i-th of *bins* parts of low..high"),
    # movement by index
    "embedding": _kind("ids table", "y", "", "y[..., D] = table[ids[...], D]"),
    "index": _kind("x index*", "y", "dims", "y = x[..., index, ...]: dims are the dimensions the index tensors take"),
    "gather": _kind("x index", "y", "dim", "torch.gather(x, dim, index)"),
    "scatter": _kind(
        "x index src?", "y", "dim has_src reduce value",
        "y = x; y[index along dim] = src (or value, if not has_src); reduce: None or add"),
    "index_put": _kind(
        "x src index*", "y", "accumulate dims", "y = x; y[..., index, ...] = src (+= if accumulate); dims as in index"),
    "concat": _kind("x*", "y", "dim", "the inputs one after the other along dim; appending to a KV cache is this"),
    "kv_append": _kind(
        "cache new position", "y", "dim",
        "y is cache itself, with new written at the places position[...] along dim, which are all different"),
    # between chips
    "collective": _kind(
        "x", "y", "group op reduce",
        "op all_reduce, all_gather, reduce_scatter, all_to_all or broadcast among the ranks *group*; reduce: sum, max, "
        "min, mean or None"),
    # the rest
    "opaque": _kind(
        "x*", "y*", "args kwargs results target",
        "torch.ops.<target>(*args, **kwargs), a Slot(i) standing for input i; results says for each output whether it "
        "is the ('result', j) of the call or the ('input', i) that the call changed"),
}  # fmt: skip


@frozen
class Group:
    """What several intents are together, for a kernel that takes them at once: the *kind* of the whole (gated_ffn),
    the tape's op that names it, and the *role* of this intent (gate, up, gate_up, activation, down)."""

    kind: str
    anchor: int
    role: str


@frozen
class Intent:
    """One thing that a step wants. *ops* are the indices of the tape's operations it covers, the anchor last."""

    kind: str
    inputs: tuple[Region, ...]
    outputs: tuple[Region, ...]
    attrs: tuple[tuple[str, Any], ...] = ()
    ops: tuple[int, ...] = ()
    scope: Scope = Scope()
    site: Site | None = None
    group: Group | None = None

    def attr(self, name: str) -> Any:
        for key, value in self.attrs:
            if key == name:
                return value
        for key, value in KINDS[self.kind].defaults if self.kind in KINDS else ():
            if key == name:
                return value
        known = ", ".join(key for key, _ in self.attrs) or "none"
        raise KeyError(f"a {self.kind} has no attribute {name!r}; it has {known}")

    def in_group(self, kind: str, anchor: int, role: str) -> Intent:
        group = Group(kind, anchor, role)
        return Intent(self.kind, self.inputs, self.outputs, self.attrs, self.ops, self.scope, self.site, group)

    def __str__(self) -> str:
        attrs = ", ".join(f"{name}={text(value) if name == 'expr' else _text(value)}" for name, value in self.attrs)
        ins, outs = (" ".join(map(_operand, regions)) for regions in (self.inputs, self.outputs))
        return f"{self.kind}({attrs}) {ins} -> {outs}"


def _text(value: Any) -> str:
    return str(value).removeprefix("torch.")


def _operand(region: Region) -> str:
    return f"%{region.buffer}[{', '.join(map(str, region.shape))}].{_text(region.dtype)}"


def attributes(kind: str = "", **attrs: Any) -> tuple[tuple[str, Any], ...]:
    """Attributes in their canonical order, without those that have the default of *kind*."""
    defaults = KINDS[kind].defaults if kind else ()
    return tuple(sorted(item for item in attrs.items() if item not in defaults))


GRANULE = 512  # bytes: alignments beyond this are all alike


def _alignment(region: Region) -> int:
    offset = region.offset * region.dtype.itemsize
    return min(offset & -offset, GRANULE) if offset else GRANULE


def _exact(value: Any) -> Any:
    """*value* as something that compares by type as well, since True == 1 == 1.0 and 0.0 == -0.0 in Python."""
    if isinstance(value, tuple):
        return tuple(map(_exact, value))
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, (bool, int)):
        return type(value), value
    return value


def key(intent: Intent) -> tuple[Any, ...]:
    """Equal keys: one program serves both. Kind, attributes, windows (shape, stride, dtype, alignment of the offset up
    to 512 bytes) and, where operands share a buffer, their distance in it; never buffer numbers, scopes or groups."""
    first: dict[int, tuple[int, int]] = {}
    operands = []
    for region in (*intent.inputs, *intent.outputs):
        offset = region.offset * region.dtype.itemsize
        number, base = first.setdefault(region.buffer, (len(first), offset))
        stride = tuple(s if n > 1 else 0 for n, s in zip(region.shape, region.stride, strict=True))
        operands.append((number, offset - base, region.shape, stride, region.dtype, _alignment(region)))
    return intent.kind, len(intent.inputs), _exact(intent.attrs), tuple(operands)
