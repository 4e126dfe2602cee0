"""Order, visibility and joining: what parse may do with a tape and what it must not."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from dsf.intent import Intent, Pattern, key, parse
from dsf.intent.chains import MAX_INPUTS, MAX_NODES
from dsf.intent.expression import text
from dsf.intent.graph import Graph
from dsf.intent.operators import build
from dsf.intent.patterns import Match

f32, f16 = torch.float32, torch.float16


def x(*shape: int, dtype: torch.dtype = f32) -> Tensor:
    return torch.randn(shape).to(dtype)


def test_a_chain_of_pointwise_operations_is_one_expression(record):
    recording = record(lambda a, b: ((a + b) * 2).exp() - b, x(3, 4), x(3, 4))
    assert text(recording.only("elementwise").attr("expr")) == "sub(exp(mul(add(x0, x1), 2.0)), x1)"
    recording.assert_same()


def test_every_rounding_of_a_chain_is_kept(record):
    recording = record(lambda a: ((a * 1.1).to(f32) * 1.1).to(f16) + a, x(64, dtype=f16))
    expr = recording.only("elementwise").attr("expr")
    assert text(expr) == "add(float16(mul(float32(mul(x0, 1.1)), 1.1)), x0)"
    assert [node[1] for node in (expr, expr[2], expr[2][2], expr[2][2][2])] == [f16, f16, f32, f32]
    recording.assert_same()


def test_a_value_read_twice_is_computed_once(record):
    def twice(a):
        shared = a.exp()
        return (shared + 1) * shared

    recording = record(twice, x(3, 4))
    assert recording.kinds() == ["elementwise", "elementwise"]
    recording.assert_same()


def test_a_value_that_stays_alive_is_computed_for_itself(record):
    def keep(a):
        kept = a.exp()
        return kept + 1, kept

    recording = record(keep, x(3, 4))
    assert recording.kinds() == ["elementwise", "elementwise"]
    recording.assert_same()


def test_another_view_of_a_value_is_not_joined(record):
    recording = record(lambda a: a.exp().t() + a, x(4, 4))
    assert recording.kinds() == ["elementwise", "elementwise"]
    recording.assert_same()


def test_a_small_operand_is_not_recomputed_for_every_row(record):
    recording = record(lambda a, b: a * b.exp(), x(5, 4), x(4))
    assert recording.kinds() == ["elementwise", "elementwise"]
    recording.assert_same()


def test_a_number_made_by_fill_moves_into_the_expression(record):
    recording = record(lambda a: torch.where(a > 0, a, torch.full((), -1.5)), x(3, 4))
    assert text(recording.only("elementwise").attr("expr")) == "where(gt(x0, 0.0), x0, -1.5)"
    recording.assert_same()


def test_a_filled_number_is_rounded_to_its_dtype_first(record):
    recording = record(lambda a: a + torch.full((), 0.1, dtype=f16).to(f32), x(3))
    assert text(recording.only("elementwise").attr("expr")) == "add(x0, 0.0999755859375)"
    recording.assert_same()


def test_a_filled_tensor_is_added_as_its_buffer_would_hold_it(record):
    recording = record(lambda a: a + torch.full((3,), 0.1, dtype=f16), x(3, dtype=f16))
    assert text(recording.only("elementwise").attr("expr")) == "add(x0, 0.0999755859375)"
    recording.assert_same()


def test_an_input_changed_in_between_stops_the_joining(record):
    def overwrite(a):
        moved = a + 1
        a.mul_(3)
        return moved * 2

    recording = record(overwrite, x(3, 4))
    assert recording.kinds() == ["elementwise"] * 3
    recording.assert_same()


def test_joining_never_lets_a_kernel_write_what_it_still_reads(record):
    """Joined, element (i, j) of a would be written before element (j, i) is computed from it."""

    def transpose_in_place(a):
        a.copy_(a.t() + 1)

    recording = record(transpose_in_place, x(4, 4))
    assert recording.kinds() == ["elementwise", "copy"]
    recording.assert_same()
    joinable = record(lambda a: a.add_((a.t() * 2).exp()), x(4, 4))
    assert len(joinable.kinds()) == 2
    joinable.assert_same()


def test_an_in_place_operation_writes_where_it_reads(record):
    recording = record(lambda a, b: a.add_(b).mul_(2), x(3, 4), x(3, 4))
    first = recording.parsed()[0]
    assert first.inputs[0] == first.outputs[0]
    recording.assert_same()


def test_a_shift_within_one_tensor_is_left_to_torch(record):
    recording = record(lambda a: a[1:].add_(a[:-1].clone()), x(6))
    assert recording.kinds() == ["copy", "elementwise"]
    recording.assert_same()
    interleaved = record(lambda a: a[:, 0].copy_(a[:, 1]), x(6, 2))
    assert interleaved.kinds() == ["opaque"]
    interleaved.assert_same()


def test_writes_into_parts_of_a_buffer_keep_their_order(record):
    def fill_rows(a, b):
        out = torch.empty(4, 3)
        out[:2] = a
        out[2:] = b
        out[1].zero_()
        return out * 2

    recording = record(fill_rows, x(2, 3), x(2, 3))
    assert recording.kinds() == ["nothing", "copy", "copy", "fill", "elementwise"]
    recording.assert_same()


def test_a_cache_written_in_place_is_read_after_the_write(record):
    def step(cache, new, q):
        cache.index_copy_(2, torch.tensor([3]), new)
        return F.scaled_dot_product_attention(q, cache, cache)

    recording = record(step, torch.zeros(1, 2, 4, 8), x(1, 2, 1, 8), x(1, 2, 1, 8))
    assert recording.kinds()[-2:] == ["kv_append", "attention"]
    put = recording.only("kv_append")
    assert put.inputs[0] == put.outputs[0]
    recording.assert_same(1e-6, 1e-6)


def test_expressions_stay_small_enough_for_a_kernel(record):
    def long_sum(*parts):
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    recording = record(long_sum, *(x(3) for _ in range(20)))
    assert max(len(i.inputs) for i in recording.parsed()) == MAX_INPUTS
    assert len(recording.kinds()) == 3
    recording.assert_same()


def test_long_chains_are_cut(record):
    def deep(a):
        for _ in range(40):
            a = a.tanh()
        return a

    recording = record(deep, x(3))
    assert [len(i.ops) for i in recording.parsed()] == [MAX_NODES - 1, 40 - (MAX_NODES - 1)]
    recording.assert_same()


def test_looking_at_a_shape_is_not_reading(record):
    def shape_of(a):
        b = a.exp()
        return torch.zeros_like(b), b + 1

    recording = record(shape_of, x(3))
    assert recording.kinds() == ["fill", "elementwise"]
    recording.assert_same()


def test_a_buffer_written_twice_is_not_hidden(record):
    def twice(a):
        b = a.exp()
        b.mul_(2)
        return b.sum() + 1

    graph = Graph(record(twice, x(3)).tape)
    (exp, double, total, _) = (node.writes[0].buffer for node in graph.nodes)
    assert exp == double
    assert (graph.hidden(exp), graph.hidden(total)) == (False, True)


def test_an_earlier_row_takes_operations_from_later_ones(record):
    """Both rows end in their own operation, and the second would hide the first one's result."""

    def negated(m: Match) -> Intent:
        return build("copy", m.anchor, m.anchor.args[:1])

    def exp_of_negated(m: Match) -> Intent:
        return build("copy", m.anchor, m.made_by(m.anchor.args[0], "neg.default").args[:1])

    rows = Pattern("neg", ("neg.default",), negated), Pattern("exp of neg", ("exp.default",), exp_of_negated)
    tape = record(lambda a: (-a).exp(), x(3)).tape
    assert [i.ops for i in parse(tape, rows)] == [(0,), (1,)]
    assert [i.ops for i in parse(tape, rows[::-1])] == [(0, 1)]


def test_parse_does_not_look_at_addresses(record):
    """Two recordings of one step live elsewhere, and are the same structure."""

    def step(a, w):
        return F.silu(F.linear(a, w)) * 2

    one, two = record(step, x(3, 8), x(4, 8)), record(step, x(3, 8), x(4, 8))
    assert list(map(key, one.parsed())) == list(map(key, two.parsed()))


def test_a_segment_sees_only_its_own_operations(record):
    """A buffer that an earlier segment wrote is an input like any other, even if it is not held at the end."""
    from attrs import evolve

    recording = record(lambda a: (a.exp() + 1) * 2, x(3))
    tail = evolve(recording.tape, ops=recording.tape.ops[1:])
    (intent,) = parse(tail)
    assert text(intent.attr("expr")) == "mul(add(x0, 1.0), 2.0)"
