"""The fallback compiler: every primitive in every format that a chip computes, rounded where the expression says so."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch

from dsf.intent.expression import PRIMITIVES, evaluate

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
EXACT = (
    "add", "sub", "mul", "div", "min", "max", "neg", "abs", "sign", "floor", "ceil", "round", "trunc", "fmod", "mod",
    "floor_div", "trunc_div", "sqrt", "reciprocal",
)  # fmt: skip
FUNCTIONS = (
    "exp", "exp2", "expm1", "log", "log1p", "log2", "rsqrt", "sigmoid", "sin", "cos", "tan", "tanh", "erf", "pow",
    "silu",
)  # fmt: skip
POLYNOMIALS = ("gelu", "gelu_tanh")
TESTS = ("eq", "ne", "lt", "le", "gt", "ge")
BITS = ("and", "or", "xor", "not")
FLOAT_ONLY = (*FUNCTIONS, *POLYNOMIALS, "div", "sqrt", "reciprocal")
DIVISIONS = ("fmod", "mod", "floor_div", "trunc_div")

formats = pytest.mark.parametrize("dtype", FLOATS, ids=str)


def leaves(name: str, dtype: torch.dtype, shape: tuple[int, ...] = (3, 70)) -> list[torch.Tensor]:
    """Operands for a primitive: numbers of either sign, small and large, some equal, no zero to divide by."""
    count = PRIMITIVES[name].arity
    if dtype == torch.bool:
        return [torch.rand(shape) > 0.5 for _ in range(count)]
    if not dtype.is_floating_point:
        low, high = (0, 256) if dtype == torch.uint8 else (-128, 128)
        scale = 1 if dtype.itemsize == 1 else 100 if dtype == torch.int16 else 10**4
        found = [torch.randint(low, high, shape) * scale for _ in range(count)]
        found = [t.to(dtype) for t in found]
    else:
        found = [(torch.randn(shape) * torch.exp(torch.randn(shape))).to(dtype) for _ in range(count)]
        if name in ("log", "log2", "log1p", "sqrt", "rsqrt", "pow"):
            found = [t.abs() for t in found]
    if name in DIVISIONS:
        found[1][found[1] == 0] = 1
    if count == 2:
        found[1][..., ::7] = found[0][..., ::7] if name not in DIVISIONS else 3
    return found


def pointwise(bench, expr, inputs, dtype=None, shape=None):
    """The run of an expression into a dense output."""
    like = evaluate(expr, inputs)
    out = bench.out(shape or inputs[0].shape, dtype or like.dtype)
    return bench.run("elementwise", inputs, [out], expr=expr)


def primitive(name: str, dtype: torch.dtype):
    places = [("in", n) for n in range(PRIMITIVES[name].arity)]
    return name, torch.bool if PRIMITIVES[name].test else dtype, *places


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(n, d) for n in (*EXACT, *TESTS) for d in (*FLOATS, *WHOLE) if d in FLOATS or n not in FLOAT_ONLY], ids=str,
)  # fmt: skip
def test_arithmetic_is_torchs_bit_by_bit(bench, name, dtype):
    """Every step is one correctly rounded operation, so that the way to the number is one and the same."""
    inputs = leaves(name, dtype)
    expr = primitive(name, dtype)
    pointwise(bench, expr, inputs).equals(evaluate(expr, inputs))


@pytest.mark.parametrize("name", FUNCTIONS)
@formats
def test_functions_are_torchs_to_within_an_ulp(bench, name, dtype):
    inputs, expr = leaves(name, dtype), primitive(name, dtype)
    run = pointwise(bench, expr, inputs)
    wanted = evaluate(expr, inputs)
    assert steps(run.output, wanted) <= 1
    run.agrees()


def steps(a: torch.Tensor, b: torch.Tensor) -> int:
    """How many representable numbers lie between the farthest pair, NaN beside NaN."""
    assert torch.equal(a.isnan(), b.isnan())
    whole = {2: torch.int16, 4: torch.int32}[a.itemsize]
    a, b = (t.nan_to_num(0, torch.inf, -torch.inf).view(whole).long() for t in (a, b))
    least = torch.iinfo(whole).min
    a, b = (torch.where(t < 0, least - t, t) for t in (a, b))
    return int((a - b).abs().max())


@pytest.mark.parametrize("name", POLYNOMIALS)
@formats
def test_gelu_is_off_by_its_cancellation_at_most(bench, name, dtype):
    """1 + erf(x) near -1 is off by 2 u32, which x / 2 scales: 4 * 2^-24 * |x|, and as much for the steps around it."""
    inputs, expr = leaves(name, dtype), primitive(name, dtype)
    run = pointwise(bench, expr, inputs)
    x = inputs[0].double()
    wanted = evaluate(primitive(name, torch.float64), [x])
    narrow = torch.finfo(dtype).eps / 2
    run.within(wanted, 16 * 2.0**-24 * x.abs().clamp(min=1) + 1.01 * narrow * wanted.abs() + torch.finfo(dtype).tiny)
    run.agrees()


@pytest.mark.parametrize("name", BITS)
@pytest.mark.parametrize("dtype", [torch.bool, *WHOLE], ids=str)
def test_bits_are_exact(bench, name, dtype):
    inputs, expr = leaves(name, dtype), primitive(name, dtype)
    pointwise(bench, expr, inputs).equals(evaluate(expr, inputs))


@pytest.mark.parametrize("name", [*TESTS, "max", "min"])
def test_truth_values_compare(bench, name):
    inputs, expr = leaves(name, torch.bool), primitive(name, torch.bool)
    pointwise(bench, expr, inputs).equals(evaluate(expr, inputs))


@pytest.mark.parametrize("dtype", [torch.bool, *FLOATS, *WHOLE], ids=str)
def test_a_condition_selects_in_any_format(bench, dtype):
    condition = torch.rand(3, 70) > 0.5
    left, right = leaves("add", dtype)
    expr = "where", dtype, ("in", 0), ("in", 1), ("in", 2)
    pointwise(bench, expr, [condition, left, right]).equals(torch.where(condition, left, right))


@pytest.mark.parametrize("target", [torch.bool, *FLOATS, torch.int64, torch.int32, torch.int16], ids=str)
@pytest.mark.parametrize("source", [torch.bool, *FLOATS, *WHOLE], ids=str)
def test_a_cast_rounds_once(bench, source, target):
    (x,) = leaves("neg", source)
    pointwise(bench, ("cast", target, ("in", 0)), [x]).equals(x.to(target))


def test_whole_numbers_beyond_a_float_stay_exact(bench):
    """2^53 + 1 has no float64; the scalar engine adds it as it is."""
    x = torch.tensor([2**53 + 1, -(2**62) - 3, 7])
    expr = "add", torch.int64, ("in", 0), ("const", torch.int64, 2**61 + 1)
    pointwise(bench, expr, [x]).equals(x + (2**61 + 1))


@pytest.mark.parametrize("name", ["mul", "add", "sub"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
def test_small_whole_numbers_wrap_around(bench, name, dtype):
    """127 * 127 = 16129 has 14 bits, float16 has 11: no chip may multiply bytes in it."""
    x = torch.tensor([127, 127, 11, 100], dtype=dtype)
    y = torch.tensor([127, 3, 23, 100], dtype=dtype)
    expr = primitive(name, dtype)
    pointwise(bench, expr, [x, y]).equals(evaluate(expr, [x, y]))


# Rounding points


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "lt", "eq", "max", "floor_div", "trunc_div"])
@pytest.mark.parametrize("number", [0.1, 0.5, 3.0, 1e-6])
@formats
def test_a_python_number_is_rounded_where_torch_rounds_it(bench, name, number, dtype):
    """x * 0.1 multiplies by the number itself, x + 0.1 adds its 16-bit neighbour. [torch: opmath scalars]"""
    (x,) = leaves("neg", dtype)
    x[0, 0] = number
    expr = name, torch.bool if PRIMITIVES[name].test else dtype, ("in", 0), ("const", dtype, number)
    wanted = evaluate(expr, [x])
    pointwise(bench, expr, [x]).equals(wanted)


@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16], ids=str)
def test_a_fused_expression_keeps_every_rounding(bench, narrow):
    """silu's tail of a gated block with a residual: product, cast, sum, cast, comparison, choice."""
    x, y = (torch.randn(5, 67).to(narrow) for _ in range(2))
    product = "mul", narrow, ("in", 0), ("in", 1)
    wide = "add", torch.float32, ("cast", torch.float32, product), ("cast", torch.float32, ("in", 1))
    back = "cast", narrow, ("mul", torch.float32, wide, ("const", torch.float32, 0.3))
    expr = (
        "where",
        narrow,
        ("lt", torch.bool, back, ("in", 0)),
        ("sub", narrow, back, product),
        ("div", narrow, back, ("in", 1)),
    )
    pointwise(bench, expr, [x, y]).equals(evaluate(expr, [x, y]))


@formats
def test_a_value_that_is_used_twice_is_computed_once(bench, dtype):
    x = torch.randn(4, 64).to(dtype)
    root = "sqrt", dtype, ("abs", dtype, ("in", 0))
    run = pointwise(bench, ("add", dtype, root, ("mul", dtype, root, root)), [x])
    row = bench.target.row("sqrt", "float32" if dtype == torch.bfloat16 else str(dtype)[6:])
    same_row = {bench.target.row("sqrt", d).name for d in ("float16", "float32")} | {row.name}
    assert sum(ins.name in same_row for ins, _ in run.program.instructions()) == 1


@formats
def test_nan_and_infinities_go_through_as_in_torch(bench, dtype):
    special = torch.tensor([nan, inf, -inf, 0.0, -0.0, 1.0, -1.0, torch.finfo(dtype).max, torch.finfo(dtype).tiny / 2])
    x, y = (t.reshape(-1).to(dtype) for t in torch.meshgrid(special, special, indexing="ij"))
    for name in ("add", "sub", "mul", "div", "max", "min", "eq", "ne", "lt", "ge"):
        expr = primitive(name, dtype)
        pointwise(bench, expr, [x, y]).equals(evaluate(expr, [x, y]))
    for name in ("neg", "abs", "sign", "sqrt", "exp", "log", "sigmoid", "tanh", "rsqrt", "reciprocal"):
        expr = primitive(name, dtype)
        found, wanted = pointwise(bench, expr, [x]).output, evaluate(expr, [x])
        assert torch.equal(found.isinf(), wanted.isinf())
        assert steps(found, wanted) <= 1


# Shapes and places

TAILS = [
    (),
    (1,),
    (31,),
    (32,),
    (33,),
    (1, 1),
    (2, 3, 5, 7),
    (131, 1),
    (1, 131),
    (3, 4099),
    (70, 33),
    (8161,),
    (2, 20000),
]


@pytest.mark.parametrize("shape", TAILS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int64, torch.bool], ids=str)
def test_every_element_is_computed_and_no_other(bench, shape, dtype):
    x, y = leaves("or" if dtype == torch.bool else "add", dtype, shape or (1,))
    x, y = x.reshape(shape), y.reshape(shape)
    expr = primitive("or" if dtype == torch.bool else "add", dtype)
    bench.run("elementwise", [x, y], [bench.out(shape, dtype)], expr=expr).equals(evaluate(expr, [x, y]))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 5), (2, 0, 4)], ids=str)
def test_nothing_is_computed_of_nothing(bench, shape):
    x = torch.empty(shape)
    run = bench.run("elementwise", [x], [bench.out(shape, x.dtype)], expr=primitive("neg", x.dtype))
    assert run.program.phases == ()
    assert run.time.duration_fs == 0


BROADCAST = {
    "row": lambda: torch.randn(1, 1, 33).expand(4, 5, 33),
    "column": lambda: torch.randn(4, 5, 1).expand(4, 5, 33),
    "middle": lambda: torch.randn(4, 1, 33).expand(4, 5, 33),
    "number": lambda: torch.randn(()).expand(4, 5, 33),
    "outer": lambda: torch.randn(4, 1, 1).expand(4, 5, 33),
    "transposed": lambda: torch.randn(33, 5, 4).transpose(0, 2),
    "permuted": lambda: torch.randn(5, 33, 4).permute(2, 0, 1),
    "every other": lambda: torch.randn(8, 5, 66)[::2, :, ::2],
    "padded": lambda: torch.randn(6, 7, 40)[1:5, 1:6, 3:36],
}


@pytest.mark.parametrize("left", BROADCAST)
@pytest.mark.parametrize("right", BROADCAST)
def test_operands_meet_however_they_lie(bench, left, right):
    x, y = BROADCAST[left](), BROADCAST[right]()
    expr = "sub", torch.float32, ("in", 0), ("in", 1)
    bench.run("elementwise", [x, y], [bench.out((4, 5, 33), x.dtype)], expr=expr).equals(x - y)


@pytest.mark.parametrize("stride", [(165, 33, 1), (1, 4, 20), (400, 80, 2), (33, 132, 1), (1, 200, 5)], ids=str)
def test_results_go_where_the_output_lies(bench, stride):
    x = torch.randn(4, 5, 33)
    bench.run("elementwise", [x], [bench.out(x.shape, x.dtype, stride)], expr=primitive("neg", x.dtype)).equals(-x)


@pytest.mark.parametrize("shape", [(7,), (130, 70), (3, 5, 4000)], ids=str)
def test_a_result_may_take_the_place_of_its_operand(bench, shape):
    """x.mul_(y): the same window is read and written."""
    x, y = torch.randn(shape), torch.randn(shape)
    bench.run("elementwise", [x, y], [x], expr=primitive("mul", x.dtype)).equals(x * y)


def test_rows_far_apart_are_copied_one_by_one(bench):
    """The last position of long rows: 3 MB from one to the next; a gap field of 65535 blocks of 32 bytes holds 2."""
    x = torch.randn(3, 1_500_000).half()[:, -40:]
    bench.run("copy", [x], [bench.out((3, 40), x.dtype)]).equals(x)
    bench.run("copy", [x.t()], [bench.out((40, 3), x.dtype)]).equals(x.t())


# Copies, fills and ramps


@pytest.mark.parametrize("left", BROADCAST)
@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int64, torch.float64, torch.complex64, torch.float16, torch.uint8], ids=str
)
def test_a_copy_moves_any_format(bench, left, dtype):
    x = (BROADCAST[left]() * 9).to(dtype)
    if left in ("row", "column", "middle", "number", "outer"):
        x = x.as_strided(x.shape, BROADCAST[left]().stride())
    bench.run("copy", [x], [bench.out(x.shape, dtype)]).equals(x.contiguous())


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(torch.float16, 0.1), (torch.bfloat16, -inf), (torch.float32, nan), (torch.int64, 2**62 + 1), (torch.int32, -7),
     (torch.bool, True), (torch.bool, False), (torch.uint8, 255), (torch.int8, -128), (torch.int16, 300)], ids=str,
)  # fmt: skip
@pytest.mark.parametrize("shape", [(), (1,), (5, 67), (2, 9000)], ids=str)
def test_a_fill_writes_its_value_everywhere(bench, shape, dtype, value):
    run = bench.run("fill", [], [bench.out(shape, dtype)], value=value)
    run.equals(torch.full(shape, value, dtype=dtype))


def test_a_fill_keeps_to_its_window(bench):
    bench.run("fill", [], [bench.out((4, 5), torch.float16, (64, 3))], value=1.0).equals(torch.ones(4, 5).half())


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.int16, torch.float32, torch.float16, torch.bfloat16], ids=str
)
@pytest.mark.parametrize(
    ("start", "step", "length"), [(0, 1, 1), (0, 1, 4097), (5, 3, 100), (10, -2, 33), (0, 1, 20000)]
)
def test_a_ramp_counts_exactly_and_rounds_once(bench, start, step, length, dtype):
    wanted = (start + step * torch.arange(length)).to(dtype)
    bench.run("iota", [], [bench.out((length,), dtype)], start=start, step=step).equals(wanted)


def test_a_ramp_beyond_32_bits_is_counted_in_64(bench):
    wanted = 2**40 + 3 * torch.arange(50)
    bench.run("iota", [], [bench.out((50,), torch.int64)], start=2**40, step=3).equals(wanted)


def test_a_ramp_of_fractions_is_left_to_the_host_with_that_reason(bench):
    why = bench.refusal("iota", [], [bench.out((5,), torch.float32)], start=0.0, step=0.1)
    assert why == "compiled.iota: iota from 0.0 by 0.1: only whole numbers are stepped on chip"


def test_a_format_that_no_engine_computes_is_left_to_the_host_with_that_reason(bench):
    x = torch.randn(3).double()
    why = bench.refusal("elementwise", [x], [bench.out((3,), x.dtype)], expr=primitive("neg", x.dtype))
    assert why == "chip: the HDL computes float64 on the host"


@formats
def test_planes_and_oracle_agree_on_a_fused_expression(bench, dtype):
    x, y = torch.randn(40, 70).to(dtype), torch.randn(70).to(dtype).expand(40, 70)
    expr = "mul", dtype, ("sigmoid", dtype, ("add", dtype, ("in", 0), ("in", 1))), ("const", dtype, 0.1)
    bench.oracle("elementwise", [x, y], [bench.out(x.shape, dtype)], expr=expr)
    bench.oracle("elementwise", [x, y], [bench.out(x.shape, dtype)], expr=expr, exact=True)


def test_planes_and_oracle_agree_across_engines(bench):
    """Whole numbers of 64 bits go to the scalar engine and come back: flags order the two."""
    x = torch.randint(-9, 9, (3, 50))
    expr = (
        "cast",
        torch.float32,
        ("add", torch.int64, ("in", 0), ("cast", torch.int64, ("gt", torch.bool, ("in", 0), ("in", 0)))),
    )
    bench.oracle("elementwise", [x], [bench.out(x.shape, torch.float32)], expr=expr)
