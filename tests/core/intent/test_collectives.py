"""Functional collectives on hand-made tapes: no group of processes is needed to read what one would do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dsf.intent import Buffer, Intent, Op, Scope, Signature, Slot, Tape, Window, check, flops, meaning, parse

f32 = torch.float32


def tape(name: str, *args: Any, out: tuple[int, ...], shape: tuple[int, ...] = (4, 6)) -> Tape:
    """One collective of a tensor of *shape*, then waiting for its result."""
    given, made = (Window(s, (s[1], 1), 0, f32) for s in (shape, out))
    start = Signature(0, f"_c10d_functional.{name}.default", (Slot(0), *args), (), (given, made), (1,), (1,))
    wait = Signature(1, "_c10d_functional.wait_tensor.default", (Slot(0),), (), (made,), (), (0,))
    buffers = Buffer(96, 1 << 20, live=True), Buffer(4 * out[0] * out[1], None, live=True)
    return Tape((Op(start, (0, 1), Scope(), None), Op(wait, (1,), Scope(), None)), buffers)


def only(recorded: Tape) -> Intent:
    intents = parse(recorded)
    check(intents, recorded)
    first, waiting = intents
    assert (waiting.kind, waiting.inputs, waiting.outputs) == ("nothing", (), ())
    return first


@pytest.mark.parametrize(
    ("name", "args", "out", "op", "how", "ranks"),
    [
        ("all_gather_into_tensor", (4, "tp"), (16, 6), "all_gather", None, 4),
        ("reduce_scatter_tensor", ("sum", 2, "tp"), (2, 6), "reduce_scatter", "sum", 2),
        ("reduce_scatter_tensor", ("avg", 2, "tp"), (2, 6), "reduce_scatter", "mean", 2),
    ],
)
def test_a_collective_of_known_size_says_its_ranks(name, args, out, op, how, ranks):
    intent = only(tape(name, *args, out=out))
    assert dict(intent.attrs) == {"group": tuple(range(ranks)), "op": op, "reduce": how}
    assert intent.outputs[0].shape == out
    assert flops(intent) == 0
    assert meaning(intent, torch.ones(4, 6))[0].shape == out


@pytest.fixture
def group():
    """A process group of torch whose members are pretended."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield torch.distributed.group.WORLD.group_name
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("name", "args", "op", "how"),
    [
        ("all_reduce", ("sum",), "all_reduce", "sum"), ("all_reduce", ("max",), "all_reduce", "max"),
        ("broadcast", (1,), "broadcast", None),
        ("all_to_all_single", ((1, 1, 1, 1), (1, 1, 1, 1)), "all_to_all", None),
    ],
)  # fmt: skip
def test_a_group_that_torch_knows_says_its_ranks(group, name, args, op, how):
    intent = only(tape(name, *args, group, out=(4, 6)))
    assert dict(intent.attrs) == {"group": (0, 1, 2, 3), "op": op, "reduce": how}


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("all_reduce", ("sum", "nobody")),
        ("all_reduce", ("band", "nobody")),
        ("broadcast", (0, "nobody")),
    ],
)
def test_a_group_that_nobody_knows_is_left_as_it_stands(name, args):
    assert only(tape(name, *args, out=(4, 6))).kind == "opaque"


def test_parts_of_different_sizes_are_left_as_they_stand(group):
    assert only(tape("all_to_all_single", (2, 1, 1, 0), (1, 1, 1, 1), group, out=(4, 6))).kind == "opaque"


def test_a_reduction_that_no_kind_has_is_left_as_it_stands(group):
    assert only(tape("all_reduce", "product", group, out=(4, 6))).kind == "opaque"
