"""Which kernel serves an intent, and why not the others.

Candidates are asked in the order of their offers: the vendor's library, generic, the fallback compiler. The first whose
limits hold and whose program can be written is taken; every refusal is kept in words. Nothing left means the host.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from attrs import define, field, frozen

from dsf import errors
from dsf.intent.ir import Intent, key
from dsf.intent.tape import Region
from dsf.isa import Program
from dsf.isa.program import dtype_name
from dsf.kernels.kernel import Kernel
from dsf.kernels.target import Target
from dsf.machine.ordering import check

__all__ = ["Choice", "Chooser"]

MATRIX_KINDS = ("linear", "matmul", "attention", "paged_attention", "latent_attention", "grouped_linear",
                "quant_linear", "scaled_linear", "convolution")  # fmt: skip
MOVING_KINDS = ("copy", "concat", "fill", "embedding", "nothing", "index", "gather", "scatter", "index_put",
                "kv_append")  # fmt: skip


@frozen(eq=False)
class Choice:
    """The kernel that serves an intent and its program; None, None for the host. *refused*: (kernel, why not) of those
    asked before."""

    kernel: Kernel | None
    program: Program | None
    refused: tuple[tuple[str, str], ...]

    @property
    def reason(self) -> str:
        """Why this one, in words."""
        if self.refused:
            return "; ".join(f"{name}: {why}" for name, why in self.refused)
        return "first offer" if self.kernel else "no kernel of this kind is offered"


@define(eq=False)
class Chooser:
    """Chooses for one chip; every verdict is kept, since equal intents have equal verdicts."""

    target: Target
    kernels: dict[str, tuple[Kernel, ...]]
    strict: bool = False
    _known: dict[object, Choice] = field(factory=dict)

    @classmethod
    def of(cls, target: Target, kernels: Iterable[Kernel], strict: bool = False) -> Chooser:
        by_kind: dict[str, list[Kernel]] = {}
        for kernel in kernels:
            by_kind.setdefault(kernel.kind, []).append(kernel)
        return cls(target, {kind: tuple(offers) for kind, offers in by_kind.items()}, strict)

    def __call__(self, intent: Intent) -> Choice:
        """The choice for *intent*; a DtypeError for a format that the HDL forbids."""
        asked = key(intent)
        known = self._known.get(asked)
        if known is None:
            known = self._known[asked] = self._choose(intent)
        return known

    def _choose(self, intent: Intent) -> Choice:
        refused: list[tuple[str, str]] = []
        if self._forbidden_here(intent):
            refused.append(("chip", f"the HDL computes {_formats(intent)} on the host"))
            return Choice(None, None, tuple(refused))
        for kernel in self.kernels.get(intent.kind, ()):
            why = kernel.refusal(self.target.chip, intent)
            if why is not None:
                refused.append((kernel.name, f"not so: {why}"))
                continue
            try:
                program = kernel.emit(self.target, intent)
            except errors.KernelError as error:
                refused.append((kernel.name, error.sentence))
                continue
            check(program, self.target.isa, self.target.chip)
            return Choice(kernel, program, tuple(refused))
        return Choice(None, None, tuple(refused))

    def _forbidden_here(self, intent: Intent) -> bool:
        """Whether some operand's format is computed on the host; an error if the HDL (or `strict`) says so."""
        if intent.kind in MOVING_KINDS:
            return False
        matrix = intent.kind in MATRIX_KINDS
        for place, region in enumerate((*intent.inputs, *intent.outputs)):
            name = dtype_name(region.dtype)
            rule = self.target.chip.numerics.rule(name)
            how = rule.matrix if matrix and _is_multiplied(intent, place, region) else rule.vector
            if how == "error" or (self.strict and how not in ("native", "scalar")):
                raise errors.DtypeError("DSF-N010", _refusal(self.target.chip.name, intent, name, how, self.strict))
            if how == "host":
                return True
        return False


def _is_multiplied(intent: Intent, place: int, region: Region) -> bool:
    """Whether an operand of a product's kind enters the matrix engine, or leaves it, as it is: masks, tables, lengths,
    ends, sums of whole numbers and packed weights do not."""
    if region.dtype.is_floating_point or intent.kind == "quant_linear":
        return region.dtype.is_floating_point
    return place < 2 or region.dtype == torch.int8


def _formats(intent: Intent) -> str:
    return ", ".join(sorted({dtype_name(r.dtype) for r in (*intent.inputs, *intent.outputs)}))


def _refusal(chip: str, intent: Intent, dtype: str, how: str, strict: bool) -> str:
    where = f" (recorded at {intent.site})" if intent.site else ""
    operand = next(r for r in (*intent.inputs, *intent.outputs) if dtype_name(r.dtype) == dtype)
    does = "cannot compute it" if how == "error" else f"computes it by way of {how}, which strict forbids"
    advice = "convert the tensor on the host, for example with .cpu().to(torch.float32)" + (
        ", or enable without strict" if strict else ""
    )
    scope = intent.scope.path or "outside any module"
    return f"{scope}: {intent.kind} on a {list(operand.shape)} tensor of {dtype}; {chip} {does}{where}; {advice}"
