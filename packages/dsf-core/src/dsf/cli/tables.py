"""How a result looks: as tables for people, or the same value as JSON. The only module that prints results."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click
from attrs import define, field, frozen

from dsf import units

if TYPE_CHECKING:
    from dsf.disassembly import Disassembly, Line
    from dsf.isa.manual import Chapter, Entry, Manual, OperandEntry
    from dsf.kernels.learn import Learned
    from dsf.models import Answer
    from dsf.models.explain import Explained, Explanation
    from dsf.models.wants import Listing, Wants
    from dsf.models.wants import Row as IntentRow
    from dsf.reports import Report
    from dsf.survey import Chips
    from dsf.survey import Line as ChipLine

__all__ = ["present"]

PIPE_WIDTH = 140  # columns of a table whose reader is no terminal
GAP = 2  # spaces between two columns
INDENT, DEEPER = 4, 6  # columns before a sentence below a heading, and before the lines that it goes on in
PROSE = ("what", "because", "inputs", "outputs", "as")  # columns of words, which may be wrapped


def present(value: Any, as_json: bool) -> None:
    """Print *value* on stdout."""
    if as_json:
        click.echo(json.dumps(value.to_json(), indent=2, ensure_ascii=False))
        return
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, markup=False)
    with console.capture() as text:  # rich would end the process itself where a pipe's reader has left
        for part in _SHOWN[type(value).__name__](value):
            console.print(part, soft_wrap=type(part).__name__ == "Text")  # a line that is to be read again stays one
    shown = text.get()
    if not sys.stdout.isatty():  # the spaces that fill up a table's last column are noise in a file
        shown = "\n".join(line.rstrip() for line in shown.split("\n"))
    click.echo(shown, nl=False)


def _chips(chips: Chips) -> Iterator[Any]:
    columns = ("chip", "vendor", "runs on", "device", "memory", "peak", "status")
    table = _Table("", columns, spare=("vendor",))
    for line in chips.lines:
        answers, device = line.runs_on or "", line.device or ""
        table.add_row(line.name, line.vendor, answers, device, _memory(line), _peak(line), _status(line))
    yield table
    if chips.findings:
        yield ""
    yield from (f"{line.name} cannot be used: {line.problem}" for line in chips.findings)


def _status(line: ChipLine) -> str:
    return "see below" if line.problem else line.status


def _memory(line: ChipLine) -> str:
    return "" if line.nbytes is None else units.show(line.nbytes, "bytes")


def _peak(line: ChipLine) -> str:
    if line.peak_flops is None:
        return ""
    return f"{units.show(line.peak_flops, 'flops')} {line.dtype} ({line.peak_origin})"


def _answer(answer: Answer) -> Iterator[Any]:
    """The answer itself has been streamed; what is left is what it cost."""
    report = answer.report
    yield "\n" if answer.text is not None else "no answer: fidelity 'timing' computes no numbers, only their time"
    yield (
        f"{answer.model} on the emulated {report.chip} ({report.plugin}), fidelity {report.fidelity}, "
        f"numerics {report.numerics}"
    )
    yield ""
    yield _times(answer)
    yield from _report(report)


def _times(answer: Answer) -> Any:
    table = _Table("time and work", ("what", "value", "kind", "origin"), right=("value",))
    for row in (*_emulated_rows(answer), *_counted_rows(answer.report), *_wall_rows(answer)):
        table.add_row(*row)
    return table


def _emulated_rows(answer: Answer) -> Iterator[tuple[str, str, str, str]]:
    report, tpot = answer.report, answer.tpot_seconds
    first, each = f"time to first token ({answer.prompt_tokens} prompt tokens)", "time per output token after it"
    whole, work, host = (report.origins[name] for name in ("emulated time", "device time", "host time"))
    busy = report.device_milliseconds + report.copy_milliseconds + report.host_milliseconds
    yield first, _seconds(answer.ttft_seconds), "emulated", whole
    yield f"{each} ({len(answer.tokens)} in all)", "-" if tpot is None else _seconds(tpot), "emulated", whole
    yield "the whole answer", _milliseconds(report.emulated_milliseconds), "emulated", whole
    yield "  the chip at work", _milliseconds(report.device_milliseconds), "emulated", work
    yield "  copies to and from the chip", _milliseconds(report.copy_milliseconds), "emulated", host
    share = f"  the host, for what the chip cannot do ({report.host_share:.2%})"
    yield share, _milliseconds(report.host_milliseconds), "emulated", host
    rest = max(report.emulated_milliseconds - busy, 0.0)
    yield f"  the chip waiting for {report.launches:,} launches", _milliseconds(rest), "emulated", whole
    yield "the weights' way to the chip, before", _seconds(answer.upload_seconds), "emulated", whole


def _counted_rows(report: Report) -> Iterator[tuple[str, str, str, str]]:
    flops, origin = report.flops, report.origins["flops"]
    yield "matrix FLOPs of the model", f"{flops.wanted:,}", "counted", origin
    yield f"  of them {report.executed}", f"{flops.instruction_share:.2%}", "counted", origin
    yield "  padding on top", f"{flops.padding:,}", "counted", origin


def _wall_rows(answer: Answer) -> Iterator[tuple[str, str, str, str]]:
    for stage, seconds in answer.wall_seconds.items():
        yield f"host wall time: {stage}", _seconds(seconds), "this machine", answer.report.origins["host wall time"]


def _report(report: Report) -> Iterator[Any]:
    for table in (_memories(report), _engines(report), _kernels(report)):
        yield ""
        yield table
    yield ""
    yield _fallbacks(report) if report.fallbacks else "fallbacks: none"
    yield ""
    yield _heat(report)


def _memories(report: Report) -> Any:
    title = _title(report, "memory", "memory")
    table = _Table(title, ("memory", "of each", "size", "peak in use"), right=("size", "peak in use"))
    for row in report.memory:
        table.add_row(row.name, row.scope, _mebibytes(row.mebibytes), _mebibytes(row.peak_mebibytes))
    return table


def _engines(report: Report) -> Any:
    title = _title(report, "engines", "device time")
    table = _Table(title, ("engine", "core", "busy, all cores", "busy share"), right=("busy, all cores", "busy share"))
    for row in report.engines:
        table.add_row(row.name, row.core, f"{row.busy_megacycles:,.3f} Mcycles", f"{row.share:.2%}")
    return table


def _kernels(report: Report) -> Any:
    title = _title(report, "kernels", "device time")
    columns = ("kernel", "for", "from", "launches", "time", "share", "GFLOP", "bound by", "because")
    table = _Table(title, columns, right=("launches", "time", "share", "GFLOP"), spare=("for", "from"))
    for row in report.kernels:
        time, share, gflops = _milliseconds(row.milliseconds), f"{row.share:.1%}", f"{row.gflops:.3f}"
        launches = f"{row.launches:,}"
        table.add_row(row.name, row.intent, row.library, launches, time, share, gflops, row.bound, row.reason)
    return table


def _fallbacks(report: Report) -> Any:
    title = _title(report, "fallbacks", "host time")
    table = _Table(title, ("on the host", "count", "time", "copied", "because"), right=("count", "time", "copied"))
    for row in report.fallbacks:
        table.add_row(
            row.what, f"{row.count:,}", _milliseconds(row.milliseconds), _mebibytes(row.mebibytes), row.reason
        )
    return table


def _heat(report: Report) -> Any:
    heat = report.heat
    if heat is None:
        return f"heat: none, since {report.no_heat}"
    temperature, power, throttling = (report.origins[name] for name in ("temperature", "power", "throttling"))
    table = _Table("heat", ("what", "value", "kind", "origin"), right=("value",))
    table.add_row("temperature", units.show(heat.celsius, "celsius"), "emulated", temperature)
    table.add_row("  at its peak", units.show(heat.peak_celsius, "celsius"), "emulated", temperature)
    table.add_row("  if this load went on", units.show(heat.settled_celsius, "celsius"), "emulated", temperature)
    table.add_row("  the policy's cap", units.show(heat.cap_celsius, "celsius"), "described", throttling)
    room = ("asked for", "-") if heat.ambient_given else ("described", report.origins["ambient"])
    table.add_row("  of the room", units.show(heat.ambient_celsius, "celsius"), *room)
    table.add_row("power, in the mean", units.show(heat.mean_watts, "watts"), "emulated", power)
    table.add_row("  at its peak", units.show(heat.peak_watts, "watts"), "emulated", power)
    table.add_row("energy", f"{heat.joules:.4g} J", "emulated", power)
    share = f"device time throttled, by the policy {heat.policy} or the firmware"
    table.add_row(share, f"{heat.throttled_share:.2%}", "emulated", throttling)
    table.add_row("  the lowest clocks", f"{heat.lowest_frequency_share:.2%}", "emulated", throttling)
    return table


def _manual(manual: Manual) -> Iterator[Any]:
    yield f"{manual.isa}, the instruction set of {manual.chip}"
    for chapter in manual.chapters:
        yield ""
        yield from _chapter(chapter)
        yield from _entries(chapter.entries)
    yield from ("", "in the queue of any engine")
    yield from _entries(manual.anywhere)


def _entries(entries: tuple[Entry, ...]) -> Iterator[Any]:
    for entry in entries:
        yield ""
        yield from _entry(entry)


def _chapter(chapter: Chapter) -> Iterator[Any]:
    cores = ", ".join(f"{count} {kind}" for kind, count in chapter.cores)
    yield (
        f"engine {chapter.engine} ({chapter.kind}), one in each core of {cores}, at "
        f"{units.show(chapter.hertz, 'hertz')} ({chapter.clock_origin}), start-up {chapter.startup_cycles} cycles"
    )
    if chapter.rates:
        table = _Table("", ("rate of class", "a cycle, by dtype", "origin"))
        for rate in chapter.rates:
            each = ", ".join(f"{dtype} {number}" for dtype, number in rate.by_dtype)
            table.add_row(rate.opclass, each, rate.origin)
        yield table
    if chapter.paths:
        table = _Table(
            "", ("path", "bytes a cycle", "start-up cycles", "origin of the width"), right=("bytes a cycle",)
        )
        for way in chapter.paths:
            row = f"{way.source} to {way.target}", str(way.bytes_per_cycle), str(way.startup_cycles), way.origin
            table.add_row(*row)
        yield table
    if chapter.tiles:
        yield "one step, m x k x n: " + ", ".join(f"{d} {m} x {k} x {n}" for d, (m, k, n) in chapter.tiles)


def _entry(entry: Entry) -> Iterator[Any]:
    yield _whole(" ".join([entry.name, ", ".join([*(o.name for o in entry.operands), *(n for n, _ in entry.scalars)])]))
    yield _Indented(entry.meaning)
    alike: dict[str, list[str]] = {}
    for operand in entry.operands:
        alike.setdefault(_operand(operand), []).append(operand.name)
    for text, names in alike.items():
        yield _Indented(f"{', '.join(names)}: {text}")
    for name, kind in entry.scalars:
        yield _Indented(f"{name}: scalar, {kind}")
    yield _Indented(f"cycles: {entry.cycles}" + (f" Class {entry.opclass}." if entry.opclass != "default" else ""))
    for words in entry.constraints:
        yield _Indented(f"rule: {words}")
    serves = f"; serves {entry.implements}" if entry.implements else ""
    yield _Indented(f"engine: {entry.engine or 'any'}{serves}; source: {entry.source}")


def _operand(operand: OperandEntry) -> str:
    modes = {"read": "read from", "write": "written to", "accumulate": "read and written in"}
    return f"{modes[operand.mode]} {' or '.join(operand.spaces)}, as {' '.join(operand.dtypes) or 'any format'}"


def _disassembly(found: Disassembly) -> Iterator[Any]:
    """A listing, and as remarks what is no part of it: the whole can be read again."""
    yield _whole(f"# {found.isa} of {found.chip}")
    if found.kernel is not None:
        yield _whole(f"# {found.kernel}")
    width = max(len(line.text) + 2 * line.depth for line in found.lines)
    for line in found.lines:
        yield _whole(_listed(line, width))
    for finding in found.findings:
        yield _whole(f"# {finding}")
    if found.time is not None:
        time = found.time
        phases = " + ".join(
            f"{p.core} {p.cycles:,} cycles on {used} of {there} cores"
            for p, (used, there) in zip(time.phases, found.cores, strict=True)
        )
        yield _whole(
            f"# predicted: {units.show(time.duration_fs, 'femtoseconds')} without the host's launch "
            f"(origin: {found.origin}), bound by {time.bound}; {phases}"
        )
        yield _whole(f"# {time.macs:,} multiply-accumulates with padding; {time.nbytes:,} bytes through main memory")


def _explanation(found: Explanation) -> Iterator[Any]:
    title = f"{found.model} on {found.chip}, {found.step}, batch {found.batch}, {found.length} tokens"
    spent = units.show(found.fs, "femtoseconds") if found.fs else "0 s"
    yield f"{title}: {spent} in kernels (origin: {found.origin})"
    table = _Table("", ("times", "what", "kernel", "time", "of the step", "of the roofline", "because"),
                   right=("times", "time", "of the step", "of the roofline"))  # fmt: skip
    for line in found.lines:
        table.add_row(
            str(line.times), line.what, line.kernel, units.show(line.fs, "femtoseconds"),
            f"{100 * line.share:.1f} %", f"{100 * line.of_roofline:.0f} % {line.ideal.bound}", _because(line),
        )  # fmt: skip
    yield table
    kinds = _Table("By kind", ("kind", "launches", "of the step", "of the roofline"),
                   right=("launches", "of the step", "of the roofline"))  # fmt: skip
    for kind in found.kinds():
        kinds.add_row(kind.kind, str(kind.launches), f"{100 * kind.share:.1f} %", f"{100 * kind.of_roofline:.0f} %")
    yield kinds
    shares = ", ".join(f"{name} {100 * share:.2f} %" for name, share in found.libraries().items())
    yield f"{100 * found.native:.2f} % of the time in the vendor's own kernels; by library: {shares}"
    yield from (_Indented(f"on the host: {line.times} x {line.what}: {line.reason}") for line in found.fallbacks)


OTHERS = 3  # candidates that a table names beside the chosen one


def _because(line: Explained) -> str:
    """The reason, and by how much the next best are slower."""
    slower = [f"{o.title} {100 * (o.fs / line.fs - 1):+.1f} %" for o in line.others if o.fs is not None and line.fs]
    return "; ".join((line.reason, *slower[:OTHERS]))


def _learned(learned: Learned) -> Iterator[Any]:
    table = _Table(
        f"Choices on {learned.chip} beside the best of all (origin: derived)",
        ("kind", "unseen shapes", "longer in the mean", "at worst", "where"),
        right=("unseen shapes", "longer in the mean", "at worst"),
    )  # fmt: skip
    for row in learned.regrets:
        table.add_row(row.kind, str(row.shapes), f"{100 * row.mean:.2f} %", f"{100 * row.worst:.1f} %", row.where)
    yield table
    alone = [kind for kind in learned.asked if kind not in learned.document["trees"]]
    if alone:
        yield _Indented(f"one candidate, so nothing to choose: {', '.join(alone)}")


def _wants(found: Wants) -> Iterator[Any]:
    """The graph of one layer, then the coverage of the whole step."""
    cover = found.coverage
    yield (
        f"{found.model} ({found.parameters:,} parameters), {found.step} of {found.batch} x "
        f"{found.length if found.step != 'decode' else 1}, from {found.source}"
    )
    yield ""
    at = (
        f"layer {found.layers.index(found.layer)} of {len(found.layers)}, {found.layer}" if found.layer else "the whole"
    )
    columns = ("#", "intent", "inputs", "outputs", "what", "as", "in")
    table = _Table(at, columns, right=("#",), spare=("in",))
    for row in found.graph:
        ins, outs = (" ".join(map(str, side)) for side in (row.inputs, row.outputs))
        table.add_row(str(row.index), row.kind, ins, outs, _said(row), row.group, _below(row, found.layer))
    yield table
    yield ""
    yield (
        f"in named intents, over the whole step: {cover.flops_share:.2%} of {cover.flops:,} matrix FLOPs, "
        f"{cover.operations_share:.2%} of {cover.operations:,} operations"
    )
    yield ""
    yield _kinds_of(found)
    yield ""
    if cover.groups:
        groups = ", ".join(f"{row.groups} {row.kind} of {row.intents} intents" for row in cover.groups)
        yield f"parts of a whole: {groups}"
        yield ""
    yield _opaque(found) if cover.opaque else "opaque: none"


def _listing(found: Listing) -> Iterator[Any]:
    for line in found.text.splitlines():
        yield _whole(line)


def _said(row: IntentRow) -> str:
    """The attributes but for those that say no."""
    said = {name: f"{value:.5g}" if isinstance(value, float) else value for name, value in row.attrs.items()}
    return ", ".join(str(v) if name == "expr" else f"{name}={v}" for name, v in said.items() if v is not False)


def _below(row: IntentRow, layer: str) -> str:
    return row.scope.removeprefix(layer).removeprefix(".")


def _kinds_of(found: Wants) -> Any:
    table = _Table("kinds", ("intent", "count", "operations", "GFLOP"), right=("count", "operations", "GFLOP"))
    for row in found.coverage.kinds:
        table.add_row(row.kind, f"{row.intents:,}", f"{row.operations:,}", f"{row.flops / 1e9:,.3f}")
    return table


def _opaque(found: Wants) -> Any:
    columns = ("opaque", "count", "GFLOP", "first in", "because")
    table = _Table("", columns, right=("count", "GFLOP"))
    for row in found.coverage.opaque:
        table.add_row(row.target, f"{row.count:,}", f"{row.flops / 1e9:,.3f}", row.scope, row.why)
    return table


def _listed(line: Line, width: int) -> str:
    text = f"{'  ' * line.depth}{line.text}"
    counted = f"{text:{width}}  # {line.cycles:,} cycles x {line.runs:,}" if line.cycles is not None else text
    return f"{line.number:4d} {counted}"


def _whole(line: str) -> Any:
    """One line as it is, however long, so that it can be copied and read again."""
    from rich.text import Text

    return Text(line)


@frozen
class _Indented:
    """A sentence below a heading; where it goes on in further lines, they stand further in."""

    text: str

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        """What rich asks of a value that it prints."""
        from rich.text import Text

        for place, line in enumerate(Text(self.text).wrap(console, max(options.max_width - DEEPER, 1))):
            yield Text(" " * (DEEPER if place else INDENT)) + line


def _title(report: Report, name: str, group: str) -> str:
    """A table's name and the weakest origin of what its numbers are computed from."""
    return f"{name} (origin: {report.origins[group]})"


def _seconds(seconds: float) -> str:
    return units.show(round(seconds * 10**15), "femtoseconds") if seconds else "0 s"


def _milliseconds(milliseconds: float) -> str:
    return _seconds(milliseconds / 1000)


def _mebibytes(mebibytes: float) -> str:
    return units.show(round(mebibytes * 2**20), "bytes")


@define
class _Table:
    """A table for a reader's terminal. Its prose is wrapped; where the rest is still too wide, *spare* columns go, and
    only then are names and numbers folded."""

    title: str
    columns: tuple[str, ...]
    right: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()
    rows: list[tuple[str, ...]] = field(factory=list)

    def add_row(self, *cells: str) -> None:
        self.rows.append(cells)

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        """What rich asks of a value that it prints."""
        without = () if self._least(()) <= options.max_width else self.spare
        yield self._drawn(without, whole=self._least(without) <= options.max_width)

    def _least(self, without: tuple[str, ...]) -> int:
        """The width at which nothing but prose is wrapped."""
        from rich.cells import cell_len

        widths = []
        for name, *cells in zip(self.columns, *self.rows, strict=True):
            texts = (word for cell in cells for word in cell.split()) if name in PROSE else cells
            widths.append(0 if name in without else max(map(cell_len, (name, *texts))) + GAP)
        return sum(widths) - GAP

    def _word(self, column: str) -> int:
        """The width of the longest word in *column*."""
        from rich.cells import cell_len

        place = self.columns.index(column)
        return max(cell_len(word) for row in ((column,) * len(self.columns), *self.rows) for word in row[place].split())

    def _drawn(self, without: tuple[str, ...], whole: bool) -> Any:
        from rich import box
        from rich.table import Table

        table = Table(title=self.title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
        table.show_edge, table.pad_edge, table.padding = False, False, (0, GAP - 1, 0, 0)
        kept = [place for place, name in enumerate(self.columns) if name not in without]
        for name in (self.columns[place] for place in kept):
            side: Any = "right" if name in self.right else "left"
            least = self._word(name) if whole and name in PROSE else None
            table.add_column(name, overflow="fold", justify=side, no_wrap=whole and name not in PROSE, min_width=least)
        for row in self.rows:
            table.add_row(*(row[place] for place in kept))
        return table


_SHOWN: dict[str, Callable[[Any], Iterator[Any]]] = {
    "Chips": _chips,
    "Answer": _answer,
    "Manual": _manual,
    "Entry": _entry,
    "Disassembly": _disassembly,
    "Learned": _learned,
    "Explanation": _explanation,
    "Wants": _wants,
    "Listing": _listing,
}
"""By the name of the value's class, so that nothing is imported here that a command did not need: torch above all."""
