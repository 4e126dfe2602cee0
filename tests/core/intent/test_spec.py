"""What check refuses, and in which words."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve
from torch.nn import functional as F

from dsf import errors
from dsf.intent import check, parse
from dsf.intent.ir import attributes


def pieces(tape):
    """One intent for each operation: nobody serves more."""
    return parse(tape, serves=lambda intent: False)


@pytest.fixture
def ffn(record):
    def step(a, up, down):
        return F.linear(F.relu(F.linear(a, up)), down)

    return record(step, torch.randn(3, 8), torch.randn(16, 8), torch.randn(8, 16))


def refused(code: str, sentence: str):
    return pytest.raises(errors.KernelError, match=f"^{code}: {sentence}")


def test_what_parse_returns_is_well_formed(ffn):
    check(pieces(ffn.tape), ffn.tape)


def test_an_operation_without_an_intent_is_named(ffn):
    with refused("DSF-K011", r"operation 2 \(aten.linear.default\): no intent covers it; every operation needs one$"):
        check(pieces(ffn.tape)[:-1], ffn.tape)


def test_an_operation_with_two_intents_is_named(ffn):
    intents = pieces(ffn.tape)
    with refused(
        "DSF-K010", r"intent 3 .*: covers operation 2 \(aten.linear.default\), as intent 2 does; cover each once$"
    ):
        check([*intents, intents[-1]], ffn.tape)


def test_a_value_read_before_it_is_written_is_named(ffn):
    up, act, down = pieces(ffn.tape)
    with refused(
        "DSF-K012", r"intent 0 .*: reads buffer 2 after 0 writes, operation 1 \(aten.relu.default\) after 1; keep"
    ):
        check([act, up, down], ffn.tape)


def test_a_value_overwritten_before_it_is_read_is_named(record):
    def step(a):
        b = a + 1
        a.zero_()
        return b

    recording = record(step, torch.randn(3))
    first, second = parse(recording.tape)
    with refused("DSF-K012", r"intent 1 .*: reads buffer 0 after 1 writes, operation 0 \(aten.add.Tensor\) after 0"):
        check([second, first], recording.tape)


def test_a_hidden_value_that_others_see_is_named(ffn):
    up, _, down = pieces(ffn.tape)
    greedy = evolve(down, ops=(1, 2), inputs=(up.outputs[0], down.inputs[1]))
    check([up, greedy], ffn.tape)
    seen = evolve(ffn.tape, buffers=tuple(evolve(b, live=True) for b in ffn.tape.buffers))
    with refused(
        "DSF-K013", r"intent 1 .*: hides buffer \d, which operation 1 \(aten.relu.default\) writes and others see"
    ):
        check([up, greedy], seen)


@pytest.mark.parametrize(
    ("code", "change", "sentence"),
    [
        ("DSF-K014", {"kind": "magic"}, "intent 0: no kind named 'magic'; known kinds: add_layer_norm, add_rms_norm"),
        ("DSF-K015", {"attrs": ()}, r"intent 0 .*: has the attributes \(\); a linear has \(has_bias, transposed\)$"),
        (
            "DSF-K015",
            {"attrs": attributes(activation=None, has_bias=False, transposed=True)},
            r"intent 0 .*: says activation=None, which a linear is without saying so; leave it out$",
        ),
        ("DSF-K016", {"inputs": 1}, r"intent 0 .*: has 1 inputs; a linear has \(x w\)$"),
        ("DSF-K018", {"outputs": "x"}, r"intent 0 .*: y has shape \(3, 8\); expected \(3, 16\)$"),
        (
            "DSF-K018",
            {"attrs": (("has_bias", False), ("transposed", False))},
            r"intent 0 .*: x ends in \(8,\), w contracts 16$",
        ),
    ],
)
def test_a_malformed_intent_is_answered_with_its_row(ffn, code, change, sentence):
    first, *rest = pieces(ffn.tape)
    if change.get("inputs") == 1:
        change = {"inputs": first.inputs[:1]}
    if change.get("outputs") == "x":
        change = {"outputs": (evolve(first.outputs[0], window=first.inputs[0].window),)}
    with refused(code, sentence):
        check([evolve(first, **change), *rest], ffn.tape)


def test_writing_over_an_input_is_refused(record):
    recording = record(lambda a: a.cumsum_(0), torch.randn(8, 8))
    (intent,) = parse(recording.tape)
    assert intent.kind == "opaque"
    with refused("DSF-K017", r"intent 0 .*: writes over an input that it still reads; make it opaque$"):
        check([evolve(intent, kind="cumsum", attrs=(("dim", 0),))], recording.tape)


def test_an_operand_from_elsewhere_is_named(ffn):
    up, *rest = pieces(ffn.tape)
    with refused("DSF-K019", r"intent 0 .*: takes buffer 4, which none of its operations reads; take what they read$"):
        check([evolve(up, inputs=(up.inputs[0], rest[-1].inputs[1])), *rest], ffn.tape)
