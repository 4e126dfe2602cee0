"""Cutting a tape where repeated modules begin and end, and what makes two segments one plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dsf.segments import cut, unit


@pytest.fixture
def write(session_on: Callable[..., Any], hand: Any) -> Any:
    return hand(session_on())


@pytest.mark.parametrize(
    ("path", "repeated"),
    [
        ("", ""),
        ("model", ""),
        ("model.norm", ""),
        ("model.layers.3", "model.layers.3"),
        ("model.layers.3.self_attn.q_proj", "model.layers.3"),
        ("blocks.10.experts.2.up", "blocks.10"),
        ("model.layer3.0x1", ""),
    ],
)
def test_a_repeated_module_is_a_path_up_to_its_first_number(path: str, repeated: str) -> None:
    assert unit(path) == repeated


def test_a_tape_is_cut_where_repeated_modules_begin_and_end(write: Any) -> None:
    x = write.put(torch.zeros(4))
    for scope in ("", "model.layers.0.mlp", "model.layers.0", "model.layers.1.mlp", "model.norm", "head", "layers.1"):
        x = write.op("add.Tensor", x, 1.0, scope=scope)
    lengths = [(len(s.tape.ops), s.tape.ops[0].scope.path) for s in cut(write.tape())]
    assert lengths == [
        (1, ""), (2, "model.layers.0.mlp"), (1, "model.layers.1.mlp"), (2, "model.norm"), (1, "layers.1"),
    ]  # fmt: skip


def test_an_empty_tape_has_no_segments(write: Any) -> None:
    assert cut(write.tape()) == ()


def test_equal_layers_have_equal_keys_and_their_own_buffers(write: Any) -> None:
    x = write.put(torch.zeros(2, 8))
    for n in range(3):
        weight = write.put(torch.zeros(8, 8))
        y = write.op("linear.default", x, weight, scope=f"layers.{n}")
        x = write.op("relu.default", y, scope=f"layers.{n}", keep=n == 2)
    first, second, third = cut(write.tape())
    assert second.key == third.key
    assert second.buffers == (3, 4, 5, 6)
    assert third.buffers == (6, 7, 8, 9)
    assert [op.buffers for op in third.tape.ops] == [(0, 1, 2), (2, 3)]
    assert first.key != second.key, "the first one reads the input of the step, which somebody holds"


def test_keys_tell_apart_what_a_plan_depends_on(write: Any) -> None:
    """The operation, its arguments, which buffers are the same, who sees a result."""
    x, y = write.put(torch.zeros(8)), write.put(torch.zeros(8))
    write.op("add.Tensor", x, y, scope="layers.0")
    write.op("add.Tensor", y, x, scope="layers.1")
    write.op("add.Tensor", x, x, scope="layers.2")
    write.op("mul.Tensor", x, y, scope="layers.3")
    write.op("add.Tensor", x, y, alpha=2, scope="layers.4")
    write.op("add.Tensor", x, y, keep=True, scope="layers.5")
    keys = [segment.key for segment in cut(write.tape())]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 5


def test_who_reads_whom_is_part_of_a_key(write: Any) -> None:
    """The same operations on as many buffers: x * -x in one layer, (-x) * -x in the other."""
    x = write.put(torch.zeros(8))
    for n in range(2):
        negative = write.op("neg.default", x, scope=f"layers.{n}")
        write.op("mul.Tensor", negative if n else x, negative, scope=f"layers.{n}")
    first, second = cut(write.tape())
    assert len(first.buffers) == len(second.buffers) == 3
    assert first.key != second.key


def test_what_a_later_segment_reads_stays_visible(write: Any) -> None:
    """Inside its own segment such a buffer is live, so that no match swallows it; for the step it is a temporary."""
    x = write.put(torch.zeros(8))
    inner = write.op("relu.default", x, scope="layers.0")
    passed = write.op("neg.default", inner, scope="layers.0")
    write.op("abs.default", passed, scope="layers.1", keep=True)
    first, second = cut(write.tape())
    assert [first.tape.buffers[first.buffers.index(r.buffer)].live for r in (inner, passed)] == [False, True]
    assert second.tape.buffers[second.buffers.index(passed.buffer)].live is False
    assert write.tape().buffers[passed.buffer].live is False


def test_lines_and_modules_are_no_part_of_a_key(write: Any) -> None:
    x = write.put(torch.zeros(8))
    for n, line in enumerate((5, 50)):
        write.op("relu.default", x, scope=f"layers.{n}", line=line)
    first, second = cut(write.tape())
    assert first.key == second.key
    assert [s.tape.ops[0].site.line for s in (first, second) if s.tape.ops[0].site] == [5, 50]
