"""Every number of every shipped description acts, or the schema says that it is there to be read.

A number acts if, with another value, some probe states something else. What is marked `informational` and acts, and
what neither acts nor is marked, is named by its JSON pointer.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from tests.sensitivity.conftest import CHIPS, Table
from tests.sensitivity.fields import SCHEMA, Field, changed, chip_of, document_of, fields, marks, others, perturbed
from tests.sensitivity.probes import PROBES, Probe, stated

from dsf import errors
from dsf.hdl import Chip

DOCUMENTS = {chip: document_of(chip) for chip in CHIPS}
MARKS = {chip: marks(document) for chip, document in DOCUMENTS.items()}


def is_marked(chip: str, field: Field) -> bool:
    """Whether the schema marks *field*, or what it is part of."""
    return any(f"{field.pointer}/".startswith(f"{place}/") for place in MARKS[chip])


UNMARKED = [(chip, field) for chip in CHIPS for field in fields(DOCUMENTS[chip]) if not is_marked(chip, field)]
MARKED = {chip: [field for field in fields(DOCUMENTS[chip]) if is_marked(chip, field)] for chip in CHIPS}


def effect(document: dict[str, Any], field: Field, most: int | None = None) -> tuple[str, str] | None:
    """The first of *most* other values of *field* that changes what DSF states, and how; None where none does. A value
    that the rest of the description determines has no other, which is an effect as well."""
    base, refused = chip_of(document), True
    for value, chip in islice(perturbed(document, field), most):
        refused = False
        if (difference := difference_of(base, chip, field.pointer)) is not None:
            return value, difference
    return ("any other value", "refused by the rest of the description") if refused else None


def difference_of(base: Chip, chip: Chip, pointer: str = "") -> str | None:
    """What the first probe states otherwise, those first that are about *pointer*; None where all state the same."""
    for probe in sorted(PROBES, key=lambda probe: not pointer.startswith(probe.about)):
        before, after = stated(probe, base), probe.ask(chip)
        if before != after:
            return f"{probe.name}: {_first(before, after)}"
    return None


def _first(before: Any, after: Any, where: str = "") -> str:
    """The first place where two answers differ, and both answers there."""
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        key = next(key for key in before if before[key] != after[key])
        return _first(before[key], after[key], f"{where} {key}")
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        n = next(n for n, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1])
        return _first(before[n], after[n], f"{where} {n}")
    return f"{where.strip()} {str(before)[:50]} to {str(after)[:70]}"


def idle(field: Field) -> str:
    return (
        f"{field.pointer} acts on nothing: whatever its value, every report and error is the same; let it act, remove "
        "it, or mark it `informational` in hdl/schema.json"
    )


def busy(field: Field, how: str) -> str:
    return f"{field.pointer} is marked informational in hdl/schema.json and acts: {how}; remove the mark"


@pytest.mark.parametrize(("chip", "field"), UNMARKED, ids=[f"{chip}:{field}" for chip, field in UNMARKED])
def test_every_number_acts(chip: str, field: Field, table: Table) -> None:
    found = effect(DOCUMENTS[chip], field)
    assert found is not None, idle(field)
    table.add(f"{chip} {field.pointer}", f"{field.value} to {found[0]}", found[1])


def acting(chip: str, candidates: list[Field]) -> list[str]:
    """A complaint for each of *candidates* that acts; all are changed at once first, since none should."""
    document = DOCUMENTS[chip]
    base, values = chip_of(document), {}
    for field in candidates:
        values |= next(({field.pointer: v} for v in others(document, field) if _loads(document, field, v)), {})
    if difference_of(base, chip_of(changed(document, values))) is None:
        return []
    return [busy(field, found[1]) for field in candidates if (found := effect(document, field, 2)) is not None]


def _loads(document: dict[str, Any], field: Field, value: Any) -> bool:
    try:
        chip_of(changed(document, {field.pointer: value}))
    except errors.HdlError:
        return False
    return True


@pytest.mark.parametrize("chip", CHIPS)
def test_what_is_marked_informational_acts_on_nothing(chip: str, table: Table) -> None:
    assert acting(chip, MARKED[chip]) == []
    for field in MARKED[chip]:
        table.add(f"{chip} {field.pointer}", "another value", "nothing: informational")


def test_every_mark_is_on_something_that_a_shipped_chip_has() -> None:
    applied = {text for found in MARKS.values() for text in found.values()}
    assert _texts(SCHEMA) == applied


def _texts(node: Any) -> set[str]:
    """The reasons of all marks of the schema."""
    if isinstance(node, list):
        return set().union(*map(_texts, node))
    if not isinstance(node, dict):
        return set()
    own = {node["informational"]} if isinstance(node.get("informational"), str) else set()
    return own.union(*map(_texts, node.values()))


# the other way: what is dead is found


def test_a_number_that_acts_on_nothing_is_found() -> None:
    """A limit that nobody asks for."""
    dead = {"value": 7, "origin": "estimate", "source": "acme"}
    document = changed(DOCUMENTS["acme-x1"], {"/limits/nobody_asks": dead})
    (field,) = (field for field in fields(document) if "nobody_asks" in field.pointer)
    assert effect(document, field, 1) is None
    assert idle(field).startswith("/limits/nobody_asks/value acts on nothing")


def test_a_mark_on_a_number_that_acts_is_found() -> None:
    chip = "acme-x1"
    live = [field for field in fields(DOCUMENTS[chip]) if field.pointer.startswith("/host/launch_latency")]
    (complaint,) = acting(chip, [MARKED[chip][0], *live])
    assert complaint.startswith("/host/launch_latency/value is marked informational in hdl/schema.json and acts: ")


def test_the_same_description_states_the_same_again() -> None:
    """Else the comparisons above would say nothing."""
    chip = chip_of(DOCUMENTS["acme-x1"])
    assert all(probe.ask(chip) == stated(probe, chip) for probe in PROBES)
    assert all(isinstance(probe, Probe) for probe in PROBES)
