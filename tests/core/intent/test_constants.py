"""What is the same in every step, and what must be done again."""

from __future__ import annotations

import math

import pytest
import torch
from attrs import evolve
from torch.nn import functional as F

from dsf.intent import parse
from dsf.intent.constants import Constants, constants

f32 = torch.float32


def x(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def found(recording, *weights: int, live: tuple[int, ...] = ()) -> tuple[Constants, list[str]]:
    """The constants of a recording whose buffers *weights* (in order of first use) nobody ever wrote."""
    buffers = [
        evolve(b, constant=n in weights, live=(b.live and b.address is not None) or n in live)
        for n, b in enumerate(recording.tape.buffers)
    ]
    intents = parse(recording.tape)
    result = constants(intents, buffers)
    return result, [intents[at].kind for at in result.once]


def causal_mask(n: int) -> torch.Tensor:
    rows, columns = torch.arange(n)[:, None], torch.arange(n)[None]
    return torch.where(columns <= rows, torch.full((), 0.0), torch.full((), -math.inf))


def test_a_causal_mask_made_from_positions_is_made_once(record):
    def step(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=causal_mask(5))

    recording = record(step, *(x(1, 2, 5, 8) for _ in range(3)))
    result, kinds = found(recording)
    assert kinds == ["iota", "iota", "elementwise"]
    attention = recording.parsed()[-1]
    assert (result.kept, result.sources) == ((attention.inputs[3].buffer,), ())


def test_alibi_is_made_once(record):
    """transformers build_alibi_tensor: slopes from powers, times positions."""

    def step(scores):
        slopes = torch.pow(torch.tensor(0.25), torch.arange(1, 5, dtype=torch.int32))
        return scores + slopes[:, None, None] * torch.arange(7)[None, None]

    assert found(record(step, x(4, 7, 7)), 0)[1] == ["iota", "elementwise", "iota", "elementwise"]


def test_a_weight_that_is_widened_is_widened_once(record):
    recording = record(lambda a, w: F.linear(a, w.double()), x(3, 8).double(), x(4, 8))
    result, kinds = found(recording, 0)
    assert kinds == ["elementwise"]
    assert (result.sources, result.saved) == ((0,), 4 * 8 * 4 + 4 * 8 * 8)
    assert found(recording)[1] == []


def test_a_table_of_positions_that_are_given_is_made_again(record):
    def step(inverse, positions):
        return torch.cos(inverse * positions) + 1

    assert found(record(step, x(4), x(4)), 0)[1] == []


def test_what_outlives_the_step_is_written_each_time(record):
    recording = record(lambda a: torch.arange(4) + 1, x(1))
    result, kinds = found(recording)
    assert kinds == ["iota", "elementwise"]
    assert result.kept == ()
    kept = recording.parsed()[-1].outputs[0].buffer
    assert found(recording, live=(kept,))[1] == ["iota"]


def test_a_buffer_that_is_there_before_is_written_each_time(record):
    recording = record(lambda a: a.copy_(torch.arange(4.0)), x(4))
    assert found(recording, 0)[1] == ["iota"]


def test_a_buffer_written_in_parts_is_constant_only_as_a_whole(record):
    def step(a, part):
        table = torch.zeros(4)
        table[:2] = torch.arange(2.0)
        table[2:] = part
        return a + table

    recording = record(step, x(4), x(2))
    assert found(recording, 2)[1] == ["fill", "iota", "copy", "copy"]
    assert found(recording)[1] == ["iota"]


def test_who_reads_between_two_writes_keeps_both_in_the_step(record):
    def step(a):
        table = torch.zeros(4)
        early = a + table.cumsum(0)
        late = a * table
        table.fill_(1)
        return early, late, a + table

    kinds = found(record(step, x(4)))[1]
    assert "fill" not in kinds


@pytest.mark.parametrize("depth", [1, 5])
def test_a_chain_is_constant_to_its_end_and_no_further(record, depth):
    def step(a):
        table = torch.arange(6.0)
        for _ in range(depth):
            table = table.cumsum(0)
        return (a * table).cumsum(0)

    result, kinds = found(record(step, x(6)))
    assert kinds == ["iota", *["cumsum"] * depth]
    assert len(result.kept) == 1
