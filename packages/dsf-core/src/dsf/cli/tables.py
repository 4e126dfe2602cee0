"""How a result looks: as tables for people, or the same value as JSON. The only module that prints results."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from dsf import units

if TYPE_CHECKING:
    from dsf.models import Answer
    from dsf.report import Report
    from dsf.survey import Chips, Line

__all__ = ["present"]

PIPE_WIDTH = 140  # columns of a table whose reader is no terminal


def present(value: Any, as_json: bool) -> None:
    """Print *value* on stdout."""
    if as_json:
        click.echo(json.dumps(value.to_json(), indent=2, ensure_ascii=False))
        return
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, markup=False)
    for part in _SHOWN[type(value).__name__](value):
        console.print(part)


def _chips(chips: Chips) -> Iterator[Any]:
    table = _table("", "chip", "vendor", "runs on", "device", "memory", "peak", "status")
    for line in chips.lines:
        table.add_row(line.name, line.vendor, line.runs_on, line.device, _memory(line), _peak(line), _status(line))
    yield table
    yield from (f"{line.name} cannot be used: {line.problem}" for line in chips.findings)


def _status(line: Line) -> str:
    return "see below" if line.problem else line.status


def _memory(line: Line) -> str:
    return "" if line.nbytes is None else units.show(line.nbytes, "bytes")


def _peak(line: Line) -> str:
    if line.peak_flops is None:
        return ""
    return f"{units.show(line.peak_flops, 'flops')} {line.dtype} ({line.peak_origin})"


def _answer(answer: Answer) -> Iterator[Any]:
    """The answer itself has been streamed; what is left is what it cost."""
    report = answer.report
    yield "" if answer.text is not None else "no answer: fidelity 'timing' computes no numbers, only their time"
    yield (
        f"{answer.model} on the emulated {report.chip} ({report.plugin}), fidelity {report.fidelity}, "
        f"numerics {report.numerics}"
    )
    yield _times(answer)
    yield from _report(report)


def _times(answer: Answer) -> Any:
    report, origin = answer.report, answer.report.origins["time"]
    table = _table("time and work", "what", "value", "kind", "origin", right=(1,))
    tpot = answer.tpot_seconds
    first = f"time to first token ({answer.prompt_tokens} prompt tokens)"
    table.add_row(first, _seconds(answer.ttft_seconds), "emulated", origin)
    each = f"time per output token (after the first of {len(answer.tokens)})"
    table.add_row(each, "-" if tpot is None else _seconds(tpot), "emulated", origin)
    table.add_row("emulated time in all", _milliseconds(report.emulated_milliseconds), "emulated", origin)
    table.add_row("  of it the chip at work", _milliseconds(report.device_milliseconds), "emulated", origin)
    table.add_row("  of it copies to and from the chip", _milliseconds(report.copy_milliseconds), "emulated", origin)
    table.add_row(f"  of it the host for the chip ({report.host_share:.2%})",
                  _milliseconds(report.host_milliseconds), "emulated", origin)  # fmt: skip
    table.add_row("kernel launches", f"{report.launches:,}", "counted", "")
    flops = report.flops
    table.add_row("matrix FLOPs of the model", f"{flops.wanted:,}", "counted", "")
    table.add_row("  of them executed as instructions", f"{flops.instruction_share:.2%}", "counted", "")
    table.add_row("  padding on top", f"{flops.padding:,}", "counted", "")
    for stage, seconds in answer.wall_seconds.items():
        table.add_row(f"host wall time: {stage}", _seconds(seconds), "this machine", "measured")
    return table


def _report(report: Report) -> Iterator[Any]:
    memory = _table(_title(report, "memory"), "memory", "of each", "size", "peak in use", right=(2, 3))
    for m in report.memory:
        memory.add_row(m.name, m.scope, _mebibytes(m.mebibytes), _mebibytes(m.peak_mebibytes))
    engines = _table(_title(report, "engines"), "engine", "core", "busy", "share of time", right=(2, 3))
    for e in report.engines:
        engines.add_row(e.name, e.core, f"{e.busy_megacycles:,.3f} Mcycles", f"{e.share:.2%}")
    kernels = _table(
        _title(report, "kernels"), "kernel", "for", "from", "launches", "time", "share", "GFLOP", "bound by", "because",
        right=(3, 4, 5, 6),
    )  # fmt: skip
    for k in report.kernels:
        kernels.add_row(k.name, k.intent, k.library, f"{k.launches:,}", _milliseconds(k.milliseconds),
                        f"{k.share:.1%}", f"{k.gflops:.3f}", k.bound, k.reason)  # fmt: skip
    fallbacks = _table(
        _title(report, "fallbacks"), "on the host", "count", "time", "copied", "because", right=(1, 2, 3)
    )
    for f in report.fallbacks:
        fallbacks.add_row(f.what, f"{f.count:,}", _milliseconds(f.milliseconds), _mebibytes(f.mebibytes), f.reason)
    yield from (memory, engines, kernels)
    yield fallbacks if report.fallbacks else "fallbacks: none"


def _title(report: Report, group: str) -> str:
    """A table's name and the weakest origin of what its numbers are computed from."""
    return f"{group} (origin: {report.origins[group]})" if group in report.origins else group


def _seconds(seconds: float) -> str:
    return units.show(round(seconds * 10**15), "femtoseconds")


def _milliseconds(milliseconds: float) -> str:
    return _seconds(milliseconds / 1000)


def _mebibytes(mebibytes: float) -> str:
    return units.show(round(mebibytes * 2**20), "bytes")


def _table(title: str, *columns: str, right: tuple[int, ...] = ()) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, overflow="fold", justify="right" if number in right else "left")
    return table


_SHOWN: dict[str, Callable[[Any], Iterator[Any]]] = {"Chips": _chips, "Answer": _answer}
"""By the name of the value's class, so that nothing is imported here that a command did not need: torch above all."""
