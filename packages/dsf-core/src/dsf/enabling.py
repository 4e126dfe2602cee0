"""Switching a chip on and off in a process: the checks before, the device behind."""

from __future__ import annotations

import logging
import os
import re

import torch

from dsf import device, errors
from dsf.generic import plugin as generic
from dsf.hdl import Chip
from dsf.machine.heat import check_ambient
from dsf.pipeline import FIDELITIES, Session
from dsf.plugins import registry
from dsf.reports import Report

__all__ = ["current", "disable", "enable", "report"]

TORCH = ((2, 13), (2, 14))

log = logging.getLogger("dsf")

_session: Session | None = None


def enable(
    chip: str | None,
    fidelity: str,
    strict: bool,
    exact: bool,
    thermal: str = "ladder",
    ambient: float | None = None,
    strict_layouts: bool = False,
) -> Session:
    """Begin a session on *chip* (see `dsf.enable`)."""
    global _session
    _check_torch(torch.__version__)
    if fidelity not in FIDELITIES:
        raise errors.DeviceError(
            "DSF-D010", f"fidelity '{fidelity}' is unknown; expected one of {', '.join(FIDELITIES)}"
        )
    known = registry()
    described = known.chip(chip or os.environ.get("DSF_CHIP") or known.default_chip())
    view = known.view(described)
    if _session is not None and _session.view.chip != described:
        raise errors.DeviceError(
            "DSF-D011",
            f"'{_session.view.chip.name}' is enabled in this process; "
            f"call dsf.disable() before enabling '{described.name}'",
        )
    session = Session(view, fidelity, strict, exact, thermal, _room(described, ambient), strict_layouts)
    if _session is not None:
        disable()
    device.attach(session)
    _session = session
    if view.plugin == generic.NAME:
        log.warning(
            "DSF-P007: no plugin for vendor '%s' is installed; '%s' runs on the generic one, from its hardware "
            "description alone; a package dsf-%s, where there is one, brings its own",
            described.vendor, described.name, described.vendor,
        )  # fmt: skip
    return session


def _room(chip: Chip, ambient: float | None) -> float | None:
    """The temperature of the air that the user asks for, by argument or variable, in °C; None leaves it to the HDL."""
    text = os.environ.get("DSF_AMBIENT")
    if ambient is not None:
        return check_ambient(chip, ambient, "ambient")
    if text:
        return check_ambient(chip, _number(text), "DSF_AMBIENT")
    return None


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def disable() -> None:
    """End the session, if there is one."""
    global _session
    if _session is not None:
        ended, _session = _session, None
        try:
            device.detach()
        finally:  # also where what was still recorded fails
            ended.close()


def current() -> Session | None:
    """The session, or None."""
    return _session


def report(reset: bool) -> Report:
    """Flush, then the session's report."""
    if _session is None:
        raise errors.DeviceError(
            "DSF-D012", "no chip is enabled, so there is nothing to report; call dsf.enable(...) first"
        )
    device.flush()
    return _session.report(reset)


def _check_torch(found: str) -> None:
    """The private parts of torch that the device stands on are tested for one range of versions."""
    numbers = re.match(r"(\d+)\.(\d+)", found)
    low, high = TORCH
    if numbers is None or not low <= (int(numbers[1]), int(numbers[2])) < high:
        raise errors.DeviceError(
            "DSF-D013",
            f"torch {found} is installed; dsf supports torch >={low[0]}.{low[1]},<{high[0]}.{high[1]}; "
            "pip install 'torch==2.13.0'",
        )
