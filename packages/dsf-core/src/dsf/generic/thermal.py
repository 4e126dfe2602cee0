"""How a chip keeps below the cap of its HDL, where its vendor's plugin has no policy of its own.

Against a clairvoyant controller `ladder` loses some 2 % of the work, `threshold` 10 to 13 %: what a chip does grows
less than the power it draws, so swinging between full and half clock loses. `none` leaves the clocks to the firmware.
"""

from __future__ import annotations

from fractions import Fraction
from math import inf

from dsf.hdl import Chip
from dsf.machine.heat import Policy

__all__ = ["POLICIES", "policy"]


def _ladder(celsius: float, step: int, chip: Chip) -> int:
    """One clock step down at the cap or above, one up again from 2 K below."""
    if celsius >= _cap(chip):
        return min(step + 1, len(_frequencies(chip)) - 1)
    return max(step - 1, 0) if celsius <= _cap(chip) - 2 else step


def _threshold(celsius: float, step: int, chip: Chip) -> int:
    """Half clock at the cap or above, full clock again from 3 K below."""
    if celsius >= _cap(chip):
        steps = _frequencies(chip)
        return next((i for i, share in enumerate(steps) if share <= Fraction(1, 2)), len(steps) - 1)
    return 0 if celsius <= _cap(chip) - 3 else step


def _none(celsius: float, step: int, chip: Chip) -> int:
    """Always full clock."""
    return 0


POLICIES = {p.name: p for p in (Policy("ladder", _ladder), Policy("threshold", _threshold), Policy("none", _none))}


def policy(chip: Chip, name: str) -> Policy | None:
    """The policy called *name*; None if there is none of that name."""
    return POLICIES.get(name)


def _cap(chip: Chip) -> float:
    return chip.thermal.control.cap if chip.thermal and chip.thermal.control else inf


def _frequencies(chip: Chip) -> tuple[Fraction, ...]:
    return chip.power.frequencies if chip.power else (Fraction(1),)
