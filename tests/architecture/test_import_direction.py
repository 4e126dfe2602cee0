"""A package imports only from those before it, and vendors never import each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ORDER = (
    "errors", "units", "hdl", "numerics", "isa", "machine", "intent", "layout", "memory", "kernels", "comm",
    "plugins", "generic", "reports", "segments", "storage", "execution", "forecast", "ledger", "pipeline", "survey",
    "disassembly", "check", "serving", "device", "declare", "enabling",
    "",  # dsf itself: enable, disable, current, report
    "models", "deploy", "testing", "cli",
)  # fmt: skip
RANK = {name: rank for rank, name in enumerate(ORDER)}
ALLOWED = {
    ("intent", "declare"),  # `dsf.intent` is also the decorator; what it does is known to who knows the device
    ("plugins", "generic"),  # generic is a plugin itself; the registry registers it, as it registers a vendor's
}
VENDORS_MAY_USE = RANK["plugins"]


def violations(sources: list[Path]) -> list[str]:
    """One sentence per import against the order, with its line."""
    vendors = {_package(path)[0] for path in sources} - {"dsf"}
    return [
        f"{path.name}:{line}: {complaint}"
        for path in sources
        for line, target in _imports(path)
        if (complaint := _complaint(_package(path), target, vendors))
    ]


def _package(path: Path) -> tuple[str, ...]:
    """('dsf', 'isa', 'table') for .../src/dsf/isa/table.py."""
    parts = path.with_suffix("").parts
    inside = parts[len(parts) - parts[::-1].index("src") :]
    return inside[:-1] if inside[-1] == "__init__" else inside


def _imports(path: Path) -> Iterator[tuple[int, tuple[str, ...]]]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, tuple(alias.name.split("."))) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: a relative import hides its direction"
            module = tuple((node.module or "").split("."))
            names = [(alias.name,) for alias in node.names] if module == ("dsf",) else [()]
            yield from ((node.lineno, module + name) for name in names)


def _complaint(importer: tuple[str, ...], target: tuple[str, ...], vendors: set[str]) -> str | None:
    said = f"{'.'.join(importer)} imports {'.'.join(target)}"
    if target[0] in vendors and target[0] != importer[0]:
        return f"{said}, a vendor package"
    if target[0] != "dsf":
        return None
    place = _place(target)
    if place not in RANK:
        return f"{said}, which is not in the order: give it a place there"
    if importer[0] != "dsf":
        return f"{said}, which is not for vendors" if RANK[place] > VENDORS_MAY_USE else None
    own = _place(importer)
    if own not in RANK:
        return f"{said}, but is itself not in the order: give it a place there"
    if own != place and RANK[own] <= RANK[place] and (own, place) not in ALLOWED:
        return f"{said}, which is not before it"
    return None


def _place(module: tuple[str, ...]) -> str:
    """The first name below dsf; a name of dsf's own (`from dsf import enable`) is dsf's."""
    name = module[1] if len(module) > 1 else ""
    return "" if name in ("enable", "disable", "current", "report") else name


def test_every_import_goes_backwards_in_the_order(sources: list[Path]) -> None:
    assert violations(sources) == []


@pytest.mark.parametrize(
    ("file", "line", "complaint"),
    [
        ("dsf/isa/table.py", "from dsf.machine import x", "dsf.isa.table imports dsf.machine, which is not before it"),
        ("dsf/hdl/read.py", "from dsf import kernels", "dsf.hdl.read imports dsf.kernels, which is not before it"),
        ("dsf/layout/heat.py", "import dsf.memory", "dsf.layout.heat imports dsf.memory, which is not before it"),
        ("dsf/kernels/choose.py", "import dsf_acme.isa", "dsf.kernels.choose imports dsf_acme.isa, a vendor package"),
        ("dsf_acme/plugin.py", "from dsf.cli import run", "dsf_acme.plugin imports dsf.cli, which is not for vendors"),
        ("dsf_acme/plugin.py", "import dsf_toy", "dsf_acme.plugin imports dsf_toy, a vendor package"),
        ("dsf/hdl/read.py", "def late():\n    import dsf.cli", "dsf.hdl.read imports dsf.cli, which is not before it"),
    ],
)  # fmt: skip
def test_an_import_against_the_order_is_named_with_its_line(
    tmp_path: Path, file: str, line: str, complaint: str
) -> None:
    for name in ("dsf/isa/__init__.py", "dsf_acme/__init__.py", "dsf_toy/__init__.py", file):
        path = tmp_path / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (tmp_path / "src" / file).write_text(f'"""A module."""\n\n{line}\n')
    number = 3 + line.count("\n")
    found = violations(sorted((tmp_path / "src").rglob("*.py")))
    assert found == [f"{Path(file).name}:{number}: {complaint}"]
