"""The questions that DSF asks a plugin. A hook is declared here once somebody asks it, not before.

A plugin is a module (or object) that the entry-point group `dsf.chips` names; the entry point's name is the `vendor` of
the hardware descriptions that it answers for. It is asked about its own vendor's chips only, so no plugin ever tests
`chip.vendor`. What it leaves out, `generic` answers from the HDL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import pluggy
from attrs import frozen

from dsf.hdl import Chip

if TYPE_CHECKING:
    from dsf.isa import Isa
    from dsf.kernels.kernel import Kernel
    from dsf.machine.heat import Policy

__all__ = ["API", "Vendor", "dsf_kernels", "dsf_thermal_policy", "dsf_vendor", "hookimpl", "hookspec"]

API = (1, 2)
"""The version of these hooks. A plugin of the same major version and no higher minor one is accepted."""

hookspec, hookimpl = pluggy.HookspecMarker("dsf"), pluggy.HookimplMarker("dsf")


@frozen(eq=False)
class Vendor:
    """What a plugin declares of itself: the hook API it was written for, the chip to take when none is named, the
    instruction set of a chip, folders of further hardware descriptions, and folders of decision trees for its chips."""

    api: tuple[int, int]
    default_chip: str
    isa: Callable[[Chip], Isa]
    hdl_folders: tuple[str, ...] = ()
    tree_folders: tuple[str, ...] = ()


@hookspec(firstresult=True)
def dsf_vendor() -> Vendor | None:
    """Declare the vendor. Called once, when the plugin is registered."""


@hookspec
def dsf_kernels(chip: Chip) -> Iterable[Kernel]:
    """Offer the kernels of the vendor's library for *chip*, the preferred one of a kind first. Called once per enabled
    chip; generic's offers follow the vendor's."""
    raise NotImplementedError  # a specification is asked for its signature only


@hookspec(firstresult=True)
def dsf_thermal_policy(chip: Chip, name: str) -> Policy | None:
    """How *chip*'s clocks follow its temperature, by the policy that the user named (`ladder` if none was). Called once
    per enabled chip; None leaves it to generic, which knows `ladder`, `threshold` and `none`."""
