"""What is known about operands before anybody decides how they lie."""

from __future__ import annotations

import torch
from attrs import evolve
from torch.nn import functional as F

from dsf.intent import KINDS, parse
from dsf.intent.hints import _BY_OPERAND, WANTS, hints


def x(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def of(recording, *weights: int):
    """Intents and hints; the buffers *weights* (in order of first use) are weights."""
    buffers = [evolve(b, constant=n in weights) for n, b in enumerate(recording.tape.buffers)]
    intents = parse(recording.tape)
    return list(zip(intents, hints(intents, buffers), strict=True))


def test_a_product_says_along_which_axis_each_operand_is_summed(record):
    (_, stored), (_, plain), (_, batched) = of(
        record(lambda a, w, v: F.linear(a, w) @ v @ v.expand(2, 5, 5), x(2, 3, 8), x(5, 8), x(5, 5)), 1, 3
    )
    assert [(h.wants, h.contracted) for h in stored.inputs] == [("matrix", 2), ("matrix", 1)]
    assert [(h.wants, h.contracted) for h in plain.inputs] == [("matrix", 2), ("matrix", 0)]
    assert [(h.wants, h.contracted) for h in batched.inputs] == [("matrix", 2), ("matrix", 1)]
    assert [h.constant for h in (*stored.inputs, *plain.inputs)] == [False, True, False, True]


def test_a_norm_reads_rows_and_its_weight_once(record):
    ((_, hint),) = of(record(lambda a, w, b: F.layer_norm(a, (8,), w, b), x(3, 8), x(8), x(8)), 1, 2)
    assert [h.wants for h in hint.inputs] == ["rows", "vector", "vector"]


def test_every_output_knows_who_reads_it_next(record):
    def step(a, w):
        y = F.linear(a, w)
        return y.cumsum(0), torch.softmax(y, -1) @ w

    found = of(record(step, x(3, 8), x(8, 8)))
    assert [intent.kind for intent, _ in found] == ["linear", "cumsum", "softmax", "linear"]
    assert [hint.readers for _, hint in found] == [(((1, 0), (2, 0)),), ((),), (((3, 0),),), ((),)]


def test_a_buffer_that_is_overwritten_has_readers_of_its_own_time(record):
    def step(a):
        b = torch.zeros(3)
        first = b.cumsum(0)
        b.copy_(a)
        return first, b.cumsum(0)

    found = of(record(step, x(3)))
    assert [i.kind for i, _ in found] == ["fill", "cumsum", "copy", "cumsum"]
    assert (found[0][1].readers, found[2][1].readers) == ((((1, 0),),), (((3, 0),),))


def test_a_cache_that_is_appended_to_grows(record):
    def step(q, k, v, new):
        k = torch.cat((k, new), 2)
        return F.scaled_dot_product_attention(q, k, torch.cat((v, new), 2)), k

    found = of(record(step, x(1, 2, 1, 8), x(1, 2, 5, 8), x(1, 2, 5, 8), x(1, 2, 1, 8)))
    attention = next(hint for intent, hint in found if intent.kind == "attention")
    assert [h.grows for h in attention.inputs] == [False, True, True]
    assert [h.wants for h in attention.inputs] == ["matrix"] * 3
    assert [h.contracted for h in attention.inputs] == [3, 3, 2]


def test_a_cache_that_is_written_in_place_grows_too(record):
    def step(q, k, v, new, position):
        k.index_copy_(2, position, new)
        v.index_copy_(2, position, new)
        return F.scaled_dot_product_attention(q, k, v)

    inputs = x(1, 2, 1, 8), x(1, 2, 5, 8), x(1, 2, 5, 8), x(1, 2, 1, 8), torch.tensor([3])
    found = of(record(step, *inputs))
    append, _, attention = (hint for _, hint in found)
    assert [h.wants for h in append.inputs] == ["slices", "numbers", "places"]
    assert [h.grows for h in attention.inputs] == [False, True, True]


def test_fresh_keys_do_not_grow(record):
    found = of(record(lambda a, k: F.scaled_dot_product_attention(a, k * 2, k * 3), x(1, 2, 3, 8), x(1, 2, 3, 8)))
    assert [h.grows for h in found[-1][1].inputs] == [False, False, False]


def test_every_operand_that_has_a_row_is_one_of_its_kind():
    for kind, operand in _BY_OPERAND:
        assert operand in {name.rstrip("?*") for name in KINDS[kind].inputs}, (kind, operand)
    assert {wants for wants, _ in _BY_OPERAND.values()} <= set(WANTS)


def test_starred_operands_are_all_read_alike(record):
    def step(a, b, i):
        return torch.cat((a, b))[i] + 1

    concat, index, last = (hint for _, hint in of(record(step, x(3, 4), x(2, 4), torch.tensor([1, 0]))))
    assert [h.wants for h in concat.inputs] == ["numbers", "numbers"]
    assert [h.wants for h in index.inputs] == ["slices", "places"]
    assert [h.wants for h in last.inputs] == ["numbers"]
