"""The table that a description implies: every path, engine and primitive, and what a chip without them gets."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsf import errors, hdl
from dsf.generic.isa import Memories, isa, memories
from dsf.hdl import Chip
from dsf.isa import Isa

ACME = json.loads(Path(hdl.load("acme-x1").path).read_text("utf-8"))


@pytest.fixture
def chip() -> Chip:
    return hdl.load("acme-x1")


@pytest.fixture
def table(chip: Chip) -> Isa:
    return isa(chip)


@pytest.fixture
def changed(tmp_path: Path) -> Callable[[Callable[[dict[str, Any]], object]], Chip]:
    """The invented chip after a change to its document."""

    def changed(change: Callable[[dict[str, Any]], object]) -> Chip:
        document = copy.deepcopy(ACME)
        change(document)
        path = tmp_path / "changed.json"
        path.write_text(json.dumps(document), "utf-8")
        return hdl.load(path)

    return changed


def test_the_largest_memory_that_vectors_reach_is_scratch_and_the_next_one_accumulates(chip: Chip) -> None:
    assert memories(chip) == Memories("hbm", "sram", "acc")


def test_every_data_path_is_a_copy_on_its_own_engine(chip: Chip, table: Isa) -> None:
    copies = {name: row.engine for name, row in table.rows.items() if name.startswith("copy.")}
    assert copies == {
        "copy.hbm.sram": "din", "copy.hbm.acc": "din", "copy.sram.hbm": "dout", "copy.acc.hbm": "dout",
        "copy.acc.sram": "dout", "copy.sram.acc": "din",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("primitive", "names"),
    [
        ("load", ["copy.hbm.sram"]),
        ("store", ["copy.sram.hbm"]),
        ("store.matrix", ["copy.acc.hbm"]),
        ("load.acc", ["copy.hbm.acc"]),
        ("matmul", ["matmul", "matmul.int32"]),
        ("gather", ["gather"]),
        ("exp", ["v.exp", "s.exp"]),
        ("reduce.sum", ["v.reduce.sum", "s.reduce.sum"]),
        ("scan.cumsum", ["s.cumsum"]),
        ("cast", ["v.cast", "s.cast"]),
    ],
)
def test_primitives_are_served_by_the_vector_engine_first(table: Isa, primitive: str, names: list[str]) -> None:
    assert [row.name for row in table.serving(primitive)] == names


def test_formats_are_those_that_the_description_computes(table: Isa) -> None:
    """int64 is scalar only, float64 is left to the host; the matrix engine takes the floats."""
    vector, scalar = (set(table[name].operands[1][1].dtypes) for name in ("v.mul", "s.mul"))
    assert scalar - vector == {"int64"}
    assert "float64" not in scalar
    assert set(table["matmul"].operands[1][1].dtypes) == {"bfloat16", "float16", "float32"}
    assert table["matmul"].operands[0][1].dtypes == ("float32",)
    assert table["matmul.int32"].operands[1][1].dtypes == ("int8",)
    assert table["matmul.int32"].operands[0][1].dtypes == ("int32",)


def test_a_function_of_real_numbers_takes_floats_only(table: Isa) -> None:
    assert set(table["v.exp"].operands[1][1].dtypes) == {"bfloat16", "float16", "float32"}
    assert set(table["v.and"].operands[1][1].dtypes) == {"int8", "uint8", "bool", "int16", "int32"}


def test_every_row_has_an_engine_a_source_and_a_summary(chip: Chip, table: Isa) -> None:
    for row in table.rows.values():
        assert (row.engine in chip.engines) != (row.flag is not None), row.name
        assert row.source == "derived from the HDL"
        assert row.summary


def test_one_chip_has_one_table(chip: Chip) -> None:
    assert isa(chip) is isa(hdl.load("acme-x1"))


def test_a_chip_without_a_scalar_engine_serves_vectors_only(changed: Callable[..., Chip]) -> None:
    def change(document: dict[str, Any]) -> None:
        del document["engines"]["sca"]
        document.get("power", {}).get("engines", {}).pop("sca", None)

    table = isa(changed(change))
    assert [row.name for row in table.serving("add")] == ["v.add"]
    assert list(table.serving("scan.cumsum")) == []


def test_a_chip_without_an_accumulator_has_no_product(changed: Callable[..., Chip]) -> None:
    def change(document: dict[str, Any]) -> None:
        for path in ("hbm->acc", "acc->hbm", "acc->sram", "sram->acc"):
            del document["paths"][path]

    chip = changed(change)
    assert memories(chip) == Memories("hbm", "sram", None)
    assert list(isa(chip).serving("matmul")) == []


def test_a_chip_whose_vectors_main_memory_does_not_reach_is_refused_in_words(changed: Callable[..., Chip]) -> None:
    """acc is reached both ways and belongs to the same core: only without it nothing is left."""

    def change(document: dict[str, Any]) -> None:
        for path in ("hbm->sram", "hbm->acc"):
            del document["paths"][path]

    with pytest.raises(
        errors.HdlError,
        match=r"^DSF-H020: acme-x1: generic needs a core memory beside a vector engine, with paths from and to hbm; "
        r"the HDL has paths sram->hbm, acc->hbm, acc->sram, sram->acc$",
    ):
        isa(changed(change))
