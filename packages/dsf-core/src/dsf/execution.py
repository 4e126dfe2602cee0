"""Carrying a step out on emulated memory: a program's instructions, or a whole-tensor function in their place."""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import define, field

from dsf.intent.ir import Intent
from dsf.intent.tape import Region
from dsf.isa.program import Program
from dsf.machine.arena import Arena
from dsf.machine.functional import Bound, Functional, Unrolled

__all__ = ["Executor"]

MOST_BOUND = 3_000_000  # bound instructions kept, 8 to 200 bytes each


@define(eq=False)
class Executor:
    """Runs programs and functions over *arena*. A program is unrolled once and bound once per set of addresses.

    Programs are known by identity: whoever launches one keeps it as long as this. What was launched is appended to
    *log*, where there is one.
    """

    machine: Functional
    arena: Arena
    _unrolled: dict[int, Unrolled] = field(factory=dict)
    _bound: dict[tuple[int, tuple[int, ...]], Bound] = field(factory=dict)
    _kept: int = 0
    log: list[Bound] | None = None

    def launch(self, program: Program, places: tuple[int, ...]) -> None:
        """Execute *program* with its parameters at *places*."""
        bound = self._bound.get((id(program), places))
        if bound is None:
            bound = self._bind(program, places)
        bound.run()
        if self.log is not None:
            self.log.append(bound)

    def _bind(self, program: Program, places: tuple[int, ...]) -> Bound:
        unrolled = self._unrolled.get(id(program))
        if unrolled is None:
            unrolled = self._unrolled[id(program)] = self.machine.unroll(program)
        bound = self.machine.bind(unrolled, places)
        self._kept += len(bound.steps)
        if self._kept > MOST_BOUND:
            self._bound.clear()
            self._kept = len(bound.steps)
        self._bound[id(program), places] = bound
        return bound

    def compute(
        self, intent: Intent, function: Callable[..., tuple[torch.Tensor, ...]], places: tuple[int, ...]
    ) -> None:
        """Apply *function* to the intent's inputs in device memory and store its results there."""
        regions = (*intent.inputs, *intent.outputs)
        windows = [self._window(region, place) for region, place in zip(regions, places, strict=True)]
        count = len(intent.inputs)
        for out, value in zip(windows[count:], function(*windows[:count]), strict=True):
            out.copy_(value)

    def _window(self, region: Region, address: int) -> torch.Tensor:
        return self.arena.window(address, region.shape, region.stride, region.dtype)
