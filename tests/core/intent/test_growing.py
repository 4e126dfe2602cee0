"""A step that grows is, at every length, what would have been recorded there."""

from __future__ import annotations

import pytest
import torch

from dsf import errors
from dsf.intent.growing import Growing
from dsf.intent.ir import Intent, attributes
from dsf.intent.tape import Region, Window

HEADS, WIDTH = 3, 8


def region(buffer: int, *shape: int, offset: int = 0) -> Region:
    return Region(buffer, Window(shape, torch.empty(shape, device="meta").stride(), offset, torch.float16))


WEIGHT = Intent("linear", (region(0, 1, 16), region(1, 4, 16)), (region(2, 1, 4),), attributes(has_bias=False))


def step(length: int) -> tuple[Intent, ...]:
    """Append one key to a cache, attend to all, and note the position: everything that depends on the length."""
    cache, new, grown = region(0, HEADS, length - 1, WIDTH), region(1, HEADS, 1, WIDTH), region(2, HEADS, length, WIDTH)
    query, result = region(3, HEADS, 1, WIDTH), region(4, HEADS, 1, WIDTH, offset=length * WIDTH)
    return (
        Intent("concat", (cache, new), (grown,), attributes(dim=1)),
        Intent("attention", (query, grown, grown), (result,), attributes(causal=False, scale=0.5)),
        Intent("fill", (), (region(5, 1),), attributes(value=length)),
        WEIGHT,
    )


@pytest.mark.parametrize("length", [2, 4, 5, 6, 7, 100, 4097])
def test_two_recordings_say_what_the_step_is_at_any_length(length: int) -> None:
    assert Growing(step(5), step(6), 5, 6).at(length) == step(length)
    assert Growing(step(40), step(8), 40, 8).at(length) == step(length)


def test_intents_that_do_not_grow_are_the_recorded_ones() -> None:
    assert Growing(step(5), step(6), 5, 6).at(9)[3] is WEIGHT


def test_one_length_says_nothing() -> None:
    with pytest.raises(errors.IntentError, match=r"^DSF-E001: both steps were recorded at length 5"):
        Growing(step(5), step(5), 5, 5)


def test_steps_that_do_something_else_are_refused() -> None:
    with pytest.raises(errors.IntentError, match=r"^DSF-E002: the step has 4 intents at length 5 and 3 at 6"):
        Growing(step(5), step(6)[:3], 5, 6)
    with pytest.raises(errors.IntentError, match=r"^DSF-E002: intent 0 \(concat\)"):
        Growing(step(5), step(6)[::-1], 5, 6)


def test_numbers_on_no_line_are_refused() -> None:
    other = Intent("fill", (), (region(5, 1),), attributes(value=2.5))
    with pytest.raises(errors.IntentError, match=r"DSF-E003: intent 0 \(fill\): 5 at length 5 and 2.5 at 6"):
        Growing(step(5)[2:3], (other,), 5, 6)
    with pytest.raises(errors.IntentError, match="no line of whole numbers"):
        Growing(step(5)[2:3], step(6)[2:3], 5, 8)  # one more in three steps
