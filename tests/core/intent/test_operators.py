"""Every operator row: the kind it gives, and that its meaning is what torch computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dsf.intent import meaning
from dsf.intent.expression import text

f32, f16, bf16, i64 = torch.float32, torch.float16, torch.bfloat16, torch.int64


def x(*shape: int, dtype: torch.dtype = f32) -> Tensor:
    return torch.randn(shape).to(dtype)


def ids(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape)


def mask(*shape: int) -> Tensor:
    return torch.rand(shape) > 0.5


GRADIENTS: dict[str, tuple[Any, ...]] = {
    "silu": (), "gelu": (), "sigmoid": (), "tanh": (), "threshold": (0.5,), "hardtanh": (-1, 1),
    "leaky_relu": (0.2, False), "hardswish": (), "softplus": (2, 1),
}  # fmt: skip
"""Operators that give a gradient, with what follows the gradient and the value."""


POINTWISE: dict[str, Callable[..., Any]] = {
    "a number on either side": lambda a: (2.5 - a, 1 / (a + 3), 2.0 * a, a - 1),
    "broadcast": lambda a: (a[:, None] + a[:2] * a[:, :1, None], a + a[0, 0]),
    "alpha": lambda a: (
        torch.add(a, a.exp(), alpha=0.3),
        torch.sub(a, a.exp(), alpha=2),
        torch.rsub(a, a * 3, alpha=2),
    ),
    "powers": lambda a: (a**2, a.abs() ** 0.5, a**3, a**1, 2.0**a, a.abs() ** a),
    "unary": lambda a: (
        a.exp(),
        a.sin(),
        a.cos(),
        a.tanh(),
        a.sigmoid(),
        a.neg(),
        a.abs(),
        a.abs().rsqrt(),
        a.abs().log(),
    ),
    "activations": lambda a: (F.silu(a), F.gelu(a), F.gelu(a, approximate="tanh"), F.relu(a)),
    "more activations": lambda a: (
        F.softplus(a * 9, 2, 10),
        F.mish(a),
        F.relu6(a * 5),
        F.hardtanh(a),
        F.hardswish(a * 3),
        F.hardsigmoid(a * 3),
        F.elu(a, 0.5),
        F.celu(a, 2.0),
        F.selu(a),
        F.leaky_relu(a, 0.2),
        F.threshold(a, 0.1, -3.0),
        F.logsigmoid(a),
        F.prelu(a, torch.tensor([0.3], dtype=a.dtype)),
        F.hardshrink(a),
        F.softshrink(a),
    ),
    "between two": lambda a: (a.lerp(a.exp(), 0.3), a.lerp(a.exp(), 0.9), a.lerp(a.exp(), a.sigmoid())),
    "rounding": lambda a: (a.floor(), a.ceil(), a.round(), a.trunc(), a.sign()),
    "clamps": lambda a: (a.clamp(-0.5, 0.5), a.clamp(min=0.1), a.clamp_max(0.2), torch.maximum(a, a * 2)),
    "comparisons": lambda a: (a > 0, a.eq(0.5), (a < a.exp()) & (a >= -1), ~(a != a)),
    "choices": lambda a: (
        torch.where(a > 0, a, 0.0),
        a.masked_fill(a < 0, float("-inf")),
        torch.where(a > 0, a, a * 2),
    ),
    "odd values": lambda a: (
        torch.isnan(a / 0 - a / 0),
        torch.isinf(a / 0),
        (a / 0).clamp(-1, 1),
        torch.nan_to_num(a / 0 - a / 0, 3.0),
        torch.nan_to_num(a / 0),
        torch.nan_to_num(a / 0, posinf=1.0, neginf=-2.0),
    ),
    "casts": lambda a: (a.to(f16), a.to(i64), (a > 0).to(f32), a.to(torch.float64) * 2),
    "mixed widths": lambda a: (a.to(f16) + a, a.to(f16) * torch.tensor(3.0), (a > 0) * a, a + (a > 0)),
    "division modes": lambda a: (a // 0.3, a % 0.3, torch.div(a, 0.3, rounding_mode="trunc"), torch.fmod(a, 0.3)),
    "gradients": lambda a: tuple(
        getattr(torch.ops.aten, f"{name}_backward").default(a.cos(), a * 3, *more) for name, more in GRADIENTS.items()
    ),
    "multiply and add": lambda a: (torch.addcmul(a, a, a, value=0.5), torch.addcdiv(a, a, a.exp(), value=0.1)),
}

INTEGER: dict[str, Callable[..., Any]] = {
    "arithmetic": lambda a: (a + 1, a * a, a - 3, 1 - a, a // 3, a % 3, a / 3, -a, a.abs(), a**2),
    "bits": lambda a: (a & 6, a | 1, a ^ a, ~a),
    "logic": lambda a: (torch.logical_and(a, a > 2), torch.logical_not(a), torch.logical_or(a, a < 0)),
    "bool algebra": lambda a: ((a > 2) | (a < 1), ~(a > 2), (a > 2) & (a > 3), (a > 2) ^ (a > 3), (a > 1) + (a > 2)),
    "comparisons": lambda a: (a == 3, a.lt(2), a.ne(0).to(i64), a >= a.float()),
    "membership": lambda a: (torch.isin(a, torch.tensor([1, 3, 7])), torch.isin(a, torch.tensor([2]), invert=True)),
    "number types": lambda a: (a + 1.5, a * True, (a > 2) + 1, a.to(torch.int32) + a),
}


@pytest.mark.parametrize("name", POINTWISE)
@pytest.mark.parametrize("dtype", [f32, f16], ids=["float32", "float16"])
def test_a_pointwise_operator_means_what_torch_computes(record, name, dtype):
    recording = record(POINTWISE[name], x(6, 4, dtype=dtype))
    assert set(recording.kinds()) <= {"elementwise", "copy", "fill"}
    fused = ("alpha", "multiply and add")  # torch rounds these as one, and rounds alpha first
    formulas = ("more activations", "between two", "gradients")  # in another order than torch's
    tolerance = (2e-6 if dtype == f32 else 2e-3) if name in (*fused, *formulas) else 0
    recording.assert_same(tolerance, tolerance)


@pytest.mark.parametrize("name", INTEGER)
def test_integer_and_bool_glue_is_pointwise_too(record, name):
    recording = record(INTEGER[name], ids(8, 5, 3))
    assert set(recording.kinds()) <= {"elementwise", "copy", "fill"}
    recording.assert_same()


def put(target: Tensor, *indices: Any, accumulate: bool = False) -> Tensor:
    return torch.index_put(target, indices[:-1], indices[-1], accumulate)


ROWS: list[tuple[str, str, Callable[..., Any], tuple[Any, ...]]] = [
    ("a linear layer", "linear", F.linear, (x(2, 3, 8), x(5, 8))),
    ("with bias", "linear", F.linear, (x(3, 8), x(5, 8), x(5))),
    ("mm with a plain matrix", "linear", torch.mm, (x(3, 8), x(8, 5))),
    ("mm with a transposed matrix", "linear", lambda a, w: torch.mm(a, w.t()), (x(3, 8), x(5, 8))),
    ("addmm", "linear", torch.addmm, (x(5), x(3, 8), x(8, 5))),
    ("a matrix times a vector", "linear", torch.mv, (x(3, 8), x(8))),
    ("a scalar product", "linear", torch.dot, (x(8), x(8))),
    ("matmul with a matrix", "linear", torch.matmul, (x(2, 3, 8), x(8, 5))),
    ("bmm", "matmul", torch.bmm, (x(4, 3, 8), x(4, 8, 5))),
    ("matmul over broadcast batches", "matmul", torch.matmul, (x(2, 1, 3, 8), x(4, 8, 5))),
    ("a vector times matrices", "matmul", torch.matmul, (x(8), x(4, 8, 5))),
    ("softmax", "softmax", lambda a: torch.softmax(a, -1), (x(3, 7),)),
    ("softmax of halves in float32", "softmax", lambda a: F.softmax(a, dim=0, dtype=f32), (x(3, 7, dtype=f16),)),
    ("log softmax", "softmax", lambda a: torch.log_softmax(a, 1), (x(3, 7),)),
    ("layer norm", "layer_norm", lambda a, w, b: F.layer_norm(a, (7,), w, b), (x(3, 7), x(7), x(7))),
    ("layer norm over two axes", "layer_norm", lambda a: F.layer_norm(a, (3, 7), eps=1e-3), (x(2, 3, 7),)),
    ("rms norm", "rms_norm", lambda a, w: F.rms_norm(a, (7,), w, 1e-6), (x(3, 7), x(7))),
    ("sum", "reduce", lambda a: a.sum((0, -1)), (x(3, 4, 5),)),
    ("sum of everything", "reduce", lambda a: a.sum(), (x(3, 4),)),
    ("sum of bools", "reduce", lambda a: a.sum(-1), (mask(3, 9),)),
    ("mean", "reduce", lambda a: a.mean(-1, keepdim=True), (x(3, 4),)),
    ("mean in another dtype", "reduce", lambda a: a.mean(0, dtype=f32), (x(3, 4, dtype=f16),)),
    ("product", "reduce", lambda a: a.prod(1), (x(3, 4),)),
    ("largest", "reduce", lambda a: a.amax((0, 1)), (x(3, 4),)),
    ("smallest of all", "reduce", lambda a: a.min(), (ids(9, 3, 4),)),
    ("any", "reduce", lambda a: a.any(), (mask(3, 4),)),
    ("all along", "reduce", lambda a: a.all(-1, keepdim=True), (mask(3, 4),)),
    ("argmax", "arg_reduce", lambda a: a.argmax(-1), (x(3, 9),)),
    ("argmax of everything", "arg_reduce", lambda a: a.argmax(), (x(3, 9),)),
    ("argmin kept", "arg_reduce", lambda a: a.argmin(0, keepdim=True), (x(3, 9),)),
    ("max with its place", "arg_reduce", lambda a: tuple(a.max(-1)), (x(3, 9),)),
    ("min with its place", "arg_reduce", lambda a: tuple(a.min(0, keepdim=True)), (x(3, 9),)),
    ("cumsum", "cumsum", lambda a: a.cumsum(-1), (ids(2, 2, 7),)),
    ("cumsum of bools", "cumsum", lambda a: a.cumsum(0), (mask(5, 2),)),
    ("embedding", "embedding", F.embedding, (ids(11, 2, 5), x(11, 4))),
    ("rows by index", "index", lambda a, i: a[i], (x(5, 4), ids(5, 2, 3))),
    ("columns by index", "index", lambda a, i: a[:, i], (x(5, 4), ids(4, 6))),
    ("pairs by index", "index", lambda a, i, j: a[i, j], (x(5, 4), ids(5, 3, 1), ids(4, 2))),
    ("split pairs by index", "index", lambda a, i, j: a[i, :, j], (x(5, 4, 3), ids(5, 2), ids(3, 2))),
    ("index_select", "index", lambda a, i: a.index_select(1, i), (x(5, 4), ids(4, 6))),
    ("gather", "gather", lambda a, i: a.gather(1, i), (x(5, 4), ids(4, 5, 2))),
    ("scatter", "scatter", lambda a, i, s: a.scatter(1, i, s), (x(2, 4), torch.tensor([[1, 3], [0, 2]]), x(2, 2))),
    ("scatter of a number", "scatter", lambda a, i: a.scatter(1, i, 7.0), (x(2, 4), torch.tensor([[1, 3], [0, 2]]))),
    ("scatter add", "scatter", lambda a, i, s: a.scatter_add(1, i, s), (x(2, 4), ids(1, 2, 3), x(2, 3))),
    ("put", "index_put", put, (x(5, 4), torch.tensor([0, 3]), x(2, 4))),
    ("put and add", "index_put", lambda a, i, s: put(a, i, s, accumulate=True), (x(5, 4), torch.tensor([1, 1]), x(4))),
    ("index copy", "index_put", lambda a, i, s: a.index_copy(1, i, s), (x(5, 4), torch.tensor([2, 0]), x(5, 2))),
    ("cat", "concat", lambda a, b: torch.cat((a, b), -2), (x(2, 3, 4), x(2, 1, 4))),
    ("stack", "concat", lambda a, b: torch.stack((a, b), -1), (x(2, 3), x(2, 3))),
    ("cat with the empty tensor", "copy", lambda a: torch.cat((torch.tensor([]), a), 1), (x(2, 3),)),
    ("repeat", "copy", lambda a: a.repeat(2, 3, 1), (x(2, 3),)),
    ("clone of a transposed view", "copy", lambda a: a.t().contiguous(), (x(2, 3),)),
    ("expand and clone", "copy", lambda a: a.expand(4, 3).clone(), (x(1, 3),)),
    ("full", "fill", lambda a: torch.full((2, 2), 3.5), (x(1),)),
    ("zeros like", "fill", torch.zeros_like, (x(3),)),
    ("arange", "iota", lambda a: torch.arange(5), (x(1),)),
    ("arange with steps", "iota", lambda a: torch.arange(1, 2, 0.25), (x(1),)),
    ("topk", "top_k", lambda a: tuple(a.topk(2)), (x(3, 5),)),
    ("smallest of a column", "top_k", lambda a: tuple(a.topk(2, 0, largest=False)), (x(3, 5),)),
    ("sort", "sort", lambda a: tuple(a.sort()), (x(3, 5),)),
    ("sort down a column", "sort", lambda a: tuple(a.sort(0, descending=True)), (x(3, 5),)),
    ("stable sort of equals", "sort", lambda a: tuple(a.sort(stable=True, descending=True)), (ids(2, 3, 9),)),
    ("argsort", "sort", lambda a: a.argsort(-1), (x(3, 5),)),
    ("histogram", "histogram", lambda a: a.histc(4, 0, 3), (ids(4, 9).float(),)),
    ("a histogram of the values' own range", "opaque", lambda a: a.histc(4), (x(9),)),
    ("convolution", "convolution", lambda a, w, b: F.conv2d(a, w, b, 2, 1), (x(2, 3, 8, 9), x(5, 3, 3, 2), x(5))),
    ("convolution of one dimension", "convolution", lambda a, w: F.conv1d(a, w, padding=1), (x(2, 3, 8), x(5, 3, 3))),
    ("convolution of three", "convolution", F.conv3d, (x(1, 2, 4, 5, 6), x(3, 2, 2, 2, 2))),
    ("depthwise, dilated", "convolution", lambda a, w: F.conv2d(a, w, dilation=(1, 2), groups=3),
     (x(2, 3, 8, 8), x(6, 1, 3, 3))),
    ("transposed convolution", "convolution", lambda a, w: F.conv_transpose2d(a, w, stride=2, output_padding=1),
     (x(2, 3, 4, 4), x(3, 5, 3, 3))),
    ("max pool", "pool", lambda a: F.max_pool2d(a, 3, 2, 1), (x(2, 3, 8, 8),)),
    ("max pool with holes and a ragged end", "pool", lambda a: F.max_pool2d(a, 2, 3, dilation=2, ceil_mode=True),
     (x(2, 3, 9, 9),)),
    ("max pool with its places", "opaque", lambda a: F.max_pool2d(a, 2, return_indices=True), (x(2, 3, 8, 8),)),
    ("mean pool", "pool", lambda a: F.avg_pool2d(a, (2, 3), padding=1, count_include_pad=False), (x(2, 3, 8, 9),)),
    ("mean pool of one dimension", "pool", lambda a: F.avg_pool1d(a, 2), (x(2, 3, 8),)),
    ("mean pool with a divisor of its own", "opaque", lambda a: F.avg_pool2d(a, 2, divisor_override=3),
     (x(2, 3, 8, 8),)),
    ("adaptive mean of all", "reduce", lambda a: F.adaptive_avg_pool2d(a, 1), (x(2, 3, 8, 8),)),
    ("adaptive mean of equal parts", "pool", lambda a: F.adaptive_avg_pool2d(a, (4, 2)), (x(2, 3, 8, 8),)),
    ("adaptive mean of unequal parts", "opaque", lambda a: F.adaptive_avg_pool2d(a, 3), (x(2, 3, 8, 8),)),
    ("adaptive largest", "pool", lambda a: F.adaptive_max_pool2d(a, 2), (x(2, 3, 8, 8),)),
    ("group norm", "group_norm", lambda a, w, b: F.group_norm(a, 2, w, b, 1e-3), (x(2, 4, 5, 5), x(4), x(4))),
    ("instance norm", "group_norm", lambda a: F.group_norm(a, 4), (x(2, 4, 5),)),
    ("batch norm that is trained", "elementwise", lambda a, m, v, w, b: F.batch_norm(a, m, v, w, b),
     (x(2, 4, 5, 5), x(4), x(4).abs() + 1, x(4), x(4))),
    ("batch norm that trains", "opaque", lambda a, m, v: F.batch_norm(a, m, v, training=True),
     (x(2, 4, 5, 5), x(4), x(4).abs() + 1)),
    ("a product of bytes", "linear", lambda a, w: torch._int_mm(a, w.t()),
     (torch.randint(-128, 128, (20, 16), dtype=torch.int8), torch.randint(-128, 128, (8, 16), dtype=torch.int8))),
    ("experts", "grouped_linear", lambda a, w, e: torch._grouped_mm(a, w, offs=e),
     (x(7, 8, dtype=bf16), x(3, 8, 16, dtype=bf16), torch.tensor([2, 2, 7], dtype=torch.int32))),
    ("experts stored the other way", "grouped_linear", lambda a, w, e: torch._grouped_mm(a, w.mT, offs=e),
     (x(7, 8, dtype=bf16), x(3, 16, 8, dtype=bf16), torch.tensor([1, 4, 7], dtype=torch.int32))),
    ("weights in bytes", "quant_linear", torch._weight_int8pack_mm,
     (x(3, 32), torch.randint(-128, 128, (16, 32), dtype=torch.int8), x(16) / 64)),
    ("addmm without its addend", "linear", lambda b, a, w: torch.addmm(b, a, w, beta=0), (x(5), x(3, 8), x(8, 5))),
    ("baddbmm without its addend", "matmul", lambda b, a, w: torch.baddbmm(b, a, w, beta=0),
     (x(2, 3, 5), x(2, 3, 8), x(2, 8, 5))),
    ("index add", "index_put", lambda a, i, s: a.index_add(0, i, s), (x(5, 4), torch.tensor([1, 1]), x(2, 4))),
    ("scatter reduce to a sum", "scatter", lambda a, i, s: a.scatter_reduce(1, i, s, "sum"),
     (x(2, 4), ids(4, 2, 3), x(2, 3))),
    ("scatter reduce without the old values", "opaque",
     lambda a, i, s: a.scatter_reduce(1, i, s, "sum", include_self=False), (x(2, 4), ids(4, 2, 3), x(2, 3))),
    ("scatter reduce to a product", "opaque", lambda a, i, s: a.scatter_reduce(1, i, s, "prod"),
     (x(2, 4), ids(4, 2, 3), x(2, 3))),
    ("roll", "concat", lambda a: a.roll(2, 1), (x(3, 5),)),
    ("roll backwards", "concat", lambda a: a.roll(-1, 0), (x(3, 5),)),
    ("roll of everything", "concat", lambda a: a.roll(4), (x(3, 5),)),
    ("roll once around", "copy", lambda a: a.roll(5, 1), (x(3, 5),)),
    ("upsampling to the nearest", "copy", lambda a: F.interpolate(a, scale_factor=(2, 3)), (x(1, 2, 3, 4),)),
    ("upsampling to a size", "copy", lambda a: F.interpolate(a, size=(6, 4)), (x(1, 2, 3, 4),)),
    ("upsampling by a half", "opaque", lambda a: F.interpolate(a, scale_factor=1.5), (x(1, 2, 4, 4),)),
    ("upsampling by a little more than two", "opaque", lambda a: F.interpolate(a, scale_factor=2.1), (x(1, 2, 5, 5),)),
    ("gated linear unit", "gated_activation", lambda a: F.glu(a, 1), (x(3, 6, 2),)),
    ("a lower triangle", "opaque", torch.tril, (x(3, 3),)),
    ("a bool index", "opaque", lambda a, m: a[m], (x(3, 3), torch.eye(3) > 0)),
]  # fmt: skip


LOOSE = frozenset({"linear", "matmul", "rms_norm", "layer_norm", "group_norm", "quant_linear", "gated_activation"})
"""Kinds that may add up in another order than the operator."""


@pytest.mark.parametrize(("name", "kind", "function", "inputs"), ROWS, ids=[row[0] for row in ROWS])
def test_an_operator_becomes_its_kind_with_the_same_numbers(record, name, kind, function, inputs):
    recording = record(function, *inputs)
    assert recording.kinds()[-1] == kind
    loose = kind in LOOSE or recording.results[0].dtype == f16 or name.startswith("batch norm")
    recording.assert_same(rtol=1e-5 if loose else 0, atol=1e-5 if loose else 0)


def test_linear_says_how_its_weight_is_stored(record):
    assert record(torch.mm, x(3, 8), x(8, 5)).only("linear").attr("transposed") is False
    stored = record(lambda a, w: a @ w.t(), x(3, 8), x(5, 8)).only("linear")
    assert (stored.attr("transposed"), stored.inputs[1].shape, stored.inputs[1].stride) == (True, (5, 8), (8, 1))


def test_broadcast_is_written_as_stride_0(record):
    intent = record(lambda a, b: a + b, x(3, 1), x(4)).only("elementwise")
    assert [(r.shape, r.stride) for r in intent.inputs] == [((3, 4), (1, 0)), ((3, 4), (0, 1))]
    batched = record(torch.matmul, x(2, 1, 3, 8), x(4, 8, 5)).only("matmul")
    assert [r.stride for r in batched.inputs] == [(24, 0, 8, 1), (0, 40, 5, 1)]


def test_attention_of_grouped_queries_keeps_the_few_heads(record):
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True, scale=0.5)

    recording = record(attend, x(1, 6, 5, 8), x(1, 2, 5, 8), x(1, 2, 5, 8))
    intent = recording.only("attention")
    assert dict(intent.attrs) == {"causal": True, "groups": 3, "has_mask": False, "scale": 0.5}
    recording.assert_same(1e-5, 1e-6)


def test_the_causal_mask_starts_top_left(record):
    """Row 0 sees column 0 only, whatever the lengths: torch's rule for is_causal."""

    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    recording = record(attend, x(1, 1, 2, 4), x(1, 1, 5, 4), x(1, 1, 5, 4))
    (found,) = recording.after(recording.parsed())
    values = recording.before[recording.only("attention").inputs[2].buffer].view(f32).reshape(5, 4)
    torch.testing.assert_close(found[0, 0, 0], values[0])


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_mask_gets_four_dimensions(record, kind):
    given = mask(5, 7) | (torch.arange(7) == 0) if kind == "bool" else x(5, 7)
    recording = record(
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
        x(2, 3, 5, 8),
        x(2, 3, 7, 8),
        x(2, 3, 7, 8),
        given,
    )
    assert recording.only("attention").inputs[3].shape == (2, 3, 5, 7)
    assert recording.only("attention").inputs[3].stride == (0, 0, 7, 1)
    recording.assert_same(1e-5, 1e-6)


def test_attention_without_a_batch_gets_one(record):
    recording = record(F.scaled_dot_product_attention, x(3, 5, 8), x(3, 5, 8), x(3, 5, 8))
    assert recording.only("attention").outputs[0].shape == (1, 3, 5, 8)


def test_dropout_inside_attention_is_not_plain_attention(record):
    recording = record(lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5), x(1, 3, 5, 8))
    assert recording.kinds() == ["opaque"]


def test_an_empty_result_wants_nothing(record):
    assert record(lambda a: a[:0] * 2, x(3, 4)).kinds() == ["nothing"]


def test_a_reduction_over_nothing_is_left_to_torch(record):
    recording = record(lambda a: a[:, :0].sum(1), x(3, 4))
    assert recording.kinds() == ["opaque"]
    recording.assert_same()


def test_the_scale_of_addmm_is_not_ignored(record):
    recording = record(lambda b, a, w: torch.addmm(b, a, w, alpha=2.0), x(5), x(3, 8), x(8, 5))
    assert recording.kinds() == ["opaque"]
    recording.assert_same()


def test_native_layer_norm_is_one_only_while_its_statistics_stay_unseen(record):
    unseen = record(lambda a: torch.native_layer_norm(a, (4,), None, None, 1e-5)[0], x(3, 4))
    assert unseen.kinds() == ["layer_norm"]
    seen = record(lambda a: torch.native_layer_norm(a, (4,), None, None, 1e-5)[:2], x(3, 4))
    assert seen.kinds() == ["opaque"]


def test_an_opaque_operation_that_writes_its_argument_leaves_the_same_bytes(record):
    recording = record(lambda a: a.tril_(), x(4, 4))
    assert recording.only("opaque").attr("results") == (("input", 0),)
    recording.assert_same()


def test_the_out_argument_is_written(record):
    recording = record(lambda a, b, out: torch.add(a, b, out=out), x(3, 4), x(3, 4), torch.empty(3, 4))
    assert recording.kinds() == ["elementwise"]
    recording.assert_same()


def test_the_sum_of_bools_is_their_or(record):
    """No chip adds bits; torch's answer is the same."""
    recording = record(lambda a: (a > 0) + (a < -1), x(3, 4))
    assert text(recording.only("elementwise").attr("expr")) == "or(gt(x0, 0.0), lt(x0, -1.0))"
    recording.assert_same()


def test_meaning_never_changes_its_inputs(record):
    intent = record(lambda a: a.tril_(), x(4, 4)).only("opaque")
    given = torch.ones(4, 4)
    (found,) = meaning(intent, given)
    assert given.sum() == 16
    assert found.sum() == 10
