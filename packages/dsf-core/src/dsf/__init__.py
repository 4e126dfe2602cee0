"""DSF: run, check and plan PyTorch models on AI chips that are not there.

import dsf
dsf.enable("ascend-910b2")      # from here on .to("npu") is an emulated chip
...
print(dsf.report())
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsf import intent
    from dsf.pipeline import Session
    from dsf.reports import Report

__all__ = ["__version__", "current", "disable", "enable", "intent", "report"]

try:
    __version__ = version("dsf-core")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"


def __getattr__(name: str) -> Any:
    """`dsf.intent`, which needs torch, when it is first asked for: a package, and the decorator `@dsf.intent(kind)`."""
    if name == "intent":
        return import_module("dsf.intent")
    raise AttributeError(f"module 'dsf' has no attribute '{name}'")


def enable(
    chip: str | None = None,
    *,
    fidelity: str | None = None,
    strict: bool = False,
    exact: bool = False,
    thermal: str | None = None,
    ambient: float | None = None,
    strict_layouts: bool = False,
) -> Session:
    """Make *chip* the torch device of its name (`npu`, ...) in this process.

    chip: a name of `dsf-cli chips` or the path of an HDL file. Without one: DSF_CHIP, else the default chip of the only
    installed plugin. fidelity: `isa` (programs are executed), `operator` (each kernel's whole-tensor reference) or
    `timing` (no numbers); without one: DSF_FIDELITY, else `isa`. strict: a cast or a fallback to the host is an error.
    exact: every instruction in float64, rounded once. thermal: what holds the clocks back when the chip is warm,
    `ladder`, `threshold` or `none` (the firmware alone); without one: DSF_THERMAL, else `ladder`. ambient: the room's
    air in °C; without one: DSF_AMBIENT, else the HDL's. strict_layouts: tiles on chip lie in the very order that the
    chip's engines want (the cube's fractals), not in main memory's with a tag; slower, same numbers. Raises HdlError,
    PluginError or DeviceError; then nothing has changed. Enabling the same chip again begins a new session; another
    chip needs `disable` and the same device name.
    """
    from dsf.enabling import enable as enabled

    fidelity = fidelity or os.environ.get("DSF_FIDELITY") or "isa"
    thermal = thermal or os.environ.get("DSF_THERMAL") or "ladder"
    return enabled(chip, fidelity, strict, exact, thermal, ambient, strict_layouts)


def disable() -> None:
    """Detach the device; its tensors cannot be read afterwards. The device's name stays known to torch. No-op if
    nothing is enabled."""
    from dsf.enabling import disable as disabled

    disabled()


def current() -> Session | None:
    """The session that `enable` began, or None."""
    from dsf.enabling import current as now

    return now()


def report(reset: bool = False) -> Report:
    """What the session has done so far, everything recorded included; with *reset*, counting begins anew."""
    from dsf.enabling import report as reported

    return reported(reset)
