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

__all__ = ["Kernel", "Limit"]


@frozen(eq=False)
class Limit:
    """A condition in words, and whether an intent on a chip meets it."""

    words: str
    holds: Callable[[Chip, Intent], bool]
    source: str = ""


@frozen(eq=False)
class Kernel:
    """One kernel of a library.

    *emit* writes the program for an intent; it may raise KernelError where a tile does not fit. *reference* computes
    the outputs on whole tensors in plain torch with casts at the kernel's own rounding points (fidelity `operator`).
    *rounding* states the bound of the difference between the two, in units of the output format's last place.
    """

    name: str
    kind: str
    library: str
    emit: Callable[[Target, Intent], Program]
    reference: Callable[..., tuple[torch.Tensor, ...]]
    limits: tuple[Limit, ...] = ()
    rounding: str = ""
    source: str = ""

    def refusal(self, chip: Chip, intent: Intent) -> str | None:
        """The first limit that *intent* breaks, in words; None when the kernel may serve it."""
        return next((limit.words for limit in self.limits if not limit.holds(chip, intent)), None)
