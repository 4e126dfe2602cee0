"""What DSF asks the Ascend package, and where the answer is."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dsf.hdl import Chip
from dsf.kernels.kernel import Kernel
from dsf.plugins.spec import Vendor, hookimpl
from dsf_ascend.isa import ISA
from dsf_ascend.kernels import KERNELS

__all__ = ["dsf_kernels", "dsf_vendor"]

TREES = str(Path(__file__).parent / "kernels" / "trees")


@hookimpl
def dsf_vendor() -> Vendor:
    return Vendor(api=(1, 2), default_chip="ascend-910b2", isa=lambda chip: ISA, tree_folders=(TREES,))


@hookimpl
def dsf_kernels(chip: Chip) -> Iterable[Kernel]:
    return KERNELS
