"""No flag is decoration: a program that loses one pair races, hangs, leaves a flag behind, or takes another time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from attrs import evolve

from dsf import errors
from dsf.isa.program import Instruction, Loop, Program
from dsf.machine.ordering import check


def half(*shape: int) -> torch.Tensor:
    """Never read: programs are written and checked, not run."""
    return torch.empty(shape, dtype=torch.float16)


def index(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int64)


WANTED = {  # so deep that every loop goes round several times, and even: 7680 is a multiple of every likely slab
    "linear": lambda b: ([half(128, 7680), half(6144, 7680), half(6144)], [half(128, 6144)],
                         {"has_bias": True, "transposed": True}),
    "attention": lambda b: ([half(2, 16, 256, 7680), half(2, 1, 7680, 7680), half(2, 1, 7680, 7680)],
                            [half(2, 16, 256, 7680)],
                            {"causal": True, "groups": 16, "has_mask": False, "scale": 0.25}),
    "rms_norm": lambda b: ([half(48_000, 512), half(512)], [half(48_000, 512)],
                           {"eps": 1e-5, "compute": torch.float32, "weight_after_cast": True}),
    "softmax": lambda b: ([half(48_000, 512)], [half(48_000, 512)], {"dim": 1, "log": False}),
    "gated_activation": lambda b: ([half(48_000, 512)] * 2, [half(48_000, 512)], {"act": "silu"}),
    "index": lambda b: ([half(1000, 512), index(48_000)], [half(48_000, 512)], {"dims": (0,)}),
    "gather": lambda b: ([half(48_000, 512), index(48_000, 16)], [half(48_000, 16)], {"dim": 1}),
    "scatter": lambda b: ([half(48_000, 512), index(48_000, 16), half(48_000, 16)], [half(48_000, 512)],
                          {"dim": 1, "has_src": True, "reduce": "add", "value": None}),
    "index_put": lambda b: ([half(100, 4, 512), half(99, 4, 512), index(99)], [half(100, 4, 512)],
                            {"accumulate": True, "dims": (0,)}),
    "kv_append": lambda b: ([half(2, 4000, 512), half(2, 3000, 512), index(3000)], [half(2, 4000, 512)], {"dim": 1}),
    "top_k": lambda b: ([half(48_000, 384)], [half(48_000, 8), index(48_000, 8)], {"dim": 1, "k": 8, "largest": True}),
    "sort": lambda b: ([half(48_000, 128)], [half(48_000, 128), index(48_000, 128)], {"descending": False, "dim": 1}),
    "grouped_linear": lambda b: ([half(3840, 7680), half(8, 7680, 7680), index(8)], [half(3840, 7680)],
                                 {"transposed": True}),
    "add_rms_norm": lambda b: ([half(48_000, 512), half(48_000, 512), half(512)], [half(48_000, 512)] * 2,
                               {"eps": 1e-5, "compute": torch.float32, "weight_after_cast": True}),
    "quantise": lambda b: ([half(48_000, 512), half(48_000, 1)], [half(48_000, 512).char()], {"has_zero": False}),
    "scaled_linear": lambda b: ([half(128, 7680).char(), half(6144, 7680).char(), half(128, 1), half(6144)],
                                [half(128, 6144)], {"has_bias": False, "transposed": True}),
    "convolution": lambda b: ([half(2, 1920, 64, 120), half(128, 1920, 2, 2)], [half(2, 128, 63, 119)],
                              {"dilation": (1, 1), "groups": 1, "has_bias": False, "padding": (0, 0),
                               "stride": (1, 1)}),
    "concat": lambda b: ([half(48_000, 512)] * 2, [half(96_000, 512)], {"dim": 0}),
}  # fmt: skip


def flags(body: tuple[Instruction | Loop, ...], isa) -> Iterator[Instruction]:
    for item in body:
        if isinstance(item, Loop):
            yield from flags(item.body, isa)
        elif isa.rows[item.name].flag is not None:
            yield item


def rounds(body: tuple[Instruction | Loop, ...]) -> list[int]:
    """How often each loop of a body goes round."""
    loops = [item for item in body if isinstance(item, Loop)]
    return [n for loop in loops for n in (loop.count, *rounds(loop.body))]


def pairs(program: Program, isa) -> Iterator[tuple[Instruction, Instruction]]:
    """Every flag that is set with every wait for a flag of the same two engines, in nests whose loops all go round, or
    whose block repeats: at an edge of a single round the queues' own order may do instead."""
    for phase in program.phases:
        for nest in phase.nests:
            if min(rounds(nest.body) or [nest.blocks]) < 3:
                continue
            found = list(flags(nest.body, isa))
            for first in (f for f in found if isa.rows[f.name].flag == "set"):
                for second in (f for f in found if isa.rows[f.name].flag == "wait"):
                    if (
                        dict(first.scalars)["src"] == dict(second.scalars)["src"]
                        and dict(first.scalars)["dst"] == dict(second.scalars)["dst"]
                    ):
                        yield first, second


def without(body, gone):
    for item in body:
        if isinstance(item, Loop):
            yield evolve(item, body=tuple(without(item.body, gone)))
        elif not any(item is lost for lost in gone):
            yield item


def thinned(program: Program, gone: tuple[Instruction, ...]) -> Program:
    phases = tuple(
        evolve(phase, nests=tuple(evolve(nest, body=tuple(without(nest.body, gone))) for nest in phase.nests))
        for phase in program.phases
    )
    return evolve(program, phases=phases)


def is_noticed(bench, program: Program, gone: tuple[Instruction, ...]) -> bool:
    changed = thinned(program, gone)
    try:
        check(changed, bench.isa, bench.chip)
        return bench.timing(changed).phases != bench.timing(program).phases
    except errors.MachineError as error:
        return error.code in ("DSF-X020", "DSF-X021", "DSF-X022")


@pytest.mark.parametrize("kind", WANTED)
def test_losing_any_pair_of_flags_is_noticed(bench, kind):
    inputs, outputs, attrs = WANTED[kind](bench)
    _, program = bench.chosen(bench.intent(kind, inputs, outputs, **attrs))
    check(program, bench.isa, bench.chip)
    candidates = list(pairs(program, bench.isa))
    assert len(candidates) >= 2
    silent = [pair for pair in candidates if not is_noticed(bench, program, pair)]
    assert [f"{first} / {second}" for first, second in silent] == []
