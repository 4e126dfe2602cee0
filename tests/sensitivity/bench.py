"""An emulated chip to run plain torch on, with parts of it replaced: what the probes and the steps of models share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from attrs import evolve

from dsf import device, errors
from dsf.hdl import Chip
from dsf.isa import Isa
from dsf.kernels.tree import Trees
from dsf.pipeline import Session
from dsf.plugins import View, registry

__all__ = ["attached", "report_of", "said", "with_isa"]


def with_isa(view: View, isa: Isa) -> View:
    """*view* with *isa* for its chip's instruction set."""
    return evolve(view, vendor=evolve(view.vendor, isa=lambda chip: isa))


@contextmanager
def attached(chip: Chip | View, fidelity: str = "timing", trees: bool = False, **options: Any) -> Iterator[Session]:
    """A session on *chip* as this process's `npu`, choosing by predicted time, or by what was learned with *trees*."""
    session = Session(chip if isinstance(chip, View) else registry().view(chip), fidelity, **options)
    if not trees:  # of any other description a tree decides nothing, which would pass for that description's doing
        session.target.trees = Trees()
    device.attach(session)
    try:
        yield session
    finally:
        device.recorder.log.clear()
        device.detach()
        session.close()


def report_of(session: Session) -> dict[str, Any]:
    """The report as plain data, without what it only repeats (the sizes of memories, the room's temperature), and no
    reasons, which say of any other description that the trees were learned for this one."""
    device.flush()
    report: dict[str, Any] = session.report().to_json()
    for row in report["memory"]:
        del row["mebibytes"]
    for row in report["kernels"]:
        del row["reason"]
    if report["heat"] is not None:
        del report["heat"]["ambient_celsius"]
    return report


def said(work: Callable[[], Any]) -> Any:
    """What *work* returns, or the sentence of DSF's error that it ends with."""
    try:
        return work()
    except (errors.DsfError, torch.OutOfMemoryError) as error:
        return str(error)
