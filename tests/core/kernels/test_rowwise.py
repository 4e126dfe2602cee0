"""Kernels over whole rows: norms, softmax, rotary embedding, gating, reductions, running sums.

Bounds. u(t) is half a unit in the last place of format t relative to a value: 2^-24 for float32, 2^-11 for float16,
2^-8 for bfloat16. A float32 sum of n terms is off by at most n * u32 times the sum of magnitudes; every further float32
step adds u32, a transcendental one 2 * u32 (torch's are within an ulp). The stored result adds u(t) of itself.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from dsf import errors
from dsf.intent.meaning import meaning

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
U32 = 2.0**-24
NARROW = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}
TINY = {torch.float16: 2.0**-25, torch.bfloat16: 2.0**-134, torch.float32: 2.0**-149}  # half a step of subnormals

SHAPES = [(1, 1), (1, 7), (5, 64), (3, 1, 131), (2, 3, 5, 16), (37, 53), (1, 576), (200, 17)]

lies = pytest.mark.parametrize(
    "lie", ["dense", "padded", "transposed", "every other", "expanded rows", "expanded columns"]
)
formats = pytest.mark.parametrize("dtype", FLOATS, ids=str)
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def laid(tensor: torch.Tensor, lie: str) -> torch.Tensor:
    """The tensor (or one of its shape) as it may lie in memory."""
    *lead, last = tensor.shape
    if lie == "padded":
        return torch.zeros(*lead, last + 5, dtype=tensor.dtype)[..., 2 : last + 2].copy_(tensor)
    if lie == "transposed":
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if lie == "every other":
        return torch.zeros(*lead, last * 2, dtype=tensor.dtype)[..., ::2].copy_(tensor)
    if lie == "expanded rows":
        return tensor[:1].contiguous().expand_as(tensor)
    if lie == "expanded columns":
        return tensor[..., :1].contiguous().expand_as(tensor)
    return tensor


def normed(x: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.double()
    return wide / torch.sqrt(wide.pow(2).mean(-1, keepdim=True) + eps)


def norm_bound(wanted: torch.Tensor, width: int, roundings: int) -> torch.Tensor:
    """The sum of squares has only positive terms: width * u32 of the mean, half of that of its root; square, scale,
    eps, root and product five steps more, each to within u32 or 2 u32; then *roundings* of the stored format."""
    dtype = wanted.dtype
    return wanted.double().abs() * ((width / 2 + 8) * U32 + roundings * 1.01 * NARROW[dtype]) + 2 * TINY[dtype]


@formats
@shapes
def test_rms_norm_is_the_root_mean_square_norm(bench, shape, dtype):
    """Llama's form: the normed value is rounded, then the product with the weight."""
    x, weight = torch.randn(shape).to(dtype), torch.randn(shape[-1]).to(dtype)
    run = bench.run(
        "rms_norm", [x, weight], [bench.out(shape, dtype)], eps=1e-5, compute=torch.float32, weight_after_cast=True
    )
    wanted = normed(x, 1e-5) * weight.double()
    inner = 2 * TINY[dtype] * weight.double().abs()  # a normed value may be subnormal
    run.within(wanted, norm_bound(wanted.to(dtype), shape[-1], 2) + inner)
    run.agrees()
    if dtype != torch.float32:
        assert run.ulps(wanted) <= 2


@formats
@lies
def test_rms_norm_takes_operands_as_they_lie(bench, lie, dtype):
    x, weight = laid(torch.randn(4, 3, 33).to(dtype), lie), laid(torch.randn(33).to(dtype), lie)
    out = laid(bench.out((4, 3, 33), dtype), lie) if not lie.startswith("expanded") else bench.out((4, 3, 33), dtype)
    run = bench.run("rms_norm", [x, weight], [out], eps=1e-5, compute=torch.float32, weight_after_cast=False)
    wanted = normed(x, 1e-5) * weight.double()
    run.within(wanted, norm_bound(wanted.to(dtype), 33, 1))
    run.agrees()


@formats
def test_a_weight_of_another_format_multiplies_before_the_only_rounding(bench, dtype):
    x, weight = torch.randn(6, 40).to(dtype), torch.randn(40)
    run = bench.run(
        "rms_norm", [x, weight], [bench.out((6, 40), dtype)], eps=1e-6, compute=torch.float32, weight_after_cast=False
    )
    wanted = normed(x, 1e-6) * weight.double()
    run.within(wanted, norm_bound(wanted.to(dtype), 40, 1))


def layer_normed(x: torch.Tensor, axes: int, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The normed value in float64 and a bound of its float32 error.

    mean: n * u32 of the mean magnitude a, so centred is off by (n + 2) * u32 * a + u32 * |centred|; relative to the
    deviation s that is an absolute error of (n + 2) * u32 * a / s in the result, its variance's share is half of
    (n + 4) * u32 of itself and of 2 * (n + 2) * u32 * a / s, as in rms_norm."""
    wide = x.double()
    dims = tuple(range(-axes, 0))
    n = x[(0,) * (x.dim() - axes)].numel()
    mean = wide.mean(dims, keepdim=True)
    deviation = torch.sqrt((wide - mean).pow(2).mean(dims, keepdim=True) + eps)
    result = (wide - mean) / deviation
    shift = (n + 2) * U32 * wide.abs().mean(dims, keepdim=True) / deviation
    return result, shift * (1 + result.abs()) + (n / 2 + 8) * U32 * result.abs()


@formats
@pytest.mark.parametrize(("shape", "axes"), [*((s, 1) for s in SHAPES[1:]), ((4, 3, 5, 7), 2), ((2, 6, 8), 3)], ids=str)
@pytest.mark.parametrize("affine", ["", "weight", "bias", "weight bias"])
def test_layer_norm_is_torchs(bench, shape, axes, affine, dtype):
    x = torch.randn(shape).to(dtype) * 3 + 1
    has_weight, has_bias = "weight" in affine, "bias" in affine
    rest = [torch.randn(shape[-axes:]).to(dtype) for wanted in (has_weight, has_bias) if wanted]
    run = bench.run(
        "layer_norm",
        [x, *rest],
        [bench.out(shape, dtype)],
        axes=axes,
        eps=1e-5,
        has_weight=has_weight,
        has_bias=has_bias,
    )
    wanted, bound = layer_normed(x, axes, 1e-5)
    if has_weight:
        wanted, bound = wanted * rest[0].double(), bound * rest[0].double().abs() + U32 * wanted.abs()
    if has_bias:
        wanted, bound = wanted + rest[-1].double(), bound + U32 * (wanted.abs() + rest[-1].double().abs())
    run.within(wanted, bound + 1.01 * NARROW[dtype] * (wanted.abs() + bound) + TINY[dtype])
    run.agrees()


@formats
@lies
def test_layer_norm_takes_operands_as_they_lie(bench, lie, dtype):
    x, weight = laid(torch.randn(4, 3, 33).to(dtype), lie), laid(torch.randn(33).to(dtype), lie)
    run = bench.run(
        "layer_norm", [x, weight], [bench.out((4, 3, 33), dtype)], axes=1, eps=1e-5, has_weight=True, has_bias=False
    )
    wanted, bound = layer_normed(x, 1, 1e-5)
    wanted, bound = wanted * weight.double(), bound * weight.double().abs() + U32 * wanted.abs()
    run.within(wanted, bound + 1.01 * NARROW[dtype] * (wanted.abs() + bound) + TINY[dtype])
    run.agrees()


def softmax_bound(x: torch.Tensor, dim: int, log: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """x - max is off by u32 of itself, which exp turns into that share of the result, and adds 2 * u32; the sum of n
    powers n * u32, the division u32. The logarithm: 2 * u32 of log(sum), n + 4 * u32 of the sum, absolute."""
    wide, n = x.double(), x.shape[dim]
    shift = (wide - wide.amax(dim, keepdim=True)).abs()
    if log:
        wanted = torch.log_softmax(wide, dim)
        return wanted, U32 * (shift + 2 * wanted.abs() + 2 * (n + 8) + shift.amax(dim, keepdim=True))
    wanted = torch.softmax(wide, dim)
    return wanted, wanted * U32 * (shift + (shift * wanted).sum(dim, keepdim=True) + n + 8)


@formats
@pytest.mark.parametrize("log", [False, True], ids=["softmax", "log"])
@pytest.mark.parametrize(
    ("shape", "dim"),
    [((1, 1), 1), ((7,), 0), ((5, 64), 1), ((5, 64), 0), ((3, 1, 131), 2), ((2, 3, 5, 16), 1), ((2, 3, 5, 16), 2),
     ((37, 53), 1)], ids=str,
)  # fmt: skip
def test_softmax_is_torchs(bench, shape, dim, log, dtype):
    x = (torch.randn(shape) * 4).to(dtype)
    run = bench.run("softmax", [x], [bench.out(shape, dtype)], dim=dim, log=log)
    wanted, bound = softmax_bound(x, dim, log)
    run.within(wanted, bound + 1.01 * NARROW[dtype] * (wanted.abs() + bound) + TINY[dtype])
    run.agrees()


@lies
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_softmax_takes_operands_as_they_lie(bench, lie, dim):
    x = laid(torch.randn(4, 3, 33).half(), lie)
    run = bench.run("softmax", [x], [bench.out(x.shape, x.dtype)], dim=dim, log=False)
    wanted, bound = softmax_bound(x, dim, False)
    run.within(wanted, bound + 1.01 * NARROW[x.dtype] * (wanted.abs() + bound) + TINY[x.dtype])
    run.agrees()


def test_softmax_keeps_nan_and_infinities_as_torch_does(bench):
    """A row of minus infinities has no softmax: NaN, as in torch.softmax."""
    inf, nan = torch.inf, torch.nan
    x = torch.tensor([[-inf, -inf, -inf], [-inf, 0.0, 1.0], [nan, 0.0, 1.0], [inf, 0.0, 1.0]])
    run = bench.run("softmax", [x], [bench.out((4, 3), x.dtype)], dim=1, log=False)
    run.within(torch.softmax(x.double(), 1), 8 * U32)


@formats
@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (1, 3, 5, 64), (2, 3, 1, 16), (1, 9, 131, 6)], ids=str)
def test_rotary_rounds_every_step(bench, shape, dtype):
    """Products and sums of two numbers of a format, each rounded to it, are the same whoever computes them."""
    x = torch.randn(shape).to(dtype)
    cos, sin = (torch.randn(shape[0], 1, *shape[2:]).to(dtype).expand(shape) for _ in range(2))
    run = bench.run("rotary", [x, cos, sin], [bench.out(shape, dtype)], style="half")
    half = shape[-1] // 2
    run.equals(x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin)
    run.agrees()


def test_rotary_reads_heads_where_the_projection_left_them(bench):
    """[batch, seq, heads, dim] seen as [batch, heads, seq, dim], the tables repeated over heads."""
    x = torch.randn(1, 5, 3, 16).half().transpose(1, 2)
    cos, sin = (torch.randn(1, 1, 5, 16).half().expand(1, 3, 5, 16) for _ in range(2))
    run = bench.run("rotary", [x, cos, sin], [bench.out((1, 3, 5, 16), x.dtype)], style="half")
    run.equals(x * cos + torch.cat((-x[..., 8:], x[..., :8]), -1) * sin)


ACTIVATIONS = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
}


@formats
@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(1, 1), (1, 3, 131), (37, 53), (2, 40, 64)], ids=str)
def test_gated_activations_round_the_activation_first(bench, act, shape, dtype):
    """The activation is off by 16 * u32 of max(1, |x|) (gelu cancels below zero: 1 + erf(x) near -1) and rounded;
    then the product is."""
    gate, up = (torch.randn(shape) * 3).to(dtype), torch.randn(shape).to(dtype)
    run = bench.run("gated_activation", [gate, up], [bench.out(shape, dtype)], act=act)
    opened = ACTIVATIONS[act](gate.double())
    slack = 16 * U32 * gate.double().abs().clamp(min=1) + 1.01 * NARROW[dtype] * opened.abs() + TINY[dtype]
    wanted, bound = opened * up.double(), slack * up.double().abs()
    run.within(wanted, bound + 1.01 * NARROW[dtype] * (wanted.abs() + bound) + TINY[dtype])
    run.agrees()


@pytest.mark.parametrize("lie", ["padded", "transposed", "every other", "expanded rows", "expanded columns"])
def test_gated_activation_takes_halves_of_one_projection(bench, lie):
    gate, up = laid(torch.randn(4, 3, 33).half(), lie), laid(torch.randn(4, 3, 33).half(), "padded")
    run = bench.run("gated_activation", [gate, up], [bench.out(gate.shape, gate.dtype)], act="relu")
    run.equals(torch.relu(gate) * up)


def test_a_gated_activation_may_take_the_place_of_its_gate(bench):
    gate, up = torch.randn(130, 70).half(), torch.randn(130, 70).half()
    bench.run("gated_activation", [gate, up], [gate], act="relu").equals(torch.relu(gate) * up)


# Reductions

REDUCED = [
    ((7,), (0,)), ((5, 64), (1,)), ((5, 64), (0,)), ((5, 64), (0, 1)), ((2, 3, 5), (1,)), ((2, 3, 5), (0, 1)),
    ((2, 3, 5), (1, 2)), ((2, 3, 5), (0, 2)), ((2, 3, 5), (0, 1, 2)), ((1, 1), (0,)), ((3, 1, 131), (1, 2)),
]  # fmt: skip
FUNCTIONS = {
    "sum": torch.sum,
    "mean": torch.mean,
    "max": torch.amax,
    "min": torch.amin,
    "any": torch.any,
    "all": torch.all,
}


@formats
@pytest.mark.parametrize("keepdim", [False, True], ids=["dropped", "kept"])
@pytest.mark.parametrize(("shape", "dims"), REDUCED, ids=str)
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_sums_and_means_are_rounded_once(bench, op, shape, dims, keepdim, dtype):
    """n * u32 of the sum of magnitudes, one step more for the mean."""
    x = torch.randn(shape).to(dtype)
    wanted = FUNCTIONS[op](x.double(), dims, keepdim)
    run = bench.run("reduce", [x], [bench.out(wanted.shape, dtype)], op=op, dims=dims, keepdim=keepdim)
    n = x.numel() // wanted.numel()
    bound = (n + 1) * U32 * FUNCTIONS[op](x.double().abs(), dims, keepdim)
    run.within(wanted, bound + 1.01 * NARROW[dtype] * (wanted.abs() + bound) + TINY[dtype])
    run.agrees()


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize(("shape", "dims"), REDUCED, ids=str)
@pytest.mark.parametrize("op", ["max", "min"])
def test_extremes_are_exact(bench, op, shape, dims, dtype):
    x = (torch.randn(shape) * 50).to(dtype)
    wanted = FUNCTIONS[op](x, dims)
    bench.run("reduce", [x], [bench.out(wanted.shape, dtype)], op=op, dims=dims, keepdim=False).equals(wanted)


@pytest.mark.parametrize("op", ["max", "min", "sum"])
def test_a_nan_wins_every_reduction(bench, op):
    x = torch.tensor([[1.0, torch.nan, 3.0], [1.0, 2.0, 3.0]]).half()
    run = bench.run("reduce", [x], [bench.out((2,), x.dtype)], op=op, dims=(1,), keepdim=False)
    assert run.output[0].isnan()
    assert run.output[1] == {"max": 3, "min": 1, "sum": 6}[op]


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.int32, torch.uint8, torch.float16], ids=str)
@pytest.mark.parametrize(("shape", "dims"), REDUCED, ids=str)
@pytest.mark.parametrize("op", ["any", "all"])
def test_truth_is_reduced(bench, op, shape, dims, dtype):
    x = (torch.rand(shape) > 0.4).to(dtype)
    wanted = FUNCTIONS[op](x, dims)
    bench.run("reduce", [x], [bench.out(wanted.shape, wanted.dtype)], op=op, dims=dims, keepdim=False).equals(wanted)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.uint8], ids=str)
@pytest.mark.parametrize("op", ["sum", "prod"])
def test_whole_numbers_are_added_and_multiplied_in_the_results_format(bench, op, dtype):
    """Beyond what a float32 holds: 2^31 * 3 and its like."""
    x = torch.randint(0, 2 if dtype == torch.bool else 100, (3, 11)).to(dtype)
    x[0, :5] = x[0, :5] * 0 + 1
    wanted = x.sum(1) if op == "sum" else x.prod(1)
    bench.run("reduce", [x], [bench.out((3,), torch.int64)], op=op, dims=(1,), keepdim=False).equals(wanted)


def test_a_reduction_of_nothing_is_left_to_the_host(bench):
    """Its value is the operation's own: 0 for a sum, 1 for a product, an error for a maximum."""
    outputs = [bench.out((3,), torch.float32)]
    why = bench.refusal("reduce", [torch.empty(3, 0)], outputs, op="sum", dims=(1,), keepdim=False)
    assert "a reduction of [3, 0] over [1] has no elements to combine" in why


@formats
def test_a_product_is_rounded_once(bench, dtype):
    x = (torch.rand(4, 9) + 0.5).to(dtype)
    run = bench.run("reduce", [x], [bench.out((4,), dtype)], op="prod", dims=(1,), keepdim=False)
    wanted = x.double().prod(1)
    run.within(wanted, wanted * (9 * U32 + 1.01 * NARROW[dtype]))
    run.agrees()


@pytest.mark.parametrize("lie", ["padded", "transposed", "every other", "expanded rows", "expanded columns"])
@pytest.mark.parametrize("dims", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("op", ["sum", "max"])
def test_a_reduction_takes_its_operand_as_it_lies(bench, op, dims, lie):
    x = laid(torch.randint(-9, 9, (4, 3, 33)).float(), lie)
    wanted = FUNCTIONS[op](x, dims)
    outputs = [bench.out(wanted.shape, x.dtype)]
    bench.run("reduce", [x], outputs, op=op, dims=dims, keepdim=False).equals(wanted)


@formats
@pytest.mark.parametrize(
    ("shape", "dim"), [((7,), 0), ((5, 64), 1), ((5, 64), 0), ((2, 3, 5), 1), ((1, 1), 0)], ids=str
)
def test_a_running_sum_is_rounded_where_it_is_stored(bench, shape, dim, dtype):
    x = torch.randn(shape).to(dtype)
    run = bench.run("cumsum", [x], [bench.out(shape, dtype)], dim=dim)
    wanted = x.double().cumsum(dim)
    bound = shape[dim] * U32 * x.double().abs().cumsum(dim)
    run.within(wanted, bound + 1.01 * NARROW[dtype] * (wanted.abs() + bound) + TINY[dtype])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool], ids=str)
def test_a_running_sum_of_whole_numbers_is_exact(bench, dtype):
    x = torch.randint(0, 2, (3, 41)).to(dtype)
    bench.run("cumsum", [x], [bench.out((3, 41), torch.int64)], dim=1).equals(x.cumsum(1))


# Positions of extremes


@pytest.mark.parametrize("length", [1, 2, 4095, 4096, 4097, 9000])
@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int64], ids=str)
def test_the_first_of_equals_is_found_across_chunks(bench, op, length, dtype):
    """The extreme stands at both ends and in the middle: in 4096 elements a chunk ends."""
    x = torch.zeros(2, length, dtype=dtype)
    sign = 1 if op == "argmax" else -1
    first = length // 2
    x[0, first:] = 5 * sign
    x[1, -1] = 5 * sign
    run = bench.run("arg_reduce", [x], [bench.out((2,), torch.int64)], op=op, dim=1, keepdim=False, has_values=False)
    assert run.output.tolist() == [first, length - 1]


@pytest.mark.parametrize("place", [0, 3, 4095, 4096, 8999])
@pytest.mark.parametrize("op", ["argmax", "argmin"])
def test_the_first_nan_wins(bench, op, place):
    x = torch.arange(9000.0).view(1, -1)
    x[0, place] = torch.nan
    x[0, -1] = torch.nan
    outputs = [bench.out((1,), x.dtype), bench.out((1,), torch.int64)]
    run = bench.run("arg_reduce", [x], outputs, op=op, dim=1, keepdim=False, has_values=True)
    assert run.outputs[0].isnan().all()
    assert run.outputs[1].tolist() == [place]


@pytest.mark.parametrize("keepdim", [False, True], ids=["dropped", "kept"])
@pytest.mark.parametrize("dim", [0, 1, 2, None])
@pytest.mark.parametrize("lie", ["dense", "padded", "transposed", "every other", "expanded rows", "expanded columns"])
def test_positions_are_torchs_along_any_dimension(bench, dim, keepdim, lie):
    x = laid(torch.randint(-4, 4, (4, 3, 33)).float(), lie)
    wanted = x.argmax(dim, keepdim)
    arguments = ("arg_reduce", [x], [bench.out(wanted.shape, torch.int64)])
    attrs = {"op": "argmax", "dim": dim, "keepdim": keepdim, "has_values": False}
    if dim is None and lie not in ("dense", "every other"):
        assert "do not lie evenly" in bench.refusal(*arguments, **attrs)
    else:
        bench.run(*arguments, **attrs).equals(wanted)


def test_values_come_with_their_positions(bench):
    x = torch.randn(3, 50).half()
    outputs = [bench.out((3, 1), x.dtype), bench.out((3, 1), torch.int64)]
    run = bench.run("arg_reduce", [x], outputs, op="argmin", dim=1, keepdim=True, has_values=True)
    values, indices = x.min(1, True)
    assert torch.equal(run.outputs[0], values)
    assert torch.equal(run.outputs[1], indices)


# Movement by index, joining


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("ids", [(1,), (7,), (2, 3), (1, 131), ()], ids=str)
@pytest.mark.parametrize("width", [1, 3, 64])
def test_an_embedding_is_rows_of_its_table(bench, ids, width, dtype):
    table = (torch.randn(11, width) * 9).to(dtype)
    index = torch.randint(0, 11, ids)
    bench.run("embedding", [index, table], [bench.out((*ids, width), dtype)]).equals(table[index])


@lies
def test_an_embedding_takes_ids_and_table_as_they_lie(bench, lie):
    table, index = laid(torch.randn(11, 24), lie), laid(torch.randint(0, 11, (4, 6), dtype=torch.int32), lie)
    bench.run("embedding", [index, table], [bench.out((4, 6, 24), table.dtype)]).equals(table[index.long()])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int64, torch.bool, torch.float64], ids=str)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_joined_tensors_stand_one_after_the_other(bench, dim, dtype):
    shapes = [[2, 3, 5] for _ in range(3)]
    for shape, n in zip(shapes, (1, 4, 7), strict=True):
        shape[dim] = n
    parts = [(torch.randn(s) * 9).to(dtype) for s in shapes]
    wanted = torch.cat(parts, dim)
    bench.run("concat", parts, [bench.out(wanted.shape, dtype)], dim=dim).equals(wanted)


@lies
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_joining_takes_operands_as_they_lie(bench, lie, dim):
    parts = [laid(torch.randn(4, 3, 33).half(), lie), torch.randn(4, 3, 33).half()]
    wanted = torch.cat(parts, dim)
    bench.run("concat", parts, [bench.out(wanted.shape, wanted.dtype)], dim=dim).equals(wanted)


def test_an_empty_tensor_joins_without_a_trace(bench):
    """A key-value cache begins empty."""
    parts = [torch.randn(2, 3, 0, 8), torch.randn(2, 3, 4, 8)]
    bench.run("concat", parts, [bench.out((2, 3, 4, 8), torch.float32)], dim=2).equals(parts[1])


def test_a_cache_grows_into_a_longer_allocation(bench):
    """The output is a window of something larger, whose rest stays as it is."""
    parts = [torch.randn(1, 2, 3, 4), torch.randn(1, 2, 1, 4)]
    bench.run("concat", parts, [bench.out((1, 2, 4, 4), torch.float32, (64, 32, 4, 1))], dim=2).equals(
        torch.cat(parts, 2)
    )


@pytest.mark.parametrize("stray", [11, -1, 2**40])
def test_an_index_that_is_no_row_is_an_error_and_not_some_number(bench, stray):
    """On the machine, in its oracle and in the kernel's reference alike."""
    table, ids = torch.randn(11, 8), torch.tensor([[3, stray, 5]])
    sentence = rf"index {stray} \(number 1 of 3\) is outside a table of 11 rows; expected 0 to 10"
    intent = bench.intent("embedding", [ids, table], [bench.out((1, 3, 8), table.dtype)])
    kernel, _ = bench.chosen(intent)
    for attempt in (bench.run, bench.oracle):
        with pytest.raises(errors.RowError, match=sentence) as caught:
            attempt("embedding", [ids, table], [bench.out((1, 3, 8), table.dtype)])
        assert (caught.value.code, isinstance(caught.value, IndexError)) == ("DSF-X030", True)
    with pytest.raises(errors.RowError, match=sentence):
        kernel.reference(intent, ids, table)


# Rows longer than one instruction takes: 8160 elements on the 910B2


@pytest.mark.parametrize("width", [8160, 8161, 8192, 10_000])
def test_long_rows_are_normalised_piece_by_piece(bench, width):
    """Llama-3-70B is 8192 wide."""
    x, weight = torch.randn(2, width).half(), torch.randn(width).half()
    run = bench.run(
        "rms_norm", [x, weight], [bench.out(x.shape, x.dtype)], eps=1e-5, compute=torch.float32, weight_after_cast=True
    )
    wanted = normed(x, 1e-5) * weight.double()
    run.within(wanted, norm_bound(wanted.half(), width, 2) + 2 * TINY[x.dtype] * weight.double().abs())
    run.agrees()
    run = bench.run("softmax", [x], [bench.out(x.shape, x.dtype)], dim=1, log=False)
    wanted, bound = softmax_bound(x, 1, False)
    run.within(wanted, bound + 1.01 * NARROW[x.dtype] * (wanted.abs() + bound) + TINY[x.dtype])


def test_a_row_longer_than_any_instruction_is_summed_in_pieces(bench):
    """20000 numbers of float32 are more than 255 repeats of 256 bytes."""
    x = torch.randn(2, 20_000)
    x[1, 19_000] = 9.0
    run = bench.run("softmax", [x], [bench.out(x.shape, x.dtype)], dim=1, log=False)
    wanted, bound = softmax_bound(x, 1, False)
    run.within(wanted, bound + 1.01 * NARROW[x.dtype] * (wanted.abs() + bound) + TINY[x.dtype])


def test_a_row_that_no_memory_holds_is_left_to_the_host_with_the_memorys_words(bench):
    table = torch.zeros(1, 600_000).half()
    scratch = bench.target.row("load").operands[0][1].spaces[0]
    why = bench.refusal("embedding", [torch.zeros(1).int(), table], [bench.out(table.shape, table.dtype)])
    assert f"{scratch}: a tile of" in why
    assert f"of {bench.chip.memories[scratch].nbytes} bytes" in why


@pytest.mark.parametrize("length", [8161, 20_000, 200_003])
@pytest.mark.parametrize("op", ["sum", "mean", "max", "any"])
def test_a_reduction_of_any_length_stays_on_the_chip(bench, op, length):
    """A loss is a mean over tokens times vocabulary: pieces first, then what they left."""
    x = torch.zeros(2, length)
    x[0, ::1000] = 2.0
    x[1, -1] = -3.0
    x = x != 0 if op == "any" else x
    wanted = FUNCTIONS[op](x, (0, 1))
    run = bench.run("reduce", [x], [bench.out((), x.dtype)], op=op, dims=(0, 1), keepdim=False)
    if op == "mean":
        run.within(FUNCTIONS[op](x.double(), (0, 1)), 4 * U32 * wanted.double().abs())
    else:
        run.equals(wanted)
    rows = FUNCTIONS[op](x, (1,))
    run = bench.run("reduce", [x], [bench.out((2,), x.dtype)], op=op, dims=(1,), keepdim=False)
    if op != "mean":
        run.equals(rows)


@pytest.mark.parametrize(
    "kind",
    ["rms_norm", "layer_norm", "softmax", "rotary", "gated_activation", "reduce", "reduce uneven", "arg_reduce",
     "cumsum", "embedding", "concat"],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("exact", [False, True], ids=["fast", "exact"])
def test_planes_and_oracle_agree(bench, kind, dtype, exact):
    """Bits equal, cycles equal, in 66 ragged rows: several laps and cores."""
    x, y, row = torch.randn(66, 40).to(dtype), torch.randn(66, 40).to(dtype), torch.randn(40).to(dtype)
    out = bench.out((66, 40), dtype)
    norm = {"eps": 1e-5, "compute": torch.float32, "weight_after_cast": True}
    reduced = {"op": "sum", "keepdim": False}
    inputs, outputs, attrs = {
        "rms_norm": ([x, row], [out], norm),
        "layer_norm": ([x, row, row], [out], {"axes": 1, "eps": 1e-5, "has_weight": True, "has_bias": True}),
        "softmax": ([x], [out], {"dim": 0, "log": True}),
        "rotary": ([x, y, y], [out], {"style": "half"}),
        "gated_activation": ([x, y], [out], {"act": "silu"}),
        "reduce": ([x], [bench.out((66,), dtype)], {**reduced, "dims": (1,)}),
        "reduce uneven": ([x[:, :33]], [bench.out((), dtype)], {**reduced, "dims": (0, 1)}),
        "arg_reduce": ([x.view(2, -1)], [bench.out((2,), torch.int64)],
                       {"op": "argmax", "dim": 1, "keepdim": False, "has_values": False}),
        "cumsum": ([x], [out], {"dim": 1}),
        "embedding": ([torch.randint(0, 66, (5, 3)), x], [bench.out((5, 3, 40), dtype)], {}),
        "concat": ([x, y[:7]], [bench.out((73, 40), dtype)], {"dim": 0}),
    }[kind]  # fmt: skip
    bench.oracle(kind.split()[0], inputs, outputs, exact=exact, **attrs)


def means_it(run) -> None:
    """The program is its reference and the intent's meaning, both to within what the kernel states."""
    run.agrees()
    for result, wanted in zip(run.outputs, meaning(run.intent, *run.inputs), strict=True):
        assert run.kernel.rounding.excess(result, wanted) is None


@formats
@lies
@pytest.mark.parametrize("late", [False, True])
def test_a_sum_is_stored_and_its_rms_norm(bench, late, lie, dtype):
    x, residual, weight = (laid(torch.randn(4, 3, 33).to(dtype), lie), torch.randn(4, 3, 33).to(dtype),
                           torch.randn(33).to(dtype))  # fmt: skip
    outs = [bench.out(x.shape, dtype), bench.out(x.shape, dtype)]
    attrs = {"eps": 1e-5, "compute": torch.float32, "weight_after_cast": late}
    run = bench.oracle("add_rms_norm", [x, residual, weight], outs, **attrs)
    means_it(run)
    assert torch.equal(run.outputs[1], x + residual)


def test_a_sum_of_two_formats_is_rounded_once(bench):
    x, residual, weight = torch.randn(6, 40), torch.randn(6, 40).bfloat16(), torch.randn(40)
    outs = [bench.out((6, 40), torch.float32), bench.out((6, 40), torch.float32)]
    attrs = {"eps": 1e-5, "compute": torch.float32, "weight_after_cast": False}
    means_it(bench.oracle("add_rms_norm", [x, residual, weight], outs, **attrs))


@formats
@pytest.mark.parametrize("affine", [0, 1, 2])
def test_a_sum_is_stored_and_its_layer_norm(bench, affine, dtype):
    x, residual = torch.randn(4, 3, 5, 7).to(dtype), torch.randn(4, 3, 5, 7).to(dtype)
    rest = [torch.randn(5, 7).to(dtype) for _ in range(affine)]
    outs = [bench.out(x.shape, dtype), bench.out(x.shape, dtype)]
    attrs = {"axes": 2, "eps": 1e-5, "has_weight": affine > 0, "has_bias": affine > 1}
    means_it(bench.oracle("add_layer_norm", [x, residual, *rest], outs, **attrs))


@formats
@pytest.mark.parametrize(
    ("shape", "groups"), [((2, 6, 5, 7), 3), ((1, 4, 9), 1), ((3, 80), 4), ((2, 4, 3, 2, 2), 2)], ids=str
)
@pytest.mark.parametrize("affine", [0, 1, 2])
def test_group_norm_is_torchs(bench, shape, groups, affine, dtype):
    x, rest = torch.randn(shape).to(dtype), [torch.randn(shape[1]).to(dtype) for _ in range(affine)]
    attrs = {"groups": groups, "eps": 1e-5, "has_weight": affine > 0, "has_bias": affine > 1}
    means_it(bench.oracle("group_norm", [x, *rest], [bench.out(shape, dtype)], **attrs))


@formats
@pytest.mark.parametrize("whole", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize(
    "zero", [None, torch.tensor(5, dtype=torch.int32), torch.arange(33, dtype=torch.int8)], ids=str
)
def test_numbers_are_quantised_to_the_nearest_and_saturate(bench, zero, whole, dtype):
    """One scale for each row, or for all; halves to even."""
    x = torch.randn(7, 33).to(dtype) * 90
    x[0, :4] = torch.tensor([0.5, 1.5, torch.inf, -torch.inf]).to(dtype)
    scale = (torch.rand(7, 1) + 0.1).to(dtype) if zero is None else torch.tensor(1.0)
    rest = [] if zero is None else [zero]
    run = bench.oracle("quantise", [x, scale, *rest], [bench.out(x.shape, whole)], has_zero=zero is not None)
    means_it(run)


@formats
@pytest.mark.parametrize("shape", [(2, 4, 5, 16), (1, 1, 1, 2), (3, 7, 64)], ids=str)
def test_interleaved_rotary_turns_neighbours(bench, shape, dtype):
    x, cos, sin = (torch.randn(shape).to(dtype) for _ in range(3))
    means_it(bench.oracle("rotary", [x, cos, sin], [bench.out(shape, dtype)], style="interleaved"))


@formats
@pytest.mark.parametrize("style", ["half", "interleaved", "gathered"])
@pytest.mark.parametrize("shared", [False, True])
def test_rotary_of_every_style_may_share_the_cosine_of_a_pair(bench, style, shared, dtype):
    shape = (2, 4, 5, 16)
    x, cos, sin = (torch.randn(*shape[:3], width).to(dtype) for width in (16, *[8 if shared else 16] * 2))
    means_it(bench.oracle("rotary", [x, cos, sin], [bench.out(shape, dtype)], style=style))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_rotary_in_single_precision_is_rounded_once(bench, dtype):
    x, cos, sin = torch.randn(2, 5, 16).to(dtype), torch.randn(2, 5, 16), torch.randn(2, 5, 16)
    out = [bench.out(x.shape, dtype)]
    means_it(bench.oracle("rotary", [x, cos, sin], out, style="half", compute=torch.float32))


LONG = 300_001  # numbers of a row that no vector memory holds


def long_rows(dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(3, LONG).to(dtype)


@formats
@pytest.mark.parametrize("log", [False, True])
def test_softmax_of_a_row_that_no_memory_holds(bench, log, dtype):
    """float16 has too few small numbers for it."""
    if dtype == torch.float16 and not log:
        dtype = torch.float32
    x = long_rows(dtype)
    x[1, 5], x[2, 7:] = torch.nan, -torch.inf
    means_it(bench.run("softmax", [x], [bench.out(x.shape, dtype)], dim=1, log=log))
    turned = x.t().contiguous()
    means_it(bench.run("softmax", [turned], [bench.out(turned.shape, dtype)], dim=0, log=log))


@formats
def test_norms_of_rows_that_no_memory_holds(bench, dtype):
    x, weight, bias = long_rows(dtype) + 1, torch.randn(LONG).to(dtype), torch.randn(LONG).to(dtype)
    rms = {"eps": 1e-5, "compute": torch.float32, "weight_after_cast": True}
    layer = {"axes": 1, "eps": 1e-5, "has_weight": True, "has_bias": True}
    means_it(bench.run("rms_norm", [x, weight], [bench.out(x.shape, dtype)], **rms))
    means_it(bench.run("layer_norm", [x, weight, bias], [bench.out(x.shape, dtype)], **layer))
    both = [bench.out(x.shape, dtype), bench.out(x.shape, dtype)]
    means_it(bench.run("add_rms_norm", [x, x.flip(1), weight], both, **rms))
    means_it(bench.run("add_layer_norm", [x, x.flip(1), weight, bias], both, **layer))


@formats
def test_group_norm_of_groups_that_no_memory_holds(bench, dtype):
    x, weight = torch.randn(2, 8, 200, 301).to(dtype), torch.randn(8).to(dtype)
    attrs = {"groups": 2, "eps": 1e-5, "has_weight": True, "has_bias": True}
    means_it(bench.run("group_norm", [x, weight, weight], [bench.out(x.shape, dtype)], **attrs))


@pytest.mark.parametrize("n", [LONG, 4096 * 80])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int64, torch.bool], ids=str)
def test_the_running_sum_of_a_row_that_no_memory_holds(bench, n, dtype):
    x = torch.randint(-2, 3, (2, n)).to(dtype)
    out = bench.out(x.shape, torch.int64 if dtype == torch.bool else dtype)
    means_it(bench.run("cumsum", [x], [out], dim=1))


@formats
@pytest.mark.parametrize("style", ["half", "interleaved", "gathered"])
@pytest.mark.parametrize("compute", [None, torch.float32], ids=str)
@pytest.mark.parametrize("shared", [False, True])
def test_rotary_of_every_style_is_its_meaning(bench, shared, compute, style, dtype):
    """As DeepSeek has it: neighbours become halves; one cosine for a pair; in float32."""
    x, width = torch.randn(2, 4, 5, 16).to(dtype), 8 if shared else 16
    cos, sin = (torch.randn(5, width).to(compute or dtype).expand(2, 4, 5, width) for _ in range(2))
    attrs = {"style": style} if compute is None else {"style": style, "compute": compute}
    means_it(bench.oracle("rotary", [x, cos, sin], [bench.out(x.shape, dtype)], **attrs))


@formats
@pytest.mark.parametrize("width", [33, LONG])
def test_an_rms_norm_may_be_without_a_weight(bench, width, dtype):
    x, attrs = torch.randn(3, width).to(dtype), {"eps": 1e-5, "compute": torch.float32, "weight_after_cast": True}
    means_it(bench.run("rms_norm", [x], [bench.out(x.shape, dtype)], has_weight=False, **attrs))
    both = [bench.out(x.shape, dtype), bench.out(x.shape, dtype)]
    means_it(bench.run("add_rms_norm", [x, x], both, has_weight=False, **attrs))
