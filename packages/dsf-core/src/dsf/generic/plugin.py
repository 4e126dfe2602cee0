"""What DSF asks generic, and where the answer is. Asked last, for every chip."""

from __future__ import annotations

from collections.abc import Iterable

from dsf.generic.isa import isa
from dsf.generic.kernels import kernels
from dsf.generic.thermal import policy
from dsf.hdl import Chip
from dsf.kernels.kernel import Kernel
from dsf.kernels.tree import FOLDER
from dsf.machine.heat import Policy
from dsf.plugins.spec import API, Vendor, hookimpl

__all__ = ["NAME", "VENDOR", "dsf_kernels", "dsf_thermal_policy"]

NAME = "generic"
VENDOR = Vendor(API, "acme-x1", isa, tree_folders=(str(FOLDER),))


@hookimpl(trylast=True)
def dsf_kernels(chip: Chip) -> Iterable[Kernel]:
    return kernels(chip)


@hookimpl(trylast=True)
def dsf_thermal_policy(chip: Chip, name: str) -> Policy | None:
    return policy(chip, name)
