"""Expressions: types, evaluation, substitution, text."""

from __future__ import annotations

import math

import torch

from dsf.intent.expression import cast, const, dtype_of, evaluate, nodes, substitute, text

f32, f16, i64 = torch.float32, torch.float16, torch.int64
A, B = ("in", 0), ("in", 1)


def test_every_node_rounds_to_its_own_dtype():
    """In float16 1 + 2**-11 is 1, so the sum of two such steps differs from one rounding at the end."""
    step = const(f16, 2**-11)
    chain = ("add", f16, ("add", f16, A, step), step)
    wide = cast(("add", f32, ("add", f32, cast(A, f32, [f16]), const(f32, 2**-11)), const(f32, 2**-11)), f16, [])
    one = torch.ones(1, dtype=f16)
    assert evaluate(chain, [one]).item() == 1.0
    assert evaluate(wide, [one]).item() == 1.0009765625


def test_a_cast_to_the_same_dtype_is_nothing():
    assert cast(A, f32, [f32]) == A
    assert cast(A, f16, [f32]) == ("cast", f16, A)


def test_a_constant_has_the_type_of_its_dtype():
    assert const(f32, 1) == ("const", f32, 1.0)
    assert type(const(f32, True)[2]) is float
    assert type(const(torch.bool, 1)[2]) is bool
    assert const(f32, math.nan) == const(f32, float("nan"))


def test_the_dtype_of_an_expression():
    assert dtype_of(("lt", torch.bool, A, B), [f16, f16]) == torch.bool
    assert dtype_of(B, [f16, i64]) == i64


def test_nodes_come_before_what_takes_them():
    expr = ("mul", f32, ("exp", f32, A), B)
    assert [node[0] for node in nodes(expr)] == ["in", "exp", "in", "mul"]


def test_substitution_replaces_inputs():
    assert substitute(("mul", f32, A, B), [("exp", f32, A), A]) == ("mul", f32, ("exp", f32, A), A)


def test_text_is_readable():
    assert text(("where", f32, ("gt", torch.bool, A, const(f32, 0)), cast(B, f32, [f32, f16]), A)) == (
        "where(gt(x0, 0.0), float32(x1), x0)"
    )


def test_numbers_may_stand_on_the_left():
    two = torch.full((1,), 2.0)
    assert evaluate(("sub", f32, const(f32, 10), A), [two]).item() == 8.0
    assert evaluate(("pow", f32, const(f32, 3), A), [two]).item() == 9.0
    assert evaluate(const(i64, 4), []).item() == 4
