"""How the machine makes numbers of a format of what an instruction's semantics return: once, here, as its row or else
the chip's HDL says."""

from __future__ import annotations

from dsf.hdl import Chip, Rule
from dsf.isa.program import Instruction
from dsf.isa.table import Row
from dsf.numerics import by_name
from dsf.numerics.rounding import Rounding

__all__ = ["computes_as_the_host", "rounding_of"]


def rounding_of(chip: Chip, row: Row, ins: Instruction) -> Rounding | None:
    """The rounding of what *ins* writes; None where the host's own conversion does it. A copy that converts nothing
    moves bits and rounds nothing."""
    if row.rounding is not None:
        return row.rounding
    written, *sources = ins.operands
    if chip.engines[row.engine].kind == "dma" and all(source.dtype == written.dtype for source in sources[:1]):
        return None
    rule = chip.numerics.dtypes.get(written.dtype)
    if rule is None or _is_the_hosts(written.dtype, rule):
        return None
    return Rounding(rule.rounding, rule.overflow == "saturate", rule.subnormals)


def computes_as_the_host(chip: Chip) -> bool:
    """Whether the host's arithmetic rounds every number as *chip* does; else only the definition computes it."""
    return all(_is_the_hosts(dtype, rule) for dtype, rule in chip.numerics.dtypes.items())


def _is_the_hosts(dtype: str, rule: Rule) -> bool:
    """Whether torch rounds numbers of *dtype* so. Beyond the largest it saturates in a format without an infinity."""
    over = "saturate" if by_name(dtype).finite else "infinity"
    return (rule.rounding, rule.subnormals, rule.overflow) == ("nearest-even", "keep", over)
