"""The invented chip, its table, and a builder to write one program with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dsf import hdl
from dsf.generic.isa import isa as table_of
from dsf.hdl import Chip
from dsf.isa import Builder, Isa


@pytest.fixture(scope="session")
def chip() -> Chip:
    return hdl.load("acme-x1")


@pytest.fixture(scope="session")
def isa(chip: Chip) -> Isa:
    return table_of(chip)


@pytest.fixture
def b(chip: Chip, isa: Isa) -> Builder:
    """A builder whose program has two parameters of 4096 bytes: x, which is read, and y, which is written."""
    builder = Builder("test", isa, chip)
    builder.param("x", "in", 4096)
    builder.param("y", "out", 4096)
    return builder


@pytest.fixture
def block(b: Builder) -> Iterator[Builder]:
    """The same builder, inside a nest of one block on a core."""
    with b.phase("core"), b.nest(i=1):
        yield b
