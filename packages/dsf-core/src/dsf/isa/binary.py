"""Programs as bytes: `decode(encode(program)) == program`, and no other bytes decode to that program.

    93 44 53 46    the magic: 0x93, "DSF"
    01             the version
    length         of what follows up to the checksum, 8 bytes
    names          their count; each one's length and UTF-8 text
    operands       their count; each distinct window once
    program        name, parameters, phases, nests, loops and instructions, which refer to names and operands by number
    checksum       CRC-32 of everything before it, 4 bytes

Numbers outside the frame are varints of 7 bits a byte, lowest first, in zigzag form where they may be negative; floats
are 8 bytes, so the bits of a NaN survive. The frame is little-endian. Nothing that a file says is believed before it is
checked: a count can be no larger than the bytes that are left, since whatever is counted takes one at least.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NoReturn, TypeVar
from zlib import crc32

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
    unwritable,
    whole,
)  # fmt: skip

__all__ = ["MAGIC", "decode", "encode"]

MAGIC = b"\x93DSF"
VERSION = 1
_HEAD = struct.Struct("<4sBQ")
_SUM = struct.Struct("<I")
_FLOAT = struct.Struct("<d")
_FALSE, _TRUE, _WHOLE, _REAL, _TEXT, _AFFINE = range(6)
Body = tuple[Instruction | Loop, ...]
T = TypeVar("T")


def encode(program: Program) -> bytes:
    """*program* as bytes; an IsaError (DSF-I020) if it holds what a program cannot."""
    writer = _Writer()
    writer.program(program)
    payload = writer.payload()
    framed = _HEAD.pack(MAGIC, VERSION, len(payload)) + payload
    return framed + _SUM.pack(crc32(framed))


def decode(data: bytes) -> Program:
    """The program that *data* encodes; a ListingError (DSF-I022) that names the first byte which cannot be."""
    reader = _Reader(_framed(data), at=_HEAD.size)
    program = reader.whole_program()
    again = encode(program)
    if again != data:
        different = (n for n, (a, b) in enumerate(zip(again, data, strict=False)) if a != b)
        _refuse(next(different, min(len(again), len(data))), "what `encode` would write otherwise", "its one form")
    return program


def _framed(data: bytes) -> bytes:
    """*data* without its checksum, which is right."""
    if data[: len(MAGIC)] != MAGIC:
        _refuse(0, f"{data[:4].hex(' ') or 'nothing'}", f"{MAGIC.hex(' ')}, with which a program begins")
    if len(data) < _HEAD.size + _SUM.size:
        _refuse(len(data), "the end", f"{_HEAD.size + _SUM.size} bytes at least")
    _, version, length = _HEAD.unpack_from(data)
    if version != VERSION:
        _refuse(len(MAGIC), f"version {version}", f"version {VERSION}, which this DSF reads")
    end = _HEAD.size + length
    if end + _SUM.size != len(data):
        _refuse(len(MAGIC) + 1, f"a length of {length}", f"{len(data) - _HEAD.size - _SUM.size}, which are there")
    (stated,) = _SUM.unpack_from(data, end)
    computed = crc32(data[:end])
    if stated != computed:
        _refuse(end, f"checksum {stated:08x}", f"{computed:08x}, that of the bytes before; the file is damaged")
    return data[:end]


def _refuse(at: int, found: str, expected: str) -> NoReturn:
    raise errors.ListingError("DSF-I022", f"byte {at}: found {found}; expected {expected}")


@define
class _Writer:
    """Collects the program's own bytes; the tables of names and operands are filled on the way."""

    out: bytearray = field(factory=bytearray)
    names: dict[str, int] = field(factory=dict)
    operands: dict[Operand, int] = field(factory=dict)
    windows: bytearray = field(factory=bytearray)

    def payload(self) -> bytes:
        """All of it, tables first."""
        tables = _Writer()
        tables.uint(len(self.names))
        for name in self.names:
            text = name.encode()
            tables.uint(len(text))
            tables.out += text
        tables.uint(len(self.operands))
        return bytes(tables.out + self.windows + self.out)

    def uint(self, number: int) -> None:
        while number > 127:
            self.out.append(number & 127 | 128)
            number >>= 7
        self.out.append(number)

    def sint(self, number: object) -> None:
        n = whole(number)
        self.uint(n << 1 if n >= 0 else ~(n << 1))

    def name(self, name: str, tag: int = 0, tags: int = 1) -> None:
        """The number of *name*, times *tags*, plus *tag*."""
        try:
            name.encode()
        except (AttributeError, UnicodeEncodeError):
            raise unwritable(f"the name {name!r} is no text") from None
        self.uint(self.names.setdefault(name, len(self.names)) * tags + tag)

    def program(self, program: Program) -> None:
        self.name(program.name)
        self.uint(len(program.params))
        for param in program.params:
            self.name(param.name)
            self.name(param.role)
            self.sint(param.nbytes)
        self.uint(len(program.phases))
        for phase in program.phases:
            self.name(phase.core)
            self.uint(len(phase.nests))
            for nest in phase.nests:
                self.nest(nest)

    def nest(self, nest: Nest) -> None:
        self.uint(len(nest.variables))
        for variable, count in nest.variables:
            self.name(variable)
            self.sint(count)
        self.body(nest.body, 0)

    def body(self, body: Body, depth: int) -> None:
        self.uint(len(body))
        for item in body:
            if isinstance(item, Loop):
                if depth == MOST_LOOPS:
                    raise unwritable(f"more than {MOST_LOOPS} loops inside each other")
                self.name(item.variable, 1, 2)
                self.sint(item.count)
                self.body(item.body, depth + 1)
            else:
                self.instruction(item)

    def instruction(self, ins: Instruction) -> None:
        self.name(ins.name, 0, 2)
        self.uint(len(ins.operands))
        for operand in ins.operands:
            if operand not in self.operands:
                self.operands[operand] = len(self.operands)
                self.window(operand)
            self.uint(self.operands[operand])
        self.uint(len(ins.scalars))
        for name, value in ins.scalars:
            self.name(name)
            self.scalar(value)

    def window(self, operand: Operand) -> None:
        """*operand*, into the table of windows."""
        body, self.out = self.out, self.windows
        dense = operand.stride == contiguous(operand.shape)
        self.name(operand.space)
        self.uint(len(operand.shape) * 4 + (not dense) * 2 + (operand.param is not None))
        for size in operand.shape:
            self.sint(size)
        if not dense:
            self.uint(len(operand.stride))
            for step in operand.stride:
                self.sint(step)
        self.name(operand.dtype)
        self.affine(operand.offset)
        if operand.param is not None:
            self.sint(operand.param)
        self.out = body

    def affine(self, value: Affine) -> None:
        self.sint(value.const)
        self.uint(len(value.terms))
        for term in value.terms:
            self.name(term.variable)
            self.sint(term.step)
            self.sint(term.modulus)

    def scalar(self, value: Scalar) -> None:
        if isinstance(value, bool):
            self.uint(_TRUE if value else _FALSE)
        elif isinstance(value, float):
            self.uint(_REAL)
            self.out += _FLOAT.pack(value)
        elif isinstance(value, str):
            self.uint(_TEXT)
            self.name(value)
        elif isinstance(value, Affine):
            self.uint(_AFFINE)
            self.affine(value)
        else:
            self.uint(_WHOLE)
            self.sint(value)


@define
class _Reader:
    """Reads *data* from byte *at* on; the tables come first."""

    data: bytes
    at: int
    names: tuple[str, ...] = ()
    operands: tuple[Operand, ...] = ()

    def whole_program(self) -> Program:
        self.names = self.many(self.text, "names")
        self.operands = self.many(self.operand, "operands")
        program = Program(self.name(), self.many(self.param, "parameters"), self.many(self.phase, "phases"))
        if self.at != len(self.data):
            _refuse(self.at, f"{len(self.data) - self.at} bytes more", "the end of the program")
        return program

    def uint(self) -> int:
        start, number, shift = self.at, 0, 0
        while True:
            if self.at == len(self.data):
                _refuse(self.at, "the end", "a number")
            byte = self.data[self.at]
            self.at += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128 and number < 1 << 64:
                return number
            if shift == 70 or byte < 128:
                _refuse(start, "a number of more than 64 bits", "one of 64 at most")

    def sint(self) -> int:
        number = self.uint()
        return number >> 1 if not number & 1 else ~(number >> 1)

    def count(self, what: str) -> int:
        start, number = self.at, self.uint()
        left = len(self.data) - self.at
        if number > left:
            _refuse(start, f"{number} {what}", f"at most {left}, since so many bytes are left")
        return number

    def many(self, one: Callable[[], T], what: str) -> tuple[T, ...]:
        return tuple([one() for _ in range(self.count(what))])

    def text(self) -> str:
        size = self.count("bytes of a name")
        start, self.at = self.at, self.at + size
        try:
            return self.data[start : self.at].decode()
        except UnicodeDecodeError as error:
            _refuse(start + error.start, f"{self.data[start + error.start]:02x}", "UTF-8")

    def entry(self, table: tuple[T, ...], number: int, what: str, start: int) -> T:
        if number >= len(table):
            _refuse(start, f"{what} {number}", f"one of {len(table)} {what}s, from 0 on")
        return table[number]

    def name(self) -> str:
        start = self.at
        return self.entry(self.names, self.uint(), "name", start)

    def param(self) -> Param:
        return Param(self.name(), self.name(), self.sint())

    def phase(self) -> Phase:
        return Phase(self.name(), self.many(self.nest, "nests"))

    def nest(self) -> Nest:
        variables = self.many(lambda: (self.name(), self.sint()), "variables")
        return Nest(variables, self.body(0))

    def body(self, depth: int) -> Body:
        return self.many(lambda: self.item(depth), "instructions")

    def item(self, depth: int) -> Instruction | Loop:
        start, number = self.at, self.uint()
        name = self.entry(self.names, number >> 1, "name", start)
        if not number & 1:
            return Instruction(name, self.many(self.window, "operands"), self.many(self.scalar, "scalars"))
        if depth == MOST_LOOPS:
            _refuse(start, f"loop {MOST_LOOPS + 1} inside the others", f"{MOST_LOOPS} at most")
        return Loop(name, self.sint(), self.body(depth + 1))

    def window(self) -> Operand:
        start = self.at
        return self.entry(self.operands, self.uint(), "operand", start)

    def operand(self) -> Operand:
        space, start, form = self.name(), self.at, self.uint()
        if form >> 2 > len(self.data) - self.at:
            _refuse(start, f"{form >> 2} sizes", f"at most {len(self.data) - self.at}, since so many bytes are left")
        shape = tuple([self.sint() for _ in range(form >> 2)])
        stride = self.many(self.sint, "strides") if form & 2 else contiguous(shape)
        dtype, offset = self.name(), self.affine()
        return Operand(space, shape, stride, dtype, offset, self.sint() if form & 1 else None)

    def affine(self) -> Affine:
        return Affine(self.sint(), self.many(self.term, "terms"))

    def term(self) -> Term:
        return Term(self.name(), self.sint(), self.sint())

    def scalar(self) -> tuple[str, Scalar]:
        name, start = self.name(), self.at
        kind = self.uint()
        if kind not in _SCALARS:
            _refuse(start, f"a scalar of kind {kind}", f"0 to {len(_SCALARS) - 1}")
        return name, _SCALARS[kind](self)

    def real(self) -> float:
        if len(self.data) - self.at < _FLOAT.size:
            _refuse(self.at, "the end", f"a float of {_FLOAT.size} bytes")
        (value,) = _FLOAT.unpack_from(self.data, self.at)
        self.at += _FLOAT.size
        return float(value)


_SCALARS: dict[int, Callable[[_Reader], Scalar]] = {
    _FALSE: lambda reader: False,
    _TRUE: lambda reader: True,
    _WHOLE: _Reader.sint,
    _REAL: _Reader.real,
    _TEXT: _Reader.name,
    _AFFINE: _Reader.affine,
}
