"""Linear layers around a product: what is done to its result, and weights that are stored as whole numbers.

One program of two or three phases: weights are made of what is stored (vector cores), multiplied (matrix engine), and
the result is finished (vector cores). Between the phases it lies in workspaces, rounded as the intent says.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import evolve

from dsf.hdl import Chip
from dsf.intent.ir import Intent
from dsf.intent.meaning import activated
from dsf.intent.tape import Region, Window
from dsf.isa import Builder, Program
from dsf.isa.program import contiguous, dtype_name
from dsf.kernels.compile import Compiler
from dsf.kernels.contraction import (
    FLOATS,
    LIMITS,
    EmitProduct,
    Product,
    linear_product,
    linear_reference,
    rows_copied_together,
)  # fmt: skip
from dsf.kernels.kernel import Limit, Rounding
from dsf.kernels.reference import plain
from dsf.kernels.target import Target
from dsf.kernels.vector import Lane, Stream, Tile, reach, vector_phase

__all__ = [
    "FUSED_LIMITS", "FUSED_ROUNDING", "QUANT_LIMITS", "QUANT_ROUNDING", "SCALED_LIMITS", "WHOLE_LIMITS", "WHOLE_SUMS",
    "emit_fused", "emit_quantised", "emit_scaled", "emit_whole", "fused_reference", "quant_reference",
    "scaled_reference", "whole_reference",
]  # fmt: skip

NONE = ("activation", "has_residual")


def emit_fused(emit: EmitProduct, name: str, target: Target, intent: Intent) -> Program:
    """y = activation(x @ w + bias) + residual, the product rounded to y's format before each step."""
    b, y = _declared(target, intent, name), intent.outputs[0].window
    dtype, act = dtype_name(y.dtype), intent.attr("activation")
    place, lying = _workspace(b, "product", y.shape, y.dtype)
    emit(b, target, _into(_plain(intent), place, lying))
    streams = [Stream(place, "in", lying)]
    if intent.attr("has_residual"):
        streams.append(Stream(len(intent.inputs) - 1, "in", intent.inputs[-1].window))
    streams.append(Stream(len(intent.inputs), "out", y))

    def compute(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        c, result = Compiler(target, lane, tiles), tiles[0]
        if act == "relu":
            result = c.apply("max", dtype, result, lane.constant(0.0, dtype))
        elif act is not None:
            result = c.apply(act, dtype, result)
        return (c.apply("add", dtype, result, tiles[1]) if len(tiles) > 1 else result,)

    vector_phase(b, target, streams, compute)
    return b.build()


def emit_whole(emit: EmitProduct, name: str, target: Target, intent: Intent) -> Program:
    """y = x @ w of int8, summed in int32."""
    b, y = _declared(target, intent, name), intent.outputs[0].window
    place, lying = _whole_product(emit, b, target, intent)
    vector_phase(b, target, [Stream(place, "in", lying), Stream(2, "out", y)], _as_it_is)
    return b.build()


def emit_scaled(emit: EmitProduct, name: str, target: Target, intent: Intent) -> Program:
    """y = (x @ w in int32) * x_scale * w_scale + bias, in float32, rounded once."""
    b, y = _declared(target, intent, name), intent.outputs[0].window
    place, lying = _whole_product(emit, b, target, intent)
    scales = [Stream(k, "in", _spread(r.window, y.shape)) for k, r in enumerate(intent.inputs) if k > 1]
    streams = [Stream(place, "in", lying), *scales, Stream(len(intent.inputs), "out", y)]

    def compute(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        c = Compiler(target, lane, tiles)
        total, x_scale, w_scale, *bias = (lane.cast(t, "float32") for t in tiles)
        result = c.apply("mul", "float32", c.apply("mul", "float32", total, x_scale), w_scale)
        if bias:
            result = c.apply("add", "float32", result, bias[0])
        return (lane.cast(result, dtype_name(y.dtype)),)

    vector_phase(b, target, streams, compute)
    return b.build()


def _whole_product(emit: EmitProduct, b: Builder, target: Target, intent: Intent) -> tuple[int, Window]:
    """The phases of a product of int8 into a workspace. Where the chip multiplies so many columns at once only, the
    weights are copied with columns of zeros behind them."""
    multiple = target.chip.limits.get("int8_matmul_n_multiple", 1)
    assert isinstance(multiple, int), "the schema makes it a number"
    y, w = intent.outputs[0].window, intent.inputs[1]
    wide = -(-y.shape[-1] // multiple) * multiple
    place, lying = _workspace(b, "sums", (*y.shape[:-1], wide), torch.int32)
    if wide == y.shape[-1]:
        emit(b, target, _into(_plain(intent), place, lying))
        return place, lying
    columns = 0 if intent.attr("transposed") else 1
    shape = tuple(wide if d == columns else n for d, n in enumerate(w.shape))
    padded, whole = _workspace(b, "padded", shape, torch.int8)
    vector_phase(b, target, [Stream(padded, "out", whole)], lambda lane, tiles: (lane.constant(0, "int8"),))
    inner = Stream(padded, "out", evolve(whole, shape=w.shape))
    vector_phase(b, target, [Stream(1, "in", w.window), inner], _as_it_is)
    grown = evolve(intent, inputs=(intent.inputs[0], evolve(w, window=whole)))
    product = _into(_plain(grown), place, lying)
    emit(b, target, evolve(product, b=evolve(product.b, param=padded)))
    return place, evolve(lying, shape=y.shape)


def emit_quantised(emit: EmitProduct, name: str, target: Target, intent: Intent) -> Program:
    """y = x @ ((w - zero) * scale)^T + bias. Two numbers of 4 bits lie side by side in a byte; the weights are made
    with all the low ones of a row before the high ones, and x is turned alike, so that both are copied densely."""
    b = _declared(target, intent, name)
    x, w, n, k = intent.inputs[0].window, intent.inputs[1].window, intent.inputs[1].shape[0], intent.inputs[0].shape[-1]
    halves = 2 if intent.attr("bits") == 4 else 1
    weights, lying = _workspace(b, "weights", (n, k), x.dtype)
    group = intent.attr("group") // halves
    inner = (n, k // halves // group, group)
    packed = Window(inner, (w.stride[0], group * w.stride[1], w.stride[1]), 0, w.dtype)
    ranks = [Stream(p, "in", _in_groups(intent.inputs[p].window, inner)) for p in range(2, 3 + intent.attr("has_zero"))]
    outs = [
        Stream(weights, "out", Window(inner, (k, group, 1), 0, x.dtype), half * (k // halves)) for half in range(halves)
    ]
    vector_phase(b, target, [Stream(1, "in", packed), *ranks, *outs], _dequantised(target, dtype_name(x.dtype)))
    source = 0
    if halves == 2:
        source, dense = _workspace(b, "turned", x.shape, x.dtype)
        for half in range(2):
            shape = (*x.shape[:-1], k // 2)
            part = Stream(0, "in", Window(shape, (*x.stride[:-1], 2 * x.stride[-1]), 0, x.dtype), half * x.stride[-1])
            place = Stream(source, "out", evolve(dense, shape=shape), half * (k // 2))
            vector_phase(b, target, [part, place], _as_it_is)
        x = dense
    bias = intent.inputs[-1:] if intent.attr("has_bias") else ()
    operands = (evolve(intent.inputs[0], window=x), Region(0, lying), *bias)
    layer = Intent("linear", operands, intent.outputs, (("has_bias", bool(bias)), ("transposed", True)))
    product = linear_product(layer)
    own = evolve(
        product, a=evolve(product.a, param=source), b=evolve(product.b, param=weights),
        out=evolve(product.out, param=len(intent.inputs)),
        bias=evolve(product.bias, param=len(intent.inputs) - 1) if product.bias is not None else None,
    )  # fmt: skip
    emit(b, target, own)
    return b.build()


def _dequantised(target: Target, dtype: str) -> Callable[[Lane, tuple[Tile, ...]], tuple[Tile, ...]]:
    """(number - zero) * scale, every step in *dtype*; both halves of a byte where the kernel wants two results."""

    def compute(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        c = Compiler(target, lane, tiles)
        packed, scale, *zero = tiles
        wanted = (packed,) if packed.dtype == "int8" else _halves(c, packed)
        rank, base = lane.cast(scale, dtype), [lane.cast(z, dtype) for z in zero]
        results = []
        for number in wanted:
            whole = lane.cast(lane.cast(number, "float32"), dtype)
            if base:
                whole = c.apply("sub", dtype, whole, base[0])
            results.append(c.apply("mul", dtype, whole, rank))
        return tuple(results)

    return compute


def _halves(c: Compiler, packed: Tile) -> tuple[Tile, Tile]:
    """The low and the high four bits of each byte, as float32: 16 * high + low."""
    byte, sixteen = c.lane.cast(packed, "float32"), c.lane.constant(16.0, "float32")
    high = c.apply("floor", "float32", c.apply("mul", "float32", byte, c.lane.constant(1 / 16, "float32")))
    return c.apply("sub", "float32", byte, c.apply("mul", "float32", high, sixteen)), high


def _in_groups(window: Window, shape: tuple[int, ...]) -> Window:
    """A scale or zero for each group, repeated over the group."""
    return Window(shape, (window.stride[0], window.stride[1], 0), 0, window.dtype)


def _as_it_is(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
    return tiles


def _declared(target: Target, intent: Intent, name: str) -> Builder:
    b = target.builder(name)
    for k, region in enumerate(intent.inputs):
        b.param(f"in{k}", "in", reach(region.window))
    b.param("out", "out", reach(intent.outputs[0].window))
    return b


def _workspace(b: Builder, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[int, Window]:
    window = Window(shape, contiguous(shape), 0, dtype)
    return b.param(name, "workspace", reach(window)), window


def _plain(intent: Intent) -> Intent:
    """The layer without what is done to its product."""
    kept = tuple(item for item in intent.attrs if item[0] not in NONE)
    count = 2 + (intent.attr("has_bias") and intent.kind == "linear")
    attrs = kept if intent.kind == "linear" else (("has_bias", False), ("transposed", intent.attr("transposed")))
    return Intent("linear", intent.inputs[:count], intent.outputs, attrs)


def _into(intent: Intent, place: int, window: Window) -> Product:
    """The layer's product with *window* of parameter *place* as its result."""
    product = linear_product(evolve(intent, outputs=(evolve(intent.outputs[0], window=window),)))
    return evolve(product, out=evolve(product.out, param=place))


def _spread(window: Window, shape: tuple[int, ...]) -> Window:
    """The window repeated along the dimensions of *shape* that it lacks."""
    missing = len(shape) - len(window.shape)
    own = zip(window.shape, window.stride, strict=True)
    return evolve(window, shape=shape, stride=(*(0 for _ in range(missing)), *(0 if n == 1 else s for n, s in own)))


def fused_reference(intent: Intent, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The product as a linear layer's, then each step of the meaning in y's format."""
    (y,) = linear_reference(_plain(intent), *inputs[: 2 + intent.attr("has_bias")])
    if intent.attr("activation") is not None:
        y = activated(intent.attr("activation"), y)
    return (y + inputs[-1] if intent.attr("has_residual") else y,)


whole_reference = scaled_reference = quant_reference = plain


def _something(chip: Chip, intent: Intent) -> bool:
    return intent.attr("activation") is not None or intent.attr("has_residual")


def _known_steps(chip: Chip, intent: Intent) -> bool:
    known = (None, "relu", "silu", "gelu", "gelu_tanh", "sigmoid", "tanh")
    return intent.attr("activation") in known and all(r.dtype == intent.outputs[0].dtype for r in intent.inputs)


def _int8(chip: Chip, intent: Intent) -> bool:
    sums = intent.kind == "scaled_linear" or intent.outputs[0].dtype == torch.int32
    return sums and all(r.dtype == torch.int8 for r in intent.inputs[:2])


def _alone(chip: Chip, intent: Intent) -> bool:
    return not intent.attr("has_bias") and not _something(chip, intent)


def _float_scales(chip: Chip, intent: Intent) -> bool:
    return all(r.dtype in FLOATS for r in (*intent.inputs[2:], *intent.outputs))


def _scales_of_rows(chip: Chip, intent: Intent) -> bool:
    """One scale for each row and one for each column."""
    y, x_scale, w_scale = intent.outputs[0], intent.inputs[2], intent.inputs[3]
    return x_scale.shape[-1:] in ((1,), ()) and w_scale.shape in ((y.shape[-1],), (1,), ())


def _packed(chip: Chip, intent: Intent) -> bool:
    x, w, scale = intent.inputs[:3]
    stored = w.dtype == (torch.uint8 if intent.attr("bits") == 4 else torch.int8)
    floats = (x, scale, *intent.outputs, *(intent.inputs[-1:] if intent.attr("has_bias") else ()))
    return stored and intent.attr("bits") in (4, 8) and all(r.dtype in FLOATS for r in floats)


def _whole_groups(chip: Chip, intent: Intent) -> bool:
    k, group = intent.inputs[0].shape[-1], intent.attr("group")
    return bool(group > 0 and k % group == 0 and (intent.attr("bits") == 8 or group % 2 == 0))


def _filled(chip: Chip, intent: Intent) -> bool:
    return all(r.numel for r in (*intent.inputs, *intent.outputs))


def _dense(chip: Chip, intent: Intent) -> bool:
    operands = intent.inputs[:1] if intent.kind == "quant_linear" else intent.inputs[:2]
    lie = (zip(r.shape[-2:], r.stride[-2:], strict=True) for r in operands)
    y = intent.outputs[0]
    return all(any(s == 1 or n == 1 for n, s in dims) for dims in lie) and (y.stride[-1] == 1 or y.shape[-1] == 1)


def _together(chip: Chip, intent: Intent) -> bool:
    if intent.kind == "quant_linear":
        x, y = intent.inputs[0].window, intent.outputs[0].window
        lying = Region(0, Window((y.shape[-1], x.shape[-1]), (x.shape[-1], 1), 0, x.dtype))
        layer = Intent("linear", (intent.inputs[0], lying), intent.outputs, (("has_bias", False), ("transposed", True)))
        return rows_copied_together(chip, linear_product(layer))
    return rows_copied_together(chip, linear_product(_plain(intent)))


FILLED = Limit("no dimension is empty", _filled)
DENSE = Limit("each matrix lies densely along rows or columns", _dense)
TOGETHER = Limit("rows lie no further apart than a copy can skip", _together)
INT8 = Limit("x and w are int8 and summed in int32", _int8, "aclnnQuantMatmul, supported dtypes")
FUSED_LIMITS = (
    Limit("something is done to the product", _something),
    Limit("all operands have y's format, and the activation is known", _known_steps, "aclnnFusedMatmul"),
    *LIMITS,
)
WHOLE_LIMITS = (
    INT8, Limit("the sums are all that is wanted", _alone), FILLED, DENSE, TOGETHER,
)  # fmt: skip
SCALED_LIMITS = (
    INT8, Limit("scales, bias and y are fp16, bf16 or fp32", _float_scales),
    Limit("there is a scale for each row of x and one for each column of w", _scales_of_rows), FILLED, DENSE, TOGETHER,
)  # fmt: skip
QUANT_LIMITS = (
    Limit("x, scale and bias are floats, w int8, or uint8 where it holds two numbers of 4 bits", _packed,
          "aclnnWeightQuantBatchMatmul, supported dtypes"),
    Limit("k is made of whole groups, of an even number where bytes hold two", _whole_groups),
    FILLED, DENSE, TOGETHER,
)  # fmt: skip
FUSED_ROUNDING = Rounding(
    4, 64, "sums in fp32 in another order, rounded once before each step, which keeps an ulp apart"
)
WHOLE_SUMS = Rounding(1, 2, "whole sums; scaled in fp32, rounded once")
QUANT_ROUNDING = Rounding(1, 64, "weights exactly as meant, sums in fp32 in another order, rounded once")
