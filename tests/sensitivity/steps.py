"""One short step of SmolLM2 on a chip whose instruction table may be spoilt, row by row.

Which instructions count is read from the programs that the real model launches. What becomes of a spoilt one is seen
on a decoder of the same form and sizes with one layer, few words and random weights.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache, wraps
from typing import Any

import torch
from attrs import define, evolve, field, frozen
from tests.sensitivity.bench import attached

from dsf import models
from dsf.isa import Isa, Row
from dsf.isa.program import Instruction, Loop, Program
from dsf.ledger import Ledger
from dsf.plugins import View

__all__ = ["SPOILERS", "Step", "deleted", "doubled", "replaced", "small_model", "smollm2", "spoilt", "step"]

PROMPT = tuple(range(5, 13))
WORDS = 512
Spoiler = Callable[[torch.Tensor], torch.Tensor]


@frozen
class Step:
    """A prompt of 8 tokens and one token more: the logits of both, the time on the device, the programs launched."""

    logits: tuple[torch.Tensor, ...]
    device_milliseconds: float
    programs: tuple[Program, ...]

    @property
    def instructions(self) -> tuple[str, ...]:
        """The names of all instructions of its programs."""
        return tuple(sorted({ins.name for program in self.programs for ins, _ in program.instructions()}))

    def computes_as(self, other: Step) -> bool:
        """Whether the logits of both are equal, NaN being equal to itself."""
        pairs = zip(self.logits, other.logits, strict=True)
        return all(torch.equal(a.nan_to_num(7e7), b.nan_to_num(7e7)) for a, b in pairs)


@define(eq=False)
class Recording(Ledger):
    """A ledger that keeps the programs that were launched."""

    programs: dict[Program, None] = field(factory=dict)

    def launch(self, *launch: Any) -> None:
        self.programs.update({part: None for part in launch if isinstance(part, Program)})
        super().launch(*launch)


def step(view: View, model: Any, fidelity: str, exact: bool = False) -> Step:
    """A step of *model*, which stays on the host, on the chip of *view*."""
    with attached(view, fidelity, exact=exact) as session, torch.no_grad():
        ledger = session.ledger = Recording(session.chip)
        placed = deepcopy(model).to("npu")
        ids = torch.tensor([PROMPT])
        first = placed(input_ids=ids.to("npu"), use_cache=True, logits_to_keep=1)
        second = placed(input_ids=ids[:, :1].to("npu"), cache=first.cache, use_cache=True, logits_to_keep=1)
        logits = tuple(out.logits.cpu() for out in (first, second))
        return Step(logits, session.report().device_milliseconds, tuple(ledger.programs))


@cache
def smollm2(dtype: torch.dtype) -> Any:
    """SmolLM2 with its weights."""
    if dtype != torch.float16:
        return deepcopy(smollm2(torch.float16)).to(dtype)
    return models.load(models.find("smollm2"), dtype, lambda stage, done, total: None).model


@cache
def small_model(dtype: torch.dtype) -> Any:
    """One layer of SmolLM2's form, with random weights."""
    from transformers import AutoModelForCausalLM

    config = deepcopy(smollm2(torch.float16).config)
    config.num_hidden_layers, config.vocab_size = 1, WORDS
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).to(dtype).eval()


# spoilt rows


def replaced(isa: Isa, row: Row) -> Isa:
    """*isa* with *row* for its row of that name."""
    return evolve(isa, rows={**isa.rows, row.name: row})


def spoilt(row: Row, spoil: Spoiler, forms: tuple[str, ...]) -> Row:
    """*row* whose *forms* write what *spoil* makes of their results."""
    own = {form: getattr(row, form) for form in forms}
    made = {name: (_value if name == "semantics" else _in_place)(how, spoil) for name, how in own.items() if how}
    return evolve(row, **made)


def _value(semantics: Callable[..., torch.Tensor], spoil: Spoiler) -> Callable[..., torch.Tensor]:
    @wraps(semantics)
    def wrong(*operands: Any, **scalars: Any) -> torch.Tensor:
        return spoil(semantics(*operands, **scalars))

    return wrong


def _in_place(form: Callable[..., Any], spoil: Spoiler) -> Callable[..., None]:
    @wraps(form)
    def wrong(dst: torch.Tensor, *operands: Any, **scalars: Any) -> None:
        form(dst, *operands, **scalars)
        dst.copy_(spoil(dst))

    return wrong


def _one_more(value: torch.Tensor) -> torch.Tensor:
    return value.logical_not() if value.dtype == torch.bool else value + 1


def _ruined(value: torch.Tensor) -> torch.Tensor:
    if value.is_floating_point():
        return torch.full_like(value, torch.nan)
    return value.bitwise_not()


SPOILERS: dict[str, Spoiler] = {"result + 1": _one_more, "no result": _ruined}
"""Tried in turn until the logits change: a softmax does not mind if 1 is added to the maximum that it subtracts."""


def doubled(row: Row) -> Row:
    """*row* at twice its cycles."""
    return evolve(row, cycles=lambda *asked: 2 * row.cycles(*asked))


# deleted instructions

Body = tuple[Instruction | Loop, ...]


def deleted(program: Program, name: str) -> Program:
    """*program* without its instructions called *name*."""
    phases = tuple(
        evolve(phase, nests=tuple(evolve(nest, body=_without(nest.body, name)) for nest in phase.nests))
        for phase in program.phases
    )
    return evolve(program, phases=phases)


def _without(body: Body, name: str) -> Body:
    kept = (evolve(i, body=_without(i.body, name)) if isinstance(i, Loop) else i for i in body)
    return tuple(i for i in kept if (i.body if isinstance(i, Loop) else i.name != name))
