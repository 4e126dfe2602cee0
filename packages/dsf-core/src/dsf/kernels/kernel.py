"""What a kernel is: a program generator for one kind of intent, with its limits as data and its source.

A program's parameters are, in this order, the intent's inputs, its outputs, then workspaces; each input or output is
bound to the address of its region's first element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from attrs import frozen

from dsf.hdl import Chip
from dsf.intent.ir import Intent
from dsf.isa.program import Program

if TYPE_CHECKING:
    from dsf.kernels.target import Target

__all__ = ["AS_IT_IS", "EXACT", "Kernel", "Limit", "Rounding", "Variant"]

Variant = tuple[int | str, ...]
"""One of several programs that a kernel can write for an intent: the tile of a product, say."""

AS_IT_IS: Variant = ()
"""The only variant of a kernel that has none; of one that has some, whichever its generator takes for the quickest."""


@frozen(eq=False)
class Limit:
    """A condition in words, and whether an intent on a chip meets it."""

    words: str
    holds: Callable[[Chip, Intent], bool]
    source: str = ""


@frozen
class Rounding:
    """How far a program may be from its kernel's reference, and why.

    *narrow* is for results of 16 bits, *wide* for float32, in units of the result's last place at its own size or at
    the mean size of all, whichever is larger (so that a cancellation counts as what it was computed from). Whole
    numbers and truth values are equal.
    """

    narrow: int
    wide: int
    why: str

    def __str__(self) -> str:
        if self.narrow == self.wide == 0:
            return f"bit-equal to its reference: {self.why}"
        return f"within {self.narrow} ulp of its reference ({self.wide} in float32): {self.why}"

    def excess(self, result: torch.Tensor, reference: torch.Tensor) -> str | None:
        """How *result* breaks the statement, in words; None where it keeps it. NaN is equal to NaN."""
        different = (result != reference) & ~(result.isnan() & reference.isnan())
        if not different.any():
            return None
        allowed = (self.narrow if result.itemsize == 2 else self.wide) if result.is_floating_point() else 0
        found = _distance(result, reference)[different].max().item() if allowed else float("inf")
        return f"{found} ulp from the reference, {allowed} are stated" if not found <= allowed else None


EXACT = Rounding(0, 0, "nothing is computed in another order or precision")


def _distance(result: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """|result - reference| in units of the last place of the reference or of its mean size."""
    wanted = reference.double()
    size = wanted.abs().nan_to_num(0, 0, 0)
    unit = torch.exp2(torch.maximum(size, size.mean()).log2().floor()) * torch.finfo(result.dtype).eps
    return (result.double() - wanted).abs() / unit


@frozen(eq=False)
class Kernel:
    """One kernel of a library.

    *emit* writes the program for an intent; it may raise KernelError where a tile does not fit. Where *variants* names
    several programs for an intent, *emit* takes one of them as a third argument; all have the same reference. The
    *reference* computes the outputs on whole tensors in plain torch with casts at the kernel's own rounding points
    (fidelity `operator`). *rounding* states the bound of the difference between the two.
    """

    name: str
    kind: str
    library: str
    emit: Callable[..., Program]
    reference: Callable[..., tuple[torch.Tensor, ...]]
    limits: tuple[Limit, ...] = ()
    rounding: Rounding = EXACT
    source: str = ""
    variants: Callable[[Target, Intent], tuple[Variant, ...]] = lambda target, intent: (AS_IT_IS,)

    def write(self, target: Target, intent: Intent, variant: Variant = AS_IT_IS) -> Program:
        """The program of *variant* for *intent*; a KernelError where it cannot be."""
        return self.emit(target, intent, variant) if variant else self.emit(target, intent)

    def refusal(self, chip: Chip, intent: Intent) -> str | None:
        """The first limit that *intent* breaks, in words; None when the kernel may serve it."""
        return next((limit.words for limit in self.limits if not limit.holds(chip, intent)), None)
