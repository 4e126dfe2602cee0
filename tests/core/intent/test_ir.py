"""The structural key, and how an intent prints."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

from dsf.intent import KINDS, Intent, Region, Window, key
from dsf.intent.ir import attributes
from dsf.intent.meaning import MEANINGS

f32 = torch.float32


def region(buffer: int, shape: tuple[int, ...] = (4, 8), stride: tuple[int, ...] = (8, 1), offset: int = 0) -> Region:
    return Region(buffer, Window(shape, stride, offset, f32))


def add(a: Region, b: Region, out: Region, constant: float = 1.0) -> Intent:
    expr = "add", f32, ("mul", f32, ("in", 0), ("const", f32, constant)), ("in", 1)
    return Intent("elementwise", (a, b), (out,), attributes(expr=expr))


def test_the_key_knows_no_buffer_numbers():
    assert key(add(region(0), region(1), region(2))) == key(add(region(7), region(3), region(9)))


def test_the_key_knows_which_operands_are_one_buffer():
    apart = key(add(region(0), region(1), region(2)))
    in_place = key(add(region(0), region(1), region(0)))
    squared = key(add(region(0), region(0), region(2)))
    assert len({apart, in_place, squared}) == 3


def test_the_key_knows_how_far_apart_they_are_in_it():
    near = key(add(region(0), region(0, offset=128), region(1)))
    far = key(add(region(0), region(0, offset=256), region(1)))
    assert near != far


def test_the_key_forgets_the_offset_but_not_its_alignment():
    """128 floats are 512 bytes; 4 floats are 16."""
    assert key(add(region(0, offset=128), region(1), region(2))) == key(add(region(0), region(1), region(2)))
    assert key(add(region(0, offset=4), region(1), region(2))) != key(add(region(0), region(1), region(2)))


def test_the_stride_of_a_single_row_means_nothing():
    one, other = region(0, (1, 8), (8, 1)), region(0, (1, 8), (64, 1))
    assert key(add(one, region(1, (1, 8)), region(2, (1, 8)))) == key(add(other, region(1, (1, 8)), region(2, (1, 8))))


def test_the_key_tells_equal_looking_numbers_apart():
    a, b, out = region(0), region(1), region(2)
    assert key(add(a, b, out, 0.0)) != key(add(a, b, out, -0.0))
    filled = Intent("fill", (), (out,), attributes(value=1))
    assert (
        len(
            {
                key(filled),
                key(evolve(filled, attrs=attributes(value=1.0))),
                key(evolve(filled, attrs=attributes(value=True))),
            }
        )
        == 3
    )


def test_a_missing_attribute_is_answered_with_the_known_ones():
    with pytest.raises(KeyError, match="a fill has no attribute 'scale'; it has value"):
        Intent("fill", (), (region(0),), attributes(value=1)).attr("scale")


def test_an_intent_prints_as_one_line():
    assert str(add(region(0), region(1), region(2), 2.0)) == (
        "elementwise(expr=add(mul(x0, 2.0), x1)) %0[4, 8].float32 %1[4, 8].float32 -> %2[4, 8].float32"
    )


def test_every_kind_has_a_meaning_and_sorted_attributes():
    assert set(MEANINGS) == set(KINDS)
    for name, kind in KINDS.items():
        assert list(kind.attrs) == sorted(kind.attrs), name
        assert kind.meaning


def test_an_attribute_with_its_default_is_not_written_and_can_be_asked_for():
    plain = Intent("attention", (), (), attributes("attention", causal=True, window=None, softcap=None))
    assert plain.attrs == (("causal", True),)
    assert plain.attr("window") is None
    assert attributes("attention", window=8) == (("window", 8),)
