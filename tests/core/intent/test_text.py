"""Intents as text and back: nothing is lost, and what is no intent is answered with line and column."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from dsf import errors
from dsf.intent import KINDS, Group, Intent, Region, Scope, Site, Slot, Window
from dsf.intent.expression import PRIMITIVES, const
from dsf.intent.text import dump, load

f32, f16 = torch.float32, torch.float16
DTYPES = st.sampled_from([f32, f16, torch.bfloat16, torch.int64, torch.int8, torch.bool, torch.uint8, torch.complex64])
NAMES = st.text(max_size=12)
NUMBERS = st.one_of(st.booleans(), st.integers(-(2**40), 2**40), st.floats(allow_nan=False))
PLAIN = st.one_of(
    NUMBERS, NAMES, DTYPES, st.none(), st.builds(Slot, st.integers(0, 9)), st.complex_numbers(allow_nan=False),
    st.sampled_from([torch.device("cpu"), torch.device("cuda:1"), torch.contiguous_format, torch.channels_last,
                     torch.strided]),
)  # fmt: skip
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6)
LEAVES = st.one_of(
    st.builds(lambda n: ("in", n), st.integers(0, 12)),
    st.builds(const, st.sampled_from([f32, torch.int64, torch.bool]), st.integers(-5, 5)),
    st.builds(const, st.just(f32), st.floats(allow_nan=False, width=32)),
)


def _node(inner: Any) -> Any:
    def made(name: str, dtype: torch.dtype) -> Any:
        return st.tuples(st.just(name), st.just(dtype), *[inner] * PRIMITIVES[name].arity)

    return st.builds(made, st.sampled_from(sorted(PRIMITIVES)), DTYPES).flatmap(lambda s: s)


EXPRESSIONS = st.recursive(LEAVES, _node, max_leaves=8)
SIZES = st.integers(0, 2**33)


@st.composite
def regions(draw: Any) -> Region:
    shape = tuple(draw(st.lists(SIZES, max_size=4)))
    dense = Window(shape, _dense(shape), 0, draw(DTYPES))
    if draw(st.booleans()):
        return Region(draw(st.integers(0, 99)), dense)
    stride = tuple(draw(st.lists(st.integers(0, 2**33), min_size=len(shape), max_size=len(shape))))
    return Region(draw(st.integers(0, 99)), Window(shape, stride, draw(SIZES), dense.dtype))


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))


@st.composite
def intents(draw: Any, kind: str) -> Intent:
    row = KINDS[kind]
    names = [*row.attrs, *(name for name, _ in row.defaults if draw(st.booleans()))]
    attrs = tuple((n, draw(EXPRESSIONS if n == "expr" else VALUES)) for n in sorted(names))
    sides = [tuple(draw(st.lists(regions(), max_size=len(side) + 1))) for side in (row.inputs, row.outputs)]
    ops = tuple(draw(st.lists(st.integers(0, 10**6), max_size=4)))
    scope = draw(st.builds(Scope, NAMES, NAMES))
    site = draw(st.one_of(st.none(), st.builds(Site, NAMES, st.integers(0, 10**5))))
    group = draw(st.one_of(st.none(), st.builds(Group, NAMES, st.integers(0, 10**5), NAMES)))
    return Intent(kind, *sides, attrs, ops, scope, site, group)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_every_kind_comes_back_as_it_was(kind, data):
    wanted = data.draw(st.lists(intents(kind), max_size=3))
    found = load(dump(wanted))
    assert found == tuple(wanted)
    assert _types(found) == _types(tuple(wanted))


def _types(value: Any) -> Any:
    """True == 1 == 1.0 in Python: the types of all numbers in the attributes."""
    return [[(n, repr(v)) for n, v in intent.attrs] for intent in value]


def test_not_a_number_comes_back(record):
    intent = record(lambda a: a.masked_fill(a > 0, math.nan), torch.randn(3)).only("elementwise")
    (found,) = load(dump([intent]))
    assert dump([found]) == dump([intent])
    assert math.isnan(found.attr("expr")[3][2])


def test_a_line_is_readable(record):
    recording = record(lambda a, w: F.linear(a.t(), w).clamp(min=0.5), torch.randn(8, 3), torch.randn(4, 8))
    assert dump(recording.parsed()) == (
        "linear(has_bias=False, transposed=True) %0[3, 8]{1, 3}:float32 %1[4, 8]:float32 -> %2[3, 4]:float32 ops (0,)\n"
        "elementwise(expr=max:float32(x0, 0.5:float32)) %2[3, 4]:float32 -> %3[3, 4]:float32 ops (1,)\n"
    )


def test_what_parse_finds_comes_back(record):
    def step(a, w, index):
        y = F.silu(F.linear(a, w))
        return torch.cat((y, y[index]), 0).tril(), torch.sort(y)

    found = record(step, torch.randn(4, 8), torch.randn(4, 8), torch.tensor([1, 2])).parsed()
    assert "opaque" in {i.kind for i in found}
    assert load(dump(found)) == found


def test_empty_lines_and_remarks_say_nothing():
    assert load("\n  # a remark\n\nfill(value=1) -> %0[2]:float32\n") == (
        Intent("fill", (), (Region(0, Window((2,), (1,), 0, f32)),), (("value", 1),)),
    )


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("fil(value=1) -> ", r"DSF-E012: line 2, column 1: no kind named 'fil'; known kinds: add_layer_norm, .*"),
        ("fill(value=1 -> ", r"DSF-E011: line 2, column 14: found '->'; expected ','"),
        ("fill(value=yes) ->", r"DSF-E012: line 2, column 12: 'yes' is no value; strings stand in double quotes"),
        ("fill(=1) ->", r"DSF-E011: line 2, column 6: found '='; expected the name of an attribute"),
        ("fill() %0[2]:float32", r"DSF-E011: line 2, column 21: found the end of the line; expected '->'"),
        ("fill() -> %0[2]:float31", r"DSF-E012: line 2, column 17: no dtype named 'float31'; known dtypes: .*"),
        ("fill() -> %0[-2]:float32", r"DSF-E011: line 2, column 14: found -2; expected a number from 0 on"),
        ("fill() -> %0[2]{1, 1}:float32",
         r"DSF-E011: line 2, column 16: found 2 strides; expected 1, one for each dimension"),
        ("fill() -> ; drop", r"DSF-E011: line 2, column 11: ';' begins nothing; see dsf.intent.text"),
        ("fill() -> group", r"DSF-E011: line 2, column 16: found the end of the line; expected a string in double .*"),
        ("fill() -> group \"moe\" 1 \"x\" ops (1,)",
         r"DSF-E011: line 2, column 29: found 'ops'; expected ops, scope, site, group or the end of the line, .*"),
        ("elementwise(expr=ad:float32(x0)) ->",
         r"DSF-E012: line 2, column 18: no primitive named 'ad'; known: abs, .*"),
        ("elementwise(expr=add:float32(x0)) ->", r"DSF-E011: line 2, column 18: add has 1 operands; expected 2"),
        ('fill(value="\\q") ->', r'DSF-E011: line 2, column 12: "\\q" is not a string as JSON has it'),
        ('fill(value=device("moon")) ->', r"DSF-E011: line 2, column 12: device of \('moon',\) is none"),
    ],
)  # fmt: skip
def test_what_is_no_intent_is_answered_with_line_and_column(line, sentence):
    with pytest.raises(errors.IntentError, match=f"^{sentence}$"):
        load(f"# first\n{line}\n")


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet='fil()=-> %0[2]:oat"x,{}+$\\ \u00e9', max_size=40))
def test_no_text_ends_in_anything_but_intents_or_a_sentence(text):
    with suppress(errors.IntentError):
        assert load(text) == () or "->" in text


def test_an_attribute_without_a_text_is_named():
    with pytest.raises(errors.IntentError, match=r"^DSF-E010: a set has no text: \{1\}; leave it out of attributes$"):
        dump([Intent("fill", (), (), (("value", {1}),))])
