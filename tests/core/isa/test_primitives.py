"""The neutral vocabulary, word by word: values by hand, then random tensors against other ways to say the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dsf.isa.primitives import ARG_REDUCTIONS, POINTWISE, REDUCTIONS, WITH_SCALAR

inf, nan = math.inf, math.nan
Values = list[Any]

EXAMPLES: dict[str, tuple[list[Values], Values]] = {
    "add": ([[1.0, -2.5], [0.5, 2.5]], [1.5, 0.0]),
    "sub": ([[1.0, -2.5], [0.5, 2.5]], [0.5, -5.0]),
    "mul": ([[3.0, -2.0], [0.5, 4.0]], [1.5, -8.0]),
    "div": ([[3.0, -1.0, 1.0], [2.0, 4.0, 0.0]], [1.5, -0.25, inf]),
    "floor_div": ([[7, -7, 7, -7], [2, 2, -2, -2]], [3, -4, -4, 3]),
    "trunc_div": ([[7, -7, 7, -7], [2, 2, -2, -2]], [3, -3, -3, 3]),
    "mod": ([[7, -7, 7, -7], [3, 3, -3, -3]], [1, 2, -2, -1]),  # the sign of the divisor
    "fmod": ([[7, -7, 7, -7], [3, 3, -3, -3]], [1, -1, 1, -1]),  # the sign of the dividend
    "max": ([[1.0, nan, 3.0], [2.0, 0.0, -3.0]], [2.0, nan, 3.0]),
    "min": ([[1.0, nan, 3.0], [2.0, 0.0, -3.0]], [1.0, nan, -3.0]),
    "pow": ([[2.0, 9.0, 2.0], [10.0, 0.5, -1.0]], [1024.0, 3.0, 0.5]),
    "eq": ([[1.0, nan, 2.0], [1.0, nan, 3.0]], [True, False, False]),
    "ne": ([[1.0, nan, 2.0], [1.0, nan, 3.0]], [False, True, True]),
    "lt": ([[1, 2, 3], [2, 2, 2]], [True, False, False]),
    "le": ([[1, 2, 3], [2, 2, 2]], [True, True, False]),
    "gt": ([[1, 2, 3], [2, 2, 2]], [False, False, True]),
    "ge": ([[1, 2, 3], [2, 2, 2]], [False, True, True]),
    "and": ([[12, 5], [10, 3]], [8, 1]),
    "or": ([[12, 5], [10, 3]], [14, 7]),
    "xor": ([[12, 5], [10, 3]], [6, 6]),
    "not": ([[0, -1, 5]], [-1, 0, -6]),
    "where": ([[True, False], [1.0, 2.0], [3.0, 4.0]], [1.0, 4.0]),
    "neg": ([[1.0, -2.0]], [-1.0, 2.0]),
    "abs": ([[1.0, -2.0]], [1.0, 2.0]),
    "sign": ([[-3.0, 0.0, 2.0]], [-1.0, 0.0, 1.0]),
    "rsqrt": ([[4.0, 0.25]], [0.5, 2.0]),
    "reciprocal": ([[4.0, -0.5]], [0.25, -2.0]),
    "floor": ([[1.5, -1.5]], [1.0, -2.0]),
    "ceil": ([[1.5, -1.5]], [2.0, -1.0]),
    "round": ([[0.5, 1.5, 2.5, -1.5]], [0.0, 2.0, 2.0, -2.0]),  # halves to even
    "trunc": ([[1.5, -1.5]], [1.0, -1.0]),
    "sqrt": ([[9.0, 2.25]], [3.0, 1.5]),
    "exp2": ([[3.0, -1.0]], [8.0, 0.5]),
    "log2": ([[8.0, 0.5]], [3.0, -1.0]),
}

FUNCTIONS: dict[str, Callable[[float], float]] = {
    "exp": math.exp, "expm1": math.expm1, "log": math.log, "log1p": math.log1p, "sin": math.sin, "cos": math.cos,
    "tan": math.tan, "tanh": math.tanh, "erf": math.erf, "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
}  # fmt: skip


def same(result: torch.Tensor, wanted: torch.Tensor) -> bool:
    return (
        result.dtype == wanted.dtype
        and torch.equal(torch.isnan(result), torch.isnan(wanted))
        and torch.equal(torch.nan_to_num(result), torch.nan_to_num(wanted))
    )


def test_every_word_has_an_example() -> None:
    assert set(EXAMPLES) | set(FUNCTIONS) == set(POINTWISE)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_word_means_what_its_example_says(name: str) -> None:
    operands, wanted = EXAMPLES[name]
    assert same(POINTWISE[name].meaning(*map(torch.tensor, operands)), torch.tensor(wanted))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_that_of_mathematics(name: str) -> None:
    """Within 4 units in the last place of float64."""
    x = torch.linspace(0.05, 1.45, 29, dtype=torch.float64)
    wanted = torch.tensor([FUNCTIONS[name](v) for v in x.tolist()], dtype=torch.float64)
    assert torch.all((POINTWISE[name].meaning(x) - wanted).abs() <= 4 * torch.finfo(torch.float64).eps * wanted.abs())


@pytest.mark.parametrize("name", POINTWISE)
def test_the_written_in_place_form_is_the_meaning(name: str) -> None:
    operands = [torch.tensor(v) for v in EXAMPLES[name][0]] if name in EXAMPLES else [torch.rand(7) + 0.1]
    wanted = POINTWISE[name].meaning(*operands)
    out, form = torch.empty_like(wanted), POINTWISE[name].out
    assert form is not None
    form(*operands, out=out)
    assert same(out, wanted)


HELD: dict[str, tuple[Values, float, Values]] = {
    "add": ([1.0, -2.5], 2, [3.0, -0.5]), "mul": ([1.0, -2.5], 2, [2.0, -5.0]),
    "max": ([1.0, nan, -3.0], 0, [1.0, nan, 0.0]), "min": ([1.0, nan, -3.0], 0, [0.0, nan, -3.0]),
    "eq": ([1, 2, 3], 2, [False, True, False]), "ne": ([1, 2, 3], 2, [True, False, True]),
    "lt": ([1, 2, 3], 2, [True, False, False]), "le": ([1, 2, 3], 2, [True, True, False]),
    "gt": ([1, 2, 3], 2, [False, False, True]), "ge": ([1, 2, 3], 2, [False, True, True]),
    "shift_left": ([1, -3], 2, [4, -12]), "shift_right": ([7, -7], 1, [3, -4]),
}  # fmt: skip


@pytest.mark.parametrize("name", WITH_SCALAR)
def test_a_word_may_take_a_number_that_the_instruction_holds(name: str) -> None:
    source, value, wanted = HELD[name]
    primitive, a = WITH_SCALAR[name], torch.tensor(source)
    assert same(primitive.meaning(a, value), torch.tensor(wanted))
    out = torch.empty_like(torch.tensor(wanted))
    assert primitive.out is not None
    primitive.out(a, value, out=out)
    assert same(out, torch.tensor(wanted))


REDUCED: dict[str, tuple[list[Values], list[Values]]] = {
    "sum": ([[1.0, 2.0, 4.5], [-1.0, 0.0, 1.0]], [[7.5], [0.0]]),
    "prod": ([[1.0, 2.0, 4.5], [-1.0, 0.5, 1.0]], [[9.0], [-0.5]]),
    "max": ([[1.0, 5.0, 4.5], [-1.0, nan, 1.0]], [[5.0], [nan]]),
    "min": ([[1.0, 5.0, 4.5], [-1.0, nan, 1.0]], [[1.0], [nan]]),
    "any": ([[False, True], [False, False]], [[True], [False]]),
    "all": ([[True, True], [True, False]], [[True], [False]]),
    "argmax": ([[3, 7, 7], [5, 5, 1]], [[1], [0]]),  # the first of equals
    "argmin": ([[3, 1, 1], [5, 5, 9]], [[1], [0]]),
}


@pytest.mark.parametrize("name", REDUCED)
def test_a_reduction_leaves_one_column(name: str) -> None:
    source, wanted = REDUCED[name]
    primitive = {**REDUCTIONS, **ARG_REDUCTIONS}[name]
    if name in ("max", "min"):
        assert REDUCTIONS[name] is not POINTWISE[name]
    assert same(primitive.meaning(torch.tensor(source)), torch.tensor(wanted))


def test_every_reduction_has_an_example() -> None:
    assert set(REDUCED) == set(REDUCTIONS) | set(ARG_REDUCTIONS)


def test_sums_stay_in_their_own_format() -> None:
    """100 + 100 in int8 is 200 - 256."""
    total = REDUCTIONS["sum"].meaning(torch.tensor([[100, 100]], dtype=torch.int8))
    assert (total.dtype, total.item()) == (torch.int8, -56)


DTYPES = ("float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")


def random(dtype: str, *shape: int) -> torch.Tensor:
    """Numbers from 1 to 4, so that every operation is defined."""
    whole = torch.randint(1, 5, shape)
    return (whole > 2) if dtype == "bool" else whole.to(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", POINTWISE)
def test_a_word_is_defined_on_just_the_formats_that_it_accepts(name: str, dtype: str) -> None:
    """Where it is, the result has the operands' format or is a truth value; elsewhere torch refuses or converts."""
    primitive = POINTWISE[name]
    operands = [random(dtype, 3, 5) for _ in range(primitive.arity)]
    if name == "where":
        operands[0] = random("bool", 3, 5)
    try:
        result = str(primitive.meaning(*operands).dtype).removeprefix("torch.")
    except (RuntimeError, NotImplementedError):
        result = "none"
    assert primitive.accepts(dtype) == (result == ("bool" if primitive.predicate else dtype))


SIMILES: dict[str, Callable[..., torch.Tensor]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
    "max": lambda a, b: torch.where(a > b, a, b), "min": lambda a, b: torch.where(a < b, a, b),
    "lt": lambda a, b: ~(a >= b), "ge": lambda a, b: (a > b) | (a == b), "neg": lambda a: 0 - a,
    "abs": lambda a: torch.where(a < 0, -a, a), "where": lambda a, b, c: torch.where(a, b, c),
    "floor": lambda a: -torch.ceil(-a), "trunc": lambda a: torch.sign(a) * torch.floor(a.abs()),
    "mod": lambda a, b: torch.fmod(a, b) + torch.where((torch.fmod(a, b) != 0) & ((a < 0) != (b < 0)), b, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", SIMILES)
def test_random_tensors_agree_with_another_way_to_say_it(name: str) -> None:
    primitive = POINTWISE[name]
    operands = [torch.randn(64, 33) * 3 for _ in range(primitive.arity)]
    if name == "where":
        operands[0] = operands[0] > 0
    assert torch.equal(primitive.meaning(*operands), SIMILES[name](*operands))


@pytest.mark.parametrize(
    ("opclass", "names"),
    [
        ("mul", {"mul"}),
        ("max", {"max", "min"}),
        ("log", {"log", "log2", "log1p"}),
        ("sqrt", {"sqrt"}),
        ("rsqrt", {"rsqrt"}),
        ("rec", {"reciprocal"}),
    ],
)
def test_what_a_description_prices_apart_has_a_class_of_its_own(opclass: str, names: set[str]) -> None:
    """The classes that hdl/README.md lists."""
    assert {p.name for p in POINTWISE.values() if p.opclass == opclass} == names
    assert {p.name for p in WITH_SCALAR.values() if p.opclass == opclass} == names & set(WITH_SCALAR)
