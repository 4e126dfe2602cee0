"""Every number of a hardware description, and the description with one of them changed.

A field is a quantity, a row of a table, an element of a list or a word of a rule of `numerics`: all that has an origin.
What the schema marks `informational` is read by people, or by nobody yet.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from fractions import Fraction
from itertools import zip_longest
from math import floor
from pathlib import Path
from typing import Any

from attrs import frozen
from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend

from dsf import errors, hdl
from dsf.hdl import Chip, read

__all__ = ["SCHEMA", "Field", "changed", "chip_of", "document_of", "fields", "marks", "others", "perturbed"]

Json = dict[str, Any]

SCHEMA: Json = json.loads(Path(hdl.__file__).with_name("schema.json").read_text("utf-8"))
ABOUT = ("origin", "source", "note", "unit", "what")  # of a number: they say where it is from, and in what unit it is
TIMES = ("1/2", "2", "19/20", "21/20", "16", "1/16")
PLUS = ("1", "-1")


@frozen
class Field:
    """The value at a JSON pointer of a description."""

    pointer: str
    value: Any

    def __str__(self) -> str:
        return self.pointer


def document_of(name: str) -> Json:
    """The shipped description called *name*, as `npu`: a process has one torch device."""
    found: Json = json.loads(Path(hdl.load(name).path).read_text("utf-8"))
    return found | {"device": "npu"}


def fields(document: Json) -> tuple[Field, ...]:
    """All numbers of *document* but for those of its variants, in the file's order."""
    base = {key: node for key, node in document.items() if key != "variants"}
    return tuple(_walk(base, ""))


def _walk(node: Any, where: str) -> Iterator[Field]:
    if isinstance(node, dict) and "origin" in node:
        for key, value in node.items():
            if key not in ABOUT:
                yield from _leaves(value, f"{where}/{key}")
    elif isinstance(node, dict | list):
        for key, child in _items(node):
            yield from _walk(child, f"{where}/{_escaped(key)}")


def _leaves(node: Any, where: str) -> Iterator[Field]:
    if isinstance(node, dict | list):
        for key, child in _items(node):
            yield from _leaves(child, f"{where}/{_escaped(key)}")
    else:
        yield Field(where, node)


def _items(node: Any) -> Iterator[tuple[str, Any]]:
    return iter(node.items()) if isinstance(node, dict) else ((str(n), child) for n, child in enumerate(node))


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _keys(pointer: str) -> list[str]:
    return [key.replace("~1", "/").replace("~0", "~") for key in pointer.split("/")[1:]]


def perturbed(document: Json, field: Field) -> Iterator[tuple[str, Chip]]:
    """The chips that differ in *field* alone, with the new value of each; what the HDL refuses is left out."""
    for value in others(document, field):
        try:
            yield str(value), chip_of(changed(document, {field.pointer: value}))
        except errors.HdlError:
            continue


def changed(document: Json, changes: Json) -> Json:
    """*document* with the values at these pointers."""
    result = copy.deepcopy(document)
    for pointer, value in changes.items():
        *parents, last = _keys(pointer)
        node: Any = result
        for key in parents:
            node = node[int(key)] if isinstance(node, list) else node[key]
        node[int(last) if isinstance(node, list) else last] = value
    return result


def chip_of(document: Json) -> Chip:
    """The chip that *document* describes; an HdlError if it describes none."""
    return read.chip_of(read.Document(document["name"], document, ()))


def others(document: Json, field: Field) -> Iterator[Any]:
    """Other values of its kind: a word of the same list of words, a number half or twice as large, or one more."""
    words = _words(document).get(field.pointer)
    if words is not None:
        yield from (word for word in words if word != field.value)
        return
    text, _, unit = str(field.value).partition(" ")
    number = Fraction(text)
    numbers = [*(number * Fraction(t) for t in TIMES), *(number + Fraction(p) for p in PLUS)]
    whole = [Fraction(floor(other)) for other in numbers] if number.denominator == 1 else []
    for other in dict.fromkeys(n for pair in zip_longest(numbers, whole) for n in pair if n is not None):
        plain = int(other) if other.denominator == 1 else str(other)
        yield f"{plain} {unit}" if unit else float(other) if isinstance(field.value, float) else plain


def _words(document: Json) -> dict[str, list[str]]:
    """The words that the schema allows, by the pointer of each that *document* has."""
    return {where: found for where, found in _annotated(document, "enum").items() if isinstance(found, list)}


def marks(document: Json) -> dict[str, str]:
    """What the schema marks informational of *document*: pointer to reason."""
    return _annotated(document, "informational")


def _annotated(document: Json, keyword: str) -> dict[str, Any]:
    """The schema's *keyword* for every place of *document* that it applies to."""

    def collect(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        error = ValidationError(keyword)
        error.validator_value = value
        yield error

    known: Any = extend
    validator = known(Draft202012Validator, {keyword: collect})(SCHEMA)
    found = (e for e in validator.iter_errors(document) if e.validator == keyword)
    return {"".join(f"/{_escaped(str(key))}" for key in e.absolute_path): e.validator_value for e in found}
