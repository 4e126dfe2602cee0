"""The session's table: what was changed, and what changed then. It is printed at the end, or written to `--table`."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import define, field

from dsf import hdl

CHIPS = tuple(entry.name for entry in hdl.catalogue() if entry.origin == "shipped" and entry.base is None)
HEAD = ("changed", "how", "what changed then")


@define
class Table:
    """Rows of three texts, in the order in which they were found."""

    rows: list[tuple[str, str, str]] = field(factory=list)

    def add(self, changed: str, how: str, then: str) -> None:
        self.rows.append((changed, how, " ".join(then.split())))

    def __str__(self) -> str:
        lines = [HEAD, *self.rows]
        widths = [max(len(line[n]) for line in lines) for n in (0, 1)]
        return "\n".join(f"{a:{widths[0]}}  {b:{widths[1]}}  {c}".rstrip() for a, b, c in lines)


TABLE = pytest.StashKey[Table]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--table", metavar="FILE", help="write what was changed, and what changed then, to this file")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TABLE] = Table()


@pytest.fixture
def table(request: pytest.FixtureRequest) -> Table:
    return request.config.stash[TABLE]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    found, file = config.stash[TABLE], config.getoption("--table")
    if not found.rows:
        return
    if file:
        Path(file).write_text(f"{found}\n", "utf-8")
        terminalreporter.write_line(f"{len(found.rows)} changes: {file}")
    else:
        terminalreporter.section("what was changed, and what changed then")
        terminalreporter.write_line(str(found))
