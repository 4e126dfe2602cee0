"""How a result looks: as tables for people, or the same value as JSON. The only module that prints results."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from dsf import units

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsf.survey import Chips, Line

__all__ = ["present"]

PIPE_WIDTH = 120  # columns of a table whose reader is no terminal


def present(value: Any, as_json: bool) -> None:
    """Print *value* on stdout."""
    if as_json:
        click.echo(json.dumps(value.to_json(), indent=2, ensure_ascii=False))
        return
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)
    for part in _parts(value):
        console.print(part)


def _parts(value: Any) -> Iterator[Any]:
    """The tables of *value*, by its kind."""
    name = type(value).__name__
    if name == "Chips":
        yield _chips(value)
    else:
        raise TypeError(f"no table for a {name}")


def _chips(chips: Chips) -> Any:
    table = _table("chip", "vendor", "runs on", "device", "memory", "peak", "status")
    for line in chips.lines:
        table.add_row(line.name, line.vendor, line.runs_on, line.device or "", _memory(line), _peak(line), line.status)
    return table


def _memory(line: Line) -> str:
    return "" if line.nbytes is None else units.show(line.nbytes, "bytes")


def _peak(line: Line) -> str:
    if line.peak_flops is None:
        return ""
    return f"{units.show(line.peak_flops, 'flops')} {line.dtype} ({line.peak_origin})"


def _table(*columns: str, title: str | None = None) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(*columns, title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in table.columns:
        column.overflow = "fold"
    return table
