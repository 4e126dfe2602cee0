"""Programs as values: loop-compressed instructions over one operand and address format.

A program is a sequence of *phases* with a barrier between them. A phase runs on one kind of core; its *nests* are loop
nests over blocks, and blocks are independent, so that any core may take any block. Inside a block there are
instructions and loops, never unrolled. Every operand, on chip or in main memory, is

    space  shape : stride (elements)  dtype   at byte address   const + sum over terms of step * (variable mod modulus)

(modulus 0 means no modulus; it is how a ping-pong buffer or an event id alternates). Operands in main memory are
relative to one of the program's *parameters*, which receive their addresses when the program is bound.

A program's listing says all that the program holds: `assembly.parse` makes the same value of it. Names that are no
plain words are quoted as in JSON. Of scalars, `16` is a whole number, `0x10` an affine constant, `[r0+r1]` what depends
on loop variables, `0.5` a float, `True` a truth value, and a word is text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from math import prod

import torch
from attrs import field, frozen

from dsf import errors

__all__ = [
    "KEYWORDS", "MOST_LOOPS", "Affine", "Instruction", "Loop", "Nest", "Operand", "Param", "Phase", "Program", "Scalar",
    "Term", "dtype_name", "known_dtype", "torch_dtype", "unwritable", "whole",
]  # fmt: skip

MOST_LOOPS = 64  # loops inside each other that a listing or a file may have; kernels have five
KEYWORDS = ("program", "phase", "blocks", "loop")
_CONSTANTS = ("True", "False", "nan", "inf")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")

_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2",
        "int64", "int32", "int16", "int8", "uint8", "bool", "complex64", "complex128",
    )
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype called *name*."""
    return _DTYPES[name]


def known_dtype(name: str) -> bool:
    """Whether operands may have the number format *name*."""
    return name in _DTYPES


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a torch dtype, without `torch.`."""
    return _NAMES.get(dtype) or str(dtype).removeprefix("torch.")


def unwritable(what: str) -> errors.IsaError:
    """The refusal to write a program with *what*, which no listing and no file can hold."""
    return errors.IsaError("DSF-I020", f"{what}; a listing cannot say that")


def whole(number: object) -> int:
    """*number*, if it is a whole one of 64 bits, as all in a program are."""
    if not isinstance(number, int) or not -(1 << 63) <= number < 1 << 63:
        shown = hex(number) if isinstance(number, int) else repr(number)
        raise unwritable(f"{shown[:40]} is no whole number of 64 bits")
    return int(number)


def word(name: str, reserved: tuple[str, ...] = ()) -> str:
    """*name* as a listing writes it: as it is where it is a plain word and not *reserved*, else as a JSON string."""
    plain = isinstance(name, str) and _WORD.fullmatch(name)
    if plain and name not in reserved:
        return name
    try:
        name.encode()
    except (AttributeError, UnicodeEncodeError):
        raise unwritable(f"the name {name!r} is no text") from None
    return json.dumps(name)


@frozen(cache_hash=True)
class Term:
    """step * (variable mod modulus); modulus 0: the variable itself."""

    variable: str
    step: int
    modulus: int = 0


@frozen(cache_hash=True)
class Affine:
    """An integer that depends on loop variables: const + sum of terms. Built by arithmetic on loop variables."""

    const: int = 0
    terms: tuple[Term, ...] = ()

    def at(self, env: Mapping[str, int]) -> int:
        """The value where the loop variables are *env*."""
        value = self.const
        for t in self.terms:
            v = env[t.variable]
            value += t.step * (v % t.modulus if t.modulus else v)
        return value

    def extremes(self, counts: Mapping[str, int]) -> tuple[int, int]:
        """The least and the largest value where every variable runs from 0 to its count - 1."""
        low = high = self.const
        for t in self.terms:
            top = counts[t.variable] - 1
            reach = t.step * (min(top, t.modulus - 1) if t.modulus else top)
            low, high = low + min(reach, 0), high + max(reach, 0)
        return low, high

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.const + other, self.terms)
        return Affine(self.const + other.const, self.terms + other.terms)

    __radd__ = __add__

    def __mul__(self, factor: int) -> Affine:
        return Affine(self.const * factor, tuple(Term(t.variable, t.step * factor, t.modulus) for t in self.terms))

    __rmul__ = __mul__

    def __mod__(self, modulus: int) -> Affine:
        """Only for a bare loop variable: what alternates is one loop's counter."""
        (term,) = self.terms
        assert (self.const, term.step, term.modulus) == (0, 1, 0)
        return Affine(0, (Term(term.variable, 1, modulus),))

    def __str__(self) -> str:
        parts = [hex(whole(self.const))] if self.const or not self.terms else []
        for t in self.terms:
            name = f"({word(t.variable)}%{whole(t.modulus)})" if t.modulus else word(t.variable)
            parts.append(f"{hex(whole(t.step))}*{name}" if t.step != 1 else name)
        return "+".join(parts)


def affine(value: Affine | int) -> Affine:
    """*value* as an Affine."""
    return value if isinstance(value, Affine) else Affine(value)


@frozen(cache_hash=True)
class Operand:
    """A strided window of a memory. *stride* in elements, *offset* in bytes; *param* for main memory only."""

    space: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    offset: Affine
    param: int | None = None

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        return _DTYPES[self.dtype].itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the elements themselves, without the gaps between them."""
        return self.numel * self.itemsize

    @property
    def reach(self) -> int:
        """Bytes from the first element to the end of the last one."""
        if 0 in self.shape:
            return 0
        return (sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True)) + 1) * self.itemsize

    def __str__(self) -> str:
        space = word(self.space)
        if "." in space and space[0] != '"':  # `GM.p0` is parameter 0 in GM
            space = json.dumps(space)
        base = space if self.param is None else f"{space}.p{whole(self.param)}"
        return f"{base}[{self.offset}]({_sizes(self.shape)}{self._strides}){word(self.dtype)}"

    @property
    def _strides(self) -> str:
        return "" if self.stride == contiguous(self.shape) else f":{_sizes(self.stride)}"


def _sizes(numbers: tuple[int, ...]) -> str:
    return ",".join(str(whole(n)) for n in numbers)


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a dense row-major tensor of *shape*."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


Scalar = int | float | str | bool | Affine


def _scalar_text(value: Scalar) -> str:
    if isinstance(value, Affine):
        return f"[{value}]" if value.terms else str(value)
    if isinstance(value, str):
        return word(value, _CONSTANTS)
    if isinstance(value, float):
        return float.__repr__(value)
    if isinstance(value, bool):
        return str(value)
    return str(whole(value))


@frozen(cache_hash=True)
class Instruction:
    """One instruction: the name of its row, its operands in the row's order, its scalars by name."""

    name: str
    operands: tuple[Operand, ...] = ()
    scalars: tuple[tuple[str, Scalar], ...] = ()

    def __str__(self) -> str:
        parts = [str(o) for o in self.operands]
        parts += [f"{word(k)}={_scalar_text(v)}" for k, v in self.scalars]
        return f"{word(self.name, KEYWORDS)} {', '.join(parts)}".rstrip()


@frozen(cache_hash=True)
class Loop:
    """*body*, *count* times, with *variable* from 0 to count - 1."""

    variable: str
    count: int
    body: tuple[Instruction | Loop, ...]

    def __str__(self) -> str:
        """Its own line of the listing, without the body."""
        return f"loop {_counter(self.variable, self.count)}"


def _counter(variable: str, count: int) -> str:
    return f"{word(variable)}<{whole(count)}"


@frozen(cache_hash=True)
class Nest:
    """Independent blocks: *body* once for every combination of the variables, on any cores in any order."""

    variables: tuple[tuple[str, int], ...]
    body: tuple[Instruction | Loop, ...]

    @property
    def blocks(self) -> int:
        return prod(count for _, count in self.variables)

    def coordinates(self) -> Iterator[dict[str, int]]:
        """Every block's variables, the last one fastest."""
        env = {name: 0 for name, _ in self.variables}
        for index in range(self.blocks):
            for name, count in reversed(self.variables):
                index, env[name] = divmod(index, count)
            yield dict(env)

    def __str__(self) -> str:
        """Its own line of the listing, without the body."""
        return " ".join(["blocks", *(_counter(name, count) for name, count in self.variables)])


@frozen(cache_hash=True)
class Phase:
    """Nests that may run side by side on the cores of one kind. A barrier of all cores follows."""

    core: str
    nests: tuple[Nest, ...]

    def __str__(self) -> str:
        """Its own line of the listing, without the nests."""
        return f"phase {word(self.core)}"


@frozen(cache_hash=True)
class Param:
    """A buffer that a program is bound to. *role*: in, out, inout or workspace; *nbytes* that it touches."""

    name: str
    role: str
    nbytes: int

    def __str__(self) -> str:
        return f"{word(self.role)} {word(self.name)}:{whole(self.nbytes)}"


@frozen(cache_hash=True)
class Program:
    """A kernel's instructions, with every shape fixed and every main-memory address open."""

    name: str
    params: tuple[Param, ...]
    phases: tuple[Phase, ...] = field(factory=tuple)

    def lines(self) -> Iterator[tuple[int, str]]:
        """The listing: (depth, text) per line, in the order in which `locate` counts them."""
        yield 0, str(self)
        for phase in self.phases:
            yield 1, str(phase)
            for nest in phase.nests:
                yield 2, str(nest)
                yield from _body_lines(nest.body, 3)

    def __str__(self) -> str:
        """The first line of the listing."""
        return f"program {word(self.name)}({', '.join(map(str, self.params))})"

    def listing(self) -> str:
        """The program as text, with line numbers."""
        return "\n".join(f"{n:4d} {'  ' * depth}{text}" for n, (depth, text) in enumerate(self.lines(), 1))

    def instructions(self) -> Iterator[tuple[Instruction, int]]:
        """Every instruction of the listing with the number of times that it runs."""
        for phase in self.phases:
            for nest in phase.nests:
                yield from _counted(nest.body, nest.blocks)


def _body_lines(body: tuple[Instruction | Loop, ...], depth: int) -> Iterator[tuple[int, str]]:
    for item in body:
        yield depth, str(item)
        if isinstance(item, Loop):
            if depth - 3 == MOST_LOOPS:
                raise unwritable(f"more than {MOST_LOOPS} loops inside each other")
            yield from _body_lines(item.body, depth + 1)


def _counted(body: tuple[Instruction | Loop, ...], times: int) -> Iterator[tuple[Instruction, int]]:
    for item in body:
        if isinstance(item, Loop):
            yield from _counted(item.body, times * item.count)
        else:
            yield item, times
