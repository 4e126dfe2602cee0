"""Is a hardware description of the right form? The JSON Schema says so, with `dimension` as one more keyword of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend

from dsf import units
from dsf.hdl.problems import Json, Problem, close, pointer_of, show

__all__ = ["VERSION", "of_form", "written"]

VERSION = "1.0"


def of_form(document: Json) -> Iterator[Problem]:
    """Every way in which *document* departs from the schema, units included."""
    version = document.get("hdl", VERSION)
    if version != VERSION:
        yield Problem("/hdl", f"found {show(version)}; this DSF reads HDL '{VERSION}'")
        return
    for error in _validator().iter_errors(document):
        yield from _problems(error)


def written(value: object, unit: str | None) -> object:
    """A quantity as one text, whether its unit stands within the value or beside it."""
    return value if unit is None else f"{value} {unit}"


@cache
def _validator() -> Validator:
    schema = json.loads(Path(__file__).with_name("schema.json").read_text(encoding="utf-8"))
    extended: Any = extend  # jsonschema types it in part, its stubs otherwise
    validator: Validator = extended(Draft202012Validator, {"dimension": _dimension})(_inlined(schema, schema["$defs"]))
    return validator


def _inlined(node: Any, definitions: Json) -> Any:
    """The schema with each `$ref` replaced by what it names: validation then takes half the time."""
    if isinstance(node, list):
        return [_inlined(child, definitions) for child in node]
    if not isinstance(node, dict):
        return node
    own = {key: _inlined(child, definitions) for key, child in node.items() if key not in ("$ref", "$defs")}
    if "$ref" in node:
        own = _inlined(definitions[node["$ref"].removeprefix("#/$defs/")], definitions) | own
    return own


def _dimension(validator: Validator, dimension: str, instance: Any, schema: Json) -> Iterator[ValidationError]:
    if not isinstance(instance, dict) or not isinstance(instance.get("unit", ""), str) or "value" not in instance:
        return
    value = instance["value"]
    if isinstance(value, list):
        parts: list[tuple[Any, Any]] = list(enumerate(value))
    else:
        parts = list(value.items()) if isinstance(value, dict) else [(None, value)]
    for key, part in parts:
        if isinstance(part, str | int | float):
            what = _quantity_problem(written(part, instance.get("unit")), dimension, schema.get("positive", False))
            if what:
                yield ValidationError(what, validator="dimension", path=["value"] if key is None else ["value", key])


def _quantity_problem(value: object, dimension: str, positive: bool) -> str | None:
    try:
        quantity = units.parse(value, dimension)
    except ValueError as error:
        return str(error)
    if positive and quantity <= 0:
        return f"found {show(value)}; expected {units.DIMENSIONS[dimension].noun} above zero"
    return None


def _problems(error: ValidationError) -> Iterator[Problem]:
    where = pointer_of("", *error.absolute_path)
    if "propertyNames" in error.absolute_schema_path:
        yield Problem(pointer_of(where, error.instance), f"found the name {show(error.instance)}; {_expected(error)}")
    else:
        yield from _FINDINGS.get(str(error.validator), _other)(error, where)


def _unknown_fields(error: ValidationError, where: str) -> Iterator[Problem]:
    known = _mapping(error.schema).get("properties", {})
    for key in _mapping(error.instance):
        if key not in known:
            yield Problem(pointer_of(where, key), f"is no field of HDL {VERSION}{close(key, known)}")


def _missing_field(error: ValidationError, where: str) -> Iterator[Problem]:
    missing = [key for key in _mapping(error.schema)["required"] if key not in _mapping(error.instance)]
    for key in missing:
        yield Problem(pointer_of(where, key), "is missing; it is required")


def _device(error: ValidationError, where: str) -> Iterator[Problem]:
    yield Problem(where, f"found {show(error.instance)}; torch keeps that name for itself; expected one like 'npu'")


def _as_it_says(error: ValidationError, where: str) -> Iterator[Problem]:
    yield Problem(where, error.message)


def _other(error: ValidationError, where: str) -> Iterator[Problem]:
    yield Problem(where, f"found {show(error.instance)}; {_expected(error)}")


_FINDINGS: Mapping[str, Callable[[ValidationError, str], Iterator[Problem]]] = {
    "additionalProperties": _unknown_fields,
    "required": _missing_field,
    "dimension": _as_it_says,
    "not": _device,
}

_TYPES = {
    "string": "a text",
    "object": "an object",
    "array": "a list",
    "number": "a number",
    "boolean": "true or false",
}


def _expected(error: ValidationError) -> str:
    value: Any = error.validator_value
    match error.validator:
        case "type":
            types = [value] if isinstance(value, str) else value
            return f"expected {' or '.join(_TYPES.get(name, f'an {name}') for name in types)}"
        case "enum":
            return f"expected one of {', '.join(map(str, value))}"
        case "pattern":
            return f"expected {_mapping(error.schema).get('description', f'text like {value}')}"
        case "minItems" | "maxItems" | "minProperties" | "minLength" | "maxLength" | "minimum" | "maximum":
            bound, thing = str(error.validator)[:3], str(error.validator)[3:].lower() or "value"
            noun = {"imum": "", "items": " items", "properties": " fields", "length": " characters"}[thing]
            return f"expected {'at least' if bound == 'min' else 'at most'} {value}{noun}"
        case "uniqueItems":
            return "expected each item once"
        case _:
            return f"expected {error.validator}: {show(value)}"


def _mapping(node: object) -> Mapping[str, Any]:
    return node if isinstance(node, Mapping) else {}
