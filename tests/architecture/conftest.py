"""Where the sources are: every package of the repository, as files."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def sources() -> list[Path]:
    """Every module of every package, the core's and the vendors'."""
    found = sorted(ROOT.glob("packages/*/src/**/*.py"))
    assert len(found) > 10
    return found
