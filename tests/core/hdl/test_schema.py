"""The schema, the code and the README say the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from jsonschema import Draft202012Validator

from dsf import hdl, units
from dsf.numerics import FORMATS

SCHEMA: dict[str, Any] = json.loads(Path(hdl.__file__).with_name("schema.json").read_text("utf-8"))
CHIPS = Path(hdl.load("acme-x1").path).resolve().parent


def nodes(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from nodes(child)


def test_the_schema_is_json_schema_2020_12() -> None:
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", sorted(CHIPS.glob("*.json")), ids=lambda path: path.stem)
def test_any_validator_accepts_the_shipped_chips(path: Path) -> None:
    """Our own keyword for units aside, the schema is an ordinary one: editors can use it."""
    assert list(Draft202012Validator(SCHEMA).iter_errors(json.loads(path.read_text("utf-8")))) == []


def test_no_object_of_the_schema_lets_an_unknown_field_pass() -> None:
    loose = [node for node in nodes(SCHEMA) if "properties" in node and node.get("additionalProperties") is not False]
    assert [node for node in loose if node.get("type") == "object"] == []


def test_the_dtypes_of_the_schema_are_the_formats_of_numerics() -> None:
    assert SCHEMA["$defs"]["dtype"]["enum"] == list(FORMATS)
    assert SCHEMA["$defs"]["dtype_or_default"]["enum"] == ["default", *FORMATS]


def test_the_refused_device_names_are_those_that_torch_knows() -> None:
    with pytest.raises(RuntimeError) as error:
        torch.device("nosuchdevice")
    listed = re.search(r"Expected one of (.*) device type", str(error.value))
    assert listed is not None
    known = set(listed[1].split(", ")) - {torch._C._get_privateuse1_backend_name()}
    assert set(SCHEMA["properties"]["device"]["not"]["enum"]) == known | {"privateuseone"}


def test_every_dimension_of_the_schema_can_be_parsed() -> None:
    used = {node["dimension"] for node in nodes(SCHEMA) if isinstance(node.get("dimension"), str)}
    assert used == set(units.DIMENSIONS)


def test_origins_are_one_vocabulary() -> None:
    assert tuple(SCHEMA["$defs"]["origin"]["enum"]) == units.ORIGINS


def test_the_readme_explains_every_field() -> None:
    readme = (CHIPS / "README.md").read_text("utf-8")
    fields = {name for node in nodes(SCHEMA) for name in _properties(node)}
    assert {name for name in fields if f"`{name}`" not in readme} == set()


def test_the_readme_lists_every_shipped_file() -> None:
    readme = (CHIPS / "README.md").read_text("utf-8")
    assert [path.name for path in CHIPS.glob("*.json") if f"`{path.name}`" not in readme] == []


def _properties(node: dict[str, Any]) -> list[str]:
    properties = node.get("properties")
    return [*properties] if isinstance(properties, dict) and "type" in node else []
