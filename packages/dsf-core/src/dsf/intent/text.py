"""Intents as text, one line each, and back: `load(dump(intents)) == intents`.

    rms_norm(compute=float32, eps=1e-05, weight_after_cast=True) %0[2, 8]:float16 %1[8]:float16 -> %2[2, 8]:float16
        ops (0, 1, 2) scope "model.norm" "LlamaRMSNorm" site "model.py" 12 group "moe" 31 "router"

(on one line). A region is its buffer, shape, `{stride}` and `+offset` where it is not dense from the start, and dtype.
An expression is `add:float32(x0, 2.0:float32)`. A line that is empty or begins with # says nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import torch
from attrs import frozen

from dsf import errors
from dsf.intent.expression import PRIMITIVES, Expr
from dsf.intent.ir import KINDS, Group, Intent
from dsf.intent.tape import Region, Scope, Site, Slot, Window
from dsf.isa.program import contiguous

__all__ = ["dump", "load"]


def _named(kind: type) -> dict[str, Any]:
    return {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, kind)}


_DTYPES, _FORMATS, _LAYOUTS = _named(torch.dtype), _named(torch.memory_format), _named(torch.layout)
_WORDS: dict[str, Any] = {"None": None, "True": True, "False": False, "inf": torch.inf, "-inf": -torch.inf,
                          "nan": torch.nan}  # fmt: skip


# Writing


def dump(intents: Sequence[Intent]) -> str:
    """The text of *intents*, a line each. An IntentError for an attribute that has no text."""
    return "".join(f"{_line(intent)}\n" for intent in intents)


def _line(intent: Intent) -> str:
    attrs = ", ".join(f"{name}={_expr(v) if name == 'expr' else _value(v)}" for name, v in intent.attrs)
    parts = [f"{intent.kind}({attrs})", *map(_region, intent.inputs), "->", *map(_region, intent.outputs)]
    parts += ["ops", _value(intent.ops)]
    if intent.scope != Scope():
        parts += ["scope", json.dumps(intent.scope.path), json.dumps(intent.scope.module)]
    if intent.site is not None:
        parts += ["site", json.dumps(intent.site.file), str(intent.site.line)]
    if intent.group is not None:
        parts += ["group", json.dumps(intent.group.kind), str(intent.group.anchor), json.dumps(intent.group.role)]
    return " ".join(parts)


def _region(region: Region) -> str:
    numbers = ", ".join(map(str, region.shape))
    stride = "" if region.stride == contiguous(region.shape) else "{" + ", ".join(map(str, region.stride)) + "}"
    offset = f"+{region.offset}" if region.offset else ""
    return f"%{region.buffer}[{numbers}]{stride}{offset}:{_dtype(region.dtype)}"


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_value, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, Slot):
        return f"${value.index}"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, torch.dtype):
        return _dtype(value)
    if isinstance(value, (torch.memory_format, torch.layout)):
        return str(value).removeprefix("torch.")
    if isinstance(value, torch.device):
        return f"device({json.dumps(str(value))})"
    if isinstance(value, complex):
        return f"complex({value.real!r}, {value.imag!r})"
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    raise errors.IntentError("DSF-E010", f"a {type(value).__name__} has no text: {value!r}; leave it out of attributes")


def _expr(expr: Expr) -> str:
    if expr[0] == "in":
        return f"x{expr[1]}"
    if expr[0] == "const":
        return f"{expr[2]!r}:{_dtype(expr[1])}"
    return f"{expr[0]}:{_dtype(expr[1])}({', '.join(map(_expr, expr[2:]))})"


# Reading


def load(text: str) -> tuple[Intent, ...]:
    """The intents that *text* says; an IntentError that names line and column where it says none."""
    lines = enumerate(text.splitlines(), 1)
    return tuple([_Line(number, line).intent() for number, line in lines if line.strip() and line.strip()[0] != "#"])


_TOKEN = re.compile(
    r"""(?P<space>\s+)|(?P<string>"(?:[^"\\]|\\.)*")|(?P<float>-?\d+(?:\.\d+(?:[eE][+-]?\d+)?|[eE][+-]?\d+))"""
    r"""|(?P<int>-?\d+)|(?P<name>-inf\b|[A-Za-z_]\w*)|(?P<mark>->|[()\[\]{},=:+%$])"""
)


@frozen
class _Token:
    kind: str
    text: str
    column: int


class _Line:
    """One line as tokens, read from left to right."""

    def __init__(self, number: int, text: str) -> None:
        self.row, self.at = number, 0
        self.tokens = list(self._split(text))

    def _split(self, text: str) -> Iterator[_Token]:
        position = 0
        while position < len(text):
            found = _TOKEN.match(text, position)
            if found is None:
                self._fail("DSF-E011", position + 1, f"{text[position]!r} begins nothing; see dsf.intent.text")
            kind = found.lastgroup or ""
            if kind != "space":
                yield _Token(kind, found.group(), position + 1)
            position = found.end()
        yield _Token("end", "", len(text) + 1)

    def _fail(self, code: str, column: int, sentence: str) -> NoReturn:
        raise errors.IntentError(code, f"line {self.row}, column {column}: {sentence}")

    @property
    def next(self) -> _Token:
        return self.tokens[self.at]

    def wrong(self, wanted: str) -> NoReturn:
        found = self.next
        what = repr(found.text) if found.text else "the end of the line"
        self._fail("DSF-E011", found.column, f"found {what}; expected {wanted}")

    def take(self, kind: str, wanted: str) -> str:
        token = self.next
        if token.kind != kind:
            self.wrong(wanted)
        self.at += 1
        return token.text

    def mark(self, text: str) -> None:
        if self.next.text != text or self.next.kind != "mark":
            self.wrong(repr(text))
        self.at += 1

    def has(self, text: str) -> bool:
        """Is *text* the next token? Then it is taken."""
        found = self.next.text == text and self.next.kind in ("mark", "name")
        self.at += found
        return found

    def whole(self) -> int:
        return int(self.take("int", "a whole number"))

    def count(self) -> int:
        column, number = self.next.column, self.whole()
        if number < 0:
            self._fail("DSF-E011", column, f"found {number}; expected a number from 0 on")
        return number

    def string(self) -> str:
        column, text = self.next.column, self.take("string", "a string in double quotes")
        try:
            found: str = json.loads(text)
        except ValueError:
            self._fail("DSF-E011", column, f"{text} is not a string as JSON has it")
        return found

    def several(self, close: str, item: Callable[[], Any]) -> tuple[Any, ...]:
        """Items up to *close*, with a comma after each but perhaps the last."""
        items = []
        while not self.has(close):
            items.append(item())
            if self.next.text != close:
                self.mark(",")
        return tuple(items)

    # what a line is made of

    def intent(self) -> Intent:
        column, kind = self.next.column, self.take("name", "the kind of an intent")
        if kind not in KINDS:
            self._fail("DSF-E012", column, f"no kind named {kind!r}; known kinds: {', '.join(sorted(KINDS))}")
        self.mark("(")
        attrs = self.several(")", self.attribute)
        inputs = self.regions()
        self.mark("->")
        outputs = self.regions()
        ops: tuple[int, ...] = ()
        scope, site, group = Scope(), None, None
        if self.has("ops"):
            self.mark("(")
            ops = self.several(")", self.count)
        if self.has("scope"):
            scope = Scope(self.string(), self.string())
        if self.has("site"):
            site = Site(self.string(), self.whole())
        if self.has("group"):
            group = Group(self.string(), self.whole(), self.string())
        if self.next.kind != "end":
            self.wrong("ops, scope, site, group or the end of the line, in this order")
        return Intent(kind, inputs, outputs, attrs, ops, scope, site, group)

    def attribute(self) -> tuple[str, Any]:
        name = self.take("name", "the name of an attribute")
        self.mark("=")
        return name, self.expr() if name == "expr" else self.value()

    def regions(self) -> tuple[Region, ...]:
        found = []
        while self.next.text == "%":
            found.append(self.region())
        return tuple(found)

    def region(self) -> Region:
        self.mark("%")
        buffer = self.count()
        self.mark("[")
        shape = self.several("]", self.count)
        column = self.next.column
        stride = self.several("}", self.whole) if self.has("{") else contiguous(shape)
        if len(stride) != len(shape):
            self._fail(
                "DSF-E011", column, f"found {len(stride)} strides; expected {len(shape)}, one for each dimension"
            )
        offset = self.count() if self.has("+") else 0
        self.mark(":")
        return Region(buffer, Window(shape, stride, offset, self.dtype()))

    def dtype(self) -> torch.dtype:
        column, name = self.next.column, self.take("name", "a dtype")
        if name not in _DTYPES:
            self._fail("DSF-E012", column, f"no dtype named {name!r}; known dtypes: {', '.join(sorted(_DTYPES))}")
        dtype: torch.dtype = _DTYPES[name]
        return dtype

    def value(self) -> Any:
        token = self.next
        if self.has("("):
            return self.several(")", self.value)
        if self.has("$"):
            return Slot(self.count())
        if token.kind == "string":
            return self.string()
        if token.kind == "name" and token.text in ("device", "complex"):
            return self._made(token)
        if token.kind == "name":
            self.at += 1
            for known in (_WORDS, _DTYPES, _FORMATS, _LAYOUTS):
                if token.text in known:
                    return known[token.text]
            self._fail("DSF-E012", token.column, f"{token.text!r} is no value; strings stand in double quotes")
        return self.number()

    def _made(self, token: _Token) -> Any:
        """device("cpu") or complex(1.0, 2.0)."""
        self.at += 1
        self.mark("(")
        parts = self.several(")", self.value)
        try:
            return torch.device(*parts) if token.text == "device" else complex(*parts)
        except (RuntimeError, TypeError, ValueError):
            self._fail("DSF-E011", token.column, f"{token.text} of {parts} is none")

    def number(self) -> int | float:
        token = self.next
        if token.kind not in ("int", "float"):
            self.wrong("a value")
        self.at += 1
        return int(token.text) if token.kind == "int" else float(token.text)

    def expr(self) -> Expr:
        token = self.next
        if token.kind == "name" and re.fullmatch(r"x\d+", token.text):
            self.at += 1
            return "in", int(token.text[1:])
        if token.kind == "name" and token.text not in _WORDS:
            return self._primitive()
        number = self.value() if token.kind == "name" else self.number()
        self.mark(":")
        return "const", self.dtype(), number

    def _primitive(self) -> Expr:
        token = self.next
        name = self.take("name", "a primitive")
        if name not in PRIMITIVES:
            self._fail("DSF-E012", token.column, f"no primitive named {name!r}; known: {', '.join(sorted(PRIMITIVES))}")
        self.mark(":")
        dtype = self.dtype()
        self.mark("(")
        operands = self.several(")", self.expr)
        if len(operands) != PRIMITIVES[name].arity:
            sentence = f"{name} has {len(operands)} operands; expected {PRIMITIVES[name].arity}"
            self._fail("DSF-E011", token.column, sentence)
        return name, dtype, *operands
