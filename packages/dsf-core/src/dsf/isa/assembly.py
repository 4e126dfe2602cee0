"""Listings as source text: `parse(program.listing()) == program`, for every program that has a listing.

The text is read line by line. Two spaces of indentation a level say what is inside what:

    program NAME(ROLE NAME:BYTES, ...)
      phase CORE
        blocks VARIABLE<COUNT VARIABLE<COUNT ...
          INSTRUCTION OPERAND, ..., SCALAR=VALUE, ...
          loop VARIABLE<COUNT
            ...

A line may begin with its number, which is not looked at, and end with a remark after `#`; empty lines do not count.
Whatever is wrong is a ListingError (DSF-I021) with the line, the column, what was found and what was expected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from attrs import define, field

from dsf import errors
from dsf.isa.program import (
    MOST_LOOPS,
    Affine,
    Instruction,
    Loop,
    Nest,
    Operand,
    Param,
    Phase,
    Program,
    Scalar,
    Term,
    contiguous,
)  # fmt: skip

__all__ = ["parse", "places"]

_MARGIN = re.compile(r"(?: *\d+(?= ) )?( *)")
_QUOTED = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_WORD = re.compile(rf"[A-Za-z_][A-Za-z0-9_.]*|{_QUOTED}")
_SPACE = re.compile(rf"([A-Za-z_][A-Za-z0-9_]*|{_QUOTED})(?:\.p(-?\d{{1,20}}))?\[")
_WHOLE = re.compile(r"-?0x[0-9a-f]{1,20}|-?\d{1,20}")
_FLOAT = re.compile(r"-?(?:\d{1,40}\.\d{0,40}(?:e[+-]?\d{1,4})?|\d{1,40}e[+-]?\d{1,4}|inf|nan)(?![\w.])")
_CONSTANTS = {"True": True, "False": False}
_SHOWN = 24  # characters of a line that an error shows


def parse(text: str) -> Program:
    """The program that *text* lists."""
    reader = _Reader()
    line = _Line(0, "")
    for number, written in enumerate(text.split("\n"), 1):
        line = _Line(number, written.rstrip("\r"))
        depth = line.depth()
        if depth is not None:
            reader.take(line, depth)
    if not reader.open:
        line.refuse("a program")
    return reader.end()


def places(text: str) -> tuple[int, ...]:
    """The number in *text* of each line of the listing that it holds: remarks and empty lines are none."""
    lines = enumerate(text.split("\n"), 1)
    return tuple(number for number, written in lines if _Line(number, written.rstrip("\r")).depth() is not None)


@define
class _Open:
    """Something that has an inside: *make* turns what is inside into the thing."""

    make: Callable[..., object]
    inside: list[object] = field(factory=list)


@define
class _Reader:
    """What has been read: *open* are the program, the phase, the nest and the loops that the next line may be in."""

    open: list[_Open] = field(factory=list)

    def take(self, line: _Line, depth: int) -> None:
        """Put what *line* says where its indentation says."""
        if depth > len(self.open) or (depth == 0 and self.open):
            line.refuse(self._places())
        while len(self.open) > depth:
            self._close()
        made = _STATEMENTS[min(depth, 3)](line)
        line.end()
        if isinstance(made, Instruction):
            self.open[-1].inside.append(made)
            return
        if depth - 3 == MOST_LOOPS:
            line.refuse(f"at most {MOST_LOOPS} loops inside each other", at=0)
        self.open.append(_Open(made))

    def _places(self) -> str:
        if not self.open:
            return "'program NAME(...)' without indentation"
        return f"an indentation of 2 to {2 * len(self.open)} spaces" if len(self.open) > 1 else "'phase' after 2 spaces"

    def _close(self) -> None:
        done = self.open.pop()
        self.open[-1].inside.append(done.make(tuple(done.inside)))

    def end(self) -> Program:
        while len(self.open) > 1:
            self._close()
        (whole,) = self.open
        program = whole.make(tuple(whole.inside))
        assert isinstance(program, Program)
        return program


@define
class _Line:
    """One line and the place *at* which it is being read."""

    number: int
    text: str
    at: int = 0

    def refuse(self, expected: str, at: int | None = None) -> NoReturn:
        """Raise what is wrong here, or at column *at*."""
        place = self.at if at is None else at
        rest = "".join(c if c.isprintable() else "?" for c in self.text[place : place + _SHOWN])
        found = f"'{rest}'" if rest else "the end of the line"
        raise errors.ListingError(
            "DSF-I021", f"line {self.number}, column {place + 1}: found {found}; expected {expected}"
        )

    def depth(self) -> int | None:
        """How many levels the line is indented; None if it says nothing."""
        margin = _MARGIN.match(self.text)
        assert margin is not None, "a margin may be empty"
        self.at = margin.end()
        if self.text[self.at : self.at + 1] in ("", "#"):
            return None
        if len(margin[1]) % 2:
            self.refuse(f"an even number of spaces before it, not {len(margin[1])}")
        return len(margin[1]) // 2

    def matched(self, pattern: re.Pattern[str], expected: str) -> re.Match[str]:
        """Read on over *pattern*."""
        match = pattern.match(self.text, self.at)
        if match is None:
            self.refuse(expected)
        self.at = match.end()
        return match

    def skip(self) -> int:
        """Read on over spaces; the column after them."""
        while self.text[self.at : self.at + 1] == " ":
            self.at += 1
        return self.at

    def has(self, mark: str) -> bool:
        """Whether *mark* comes next, after spaces; if so, read on over it."""
        found = self.text.startswith(mark, self.skip())
        self.at += len(mark) * found
        return found

    def must(self, mark: str) -> None:
        if not self.has(mark):
            self.refuse(f"'{mark}'")

    def ends(self) -> bool:
        """Whether nothing but a remark is left."""
        at = self.skip()
        return self.text[at : at + 1] in ("", "#")

    def end(self) -> None:
        if not self.ends():
            self.refuse("the end of the line, or a remark after #")

    def word(self, expected: str) -> str:
        """A name: a plain word, or a JSON string."""
        start = self.skip()
        return self.name(self.matched(_WORD, expected)[0], start)

    def name(self, written: str, start: int) -> str:
        """The name that is *written* at column *start*."""
        if not written.startswith('"'):
            return written
        try:
            name = json.loads(written)
            name.encode()
        except (json.JSONDecodeError, UnicodeEncodeError):
            self.refuse("a JSON string", at=start)
        return str(name)

    def whole(self, expected: str = "a whole number") -> int:
        start = self.skip()
        digits = self.matched(_WHOLE, expected)[0]
        number = int(digits, 0 if "x" in digits else 10)
        if not -(1 << 63) <= number < 1 << 63 or self.text[self.at : self.at + 1].isalnum():
            self.refuse(f"{expected} of 64 bits", at=start)
        return number

    def separated(self, one: Callable[[], object], closing: str) -> None:
        """*one*, then after every comma one more, until *closing*; or *closing* at once."""
        if self.has(closing):
            return
        one()
        while self.has(","):
            one()
        self.must(closing)


def _program(line: _Line) -> Callable[..., object]:
    _keyword(line, "program")
    name, params = line.word("the program's name"), list[Param]()
    line.must("(")
    line.separated(lambda: params.append(_param(line)), ")")
    return partial(Program, name, tuple(params))


def _param(line: _Line) -> Param:
    role, name = line.word("a parameter's role"), line.word("a parameter's name")
    line.must(":")
    return Param(name, role, line.whole("the parameter's bytes"))


def _phase(line: _Line) -> Callable[..., object]:
    _keyword(line, "phase")
    return partial(Phase, line.word("a kind of core"))


def _nest(line: _Line) -> Callable[..., object]:
    _keyword(line, "blocks")
    counters = []
    while not line.ends():
        counters.append(_counter(line))
    return partial(Nest, tuple(counters))


def _item(line: _Line) -> Callable[..., object] | Instruction:
    bare = line.text[line.at] != '"'
    name = line.word("an instruction or a loop")
    if bare and name == "loop":
        return partial(Loop, *_counter(line))
    if bare and name in ("program", "phase", "blocks"):
        line.refuse(f"an instruction or a loop; a {name} is indented less", at=line.at - len(name))
    operands, scalars = list[Operand](), list[tuple[str, Scalar]]()
    if not line.ends():
        _argument(line, operands, scalars)
    while line.has(","):
        _argument(line, operands, scalars)
    return Instruction(name, tuple(operands), tuple(scalars))


def _keyword(line: _Line, keyword: str) -> None:
    if line.text[line.at :].split(" ", 1)[0].rstrip() != keyword:
        line.refuse(f"'{keyword}'")
    line.at += len(keyword)


def _counter(line: _Line) -> tuple[str, int]:
    variable = line.word("a variable and its count, like i<4")
    line.must("<")
    return variable, line.whole("a count")


def _argument(line: _Line, operands: list[Operand], scalars: list[tuple[str, Scalar]]) -> None:
    """One operand, or one scalar; operands come first."""
    start = line.skip()
    window = _SPACE.match(line.text, line.at)
    if window is None:
        name = line.word("an operand, like UB[0x0](16,64)float16, or a scalar, like value=0.5")
        line.must("=")
        scalars.append((name, _scalar(line)))
        return
    if scalars:
        line.refuse("a scalar, like value=0.5; operands come before them")
    line.at = window.end()
    operands.append(_operand(line, line.name(window[1], start), window[2], start))


def _operand(line: _Line, space: str, param: str | None, start: int) -> Operand:
    """What follows `space[`."""
    number = None if param is None else int(param)
    if number is not None and not -(1 << 63) <= number < 1 << 63:
        line.refuse("a parameter's number of 64 bits", at=start)
    offset = _affine(line)
    line.must("]")
    line.must("(")
    shape, strides = list[int](), list[int]()
    if line.has(":"):
        line.separated(lambda: strides.append(line.whole("a stride")), ")")
        return Operand(space, (), tuple(strides), line.word("a number format"), offset, number)
    if line.has(")"):
        return Operand(space, (), (), line.word("a number format"), offset, number)
    shape.append(line.whole("a size"))
    while line.has(","):
        shape.append(line.whole("a size"))
    apart = line.has(":")
    if apart:
        line.separated(lambda: strides.append(line.whole("a stride")), ")")
    else:
        line.must(")")
    stride = tuple(strides) if apart else contiguous(tuple(shape))
    return Operand(space, tuple(shape), stride, line.word("a number format"), offset, number)


def _affine(line: _Line) -> Affine:
    """A constant, then terms: 0x40+0x8*i+0x2*(j%2)."""
    const, terms = 0, list[Term]()
    first = True
    while first or line.has("+"):
        number = _WHOLE.match(line.text, line.skip())
        step = line.whole() if number else 1
        if number and not line.has("*"):
            if not first:
                line.refuse("'*' and a variable; the constant comes first")
            const = step
        else:
            terms.append(_term(line, step))
        first = False
    return Affine(const, tuple(terms))


def _term(line: _Line, step: int) -> Term:
    if not line.has("("):
        return Term(line.word("a loop variable or a number"), step)
    variable = line.word("a loop variable")
    line.must("%")
    modulus = line.whole("a modulus")
    line.must(")")
    return Term(variable, step, modulus)


def _scalar(line: _Line) -> Scalar:
    """16, 0x10, [r0+r1], 0.5, True, a word or a JSON string."""
    if line.has("["):
        value = _affine(line)
        line.must("]")
        return value
    if number := _FLOAT.match(line.text, line.skip()):
        line.at = number.end()
        return float(number[0])
    if _WHOLE.match(line.text, line.at):
        start, whole = line.at, line.whole()
        return Affine(whole) if "x" in line.text[start : line.at] else whole
    bare = line.text[line.at : line.at + 1] != '"'
    name = line.word("a value: a number, [an affine one], True, False, or text")
    return _CONSTANTS.get(name, name) if bare else name


_STATEMENTS: tuple[Callable[[_Line], Callable[..., object] | Instruction], ...] = (_program, _phase, _nest, _item)
