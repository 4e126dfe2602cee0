"""The fallback compiler: any pointwise expression, any copy, on any chip, from its instruction table and HDL.

An expression is compiled node by node to primitives in the engine and precision that the HDL's numerics demand: native
on the vector engine, cast to float32 and back where the engine lacks the format, an element at a time on the scalar
engine for what only that can do. Every node is rounded where the expression says so, never elsewhere.
"""

from __future__ import annotations

from math import isnan, pi, sqrt
from typing import Any

import torch
from attrs import evolve

from dsf import errors
from dsf.intent.expression import Expr
from dsf.intent.ir import Intent
from dsf.isa import Program
from dsf.isa.program import dtype_name
from dsf.kernels.target import Target
from dsf.kernels.vector import Lane, Stream, Tile, vector_program

__all__ = ["Compiler", "as_bits", "compile_copy", "compile_elementwise", "compile_fill", "compile_iota", "streams_of"]

FLOATS = ("float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2")


def streams_of(intent: Intent) -> list[Stream]:
    """The intent's inputs and outputs as streams, numbered in the order of a program's parameters."""
    regions = [(r, "in") for r in intent.inputs] + [(r, "out") for r in intent.outputs]
    return [Stream(n, role, r.window) for n, (r, role) in enumerate(regions)]


def compile_elementwise(target: Target, intent: Intent) -> Program:
    """The program of an elementwise intent."""
    expr = intent.attr("expr")

    def compute(lane: Lane, inputs: tuple[Tile, ...]) -> tuple[Tile, ...]:
        return (Compiler(target, lane, inputs).value(expr),)

    return vector_program(target, "elementwise", streams_of(intent), compute)


def compile_copy(target: Target, intent: Intent) -> Program:
    """The program of a strided copy: main memory to on-chip memory to main memory, nothing computed."""
    return vector_program(target, "copy", [as_bits(s) for s in streams_of(intent)], lambda lane, inputs: inputs)


def as_bits(stream: Stream) -> Stream:
    """The stream as whole numbers of its width where its format is one that chips only store: copies do not mind."""
    bits = _STORED_AS.get(stream.window.dtype)
    return stream if bits is None else evolve(stream, window=evolve(stream.window, dtype=bits))


_STORED_AS = {
    torch.float64: torch.int64, torch.complex64: torch.int64,
    torch.float8_e4m3fn: torch.uint8, torch.float8_e5m2: torch.uint8,
}  # fmt: skip


def compile_fill(target: Target, intent: Intent) -> Program:
    """The program that writes one value everywhere."""
    value, dtype = intent.attr("value"), dtype_name(intent.outputs[0].dtype)

    def compute(lane: Lane, inputs: tuple[Tile, ...]) -> tuple[Tile, ...]:
        return (lane.constant(value, dtype),)

    return vector_program(target, "fill", streams_of(intent), compute)


def compile_iota(target: Target, intent: Intent) -> Program:
    """The program of start + i * step along one dimension."""
    start, step, dtype = intent.attr("start"), intent.attr("step"), dtype_name(intent.outputs[0].dtype)
    if start != int(start) or step != int(step):
        raise errors.KernelError("DSF-K007", f"iota from {start} by {step}: only whole numbers are stepped on chip")
    start, step = int(start), int(step)
    ends = start, start + step * intent.outputs[0].numel
    working = "int64" if dtype == "int64" or max(map(abs, ends)) >= 1 << 31 else "int32"

    def compute(lane: Lane, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        first = lane.column * step + start
        return (lane.cast(lane.new("iota", 1, lane.width, working, start=first, step=step), dtype),)

    return vector_program(target, "iota", streams_of(intent), compute)


class Compiler:
    """Compiles the nodes of one expression for one tile. A node that occurs twice is computed once."""

    def __init__(self, target: Target, lane: Lane, inputs: tuple[Tile, ...]) -> None:
        self.target, self.lane, self.inputs = target, lane, inputs
        self._known: dict[Expr, Tile] = {}

    def value(self, expr: Expr) -> Tile:
        """The tile that holds *expr*."""
        known = self._known.get(expr)
        if known is None:
            known = self._known[expr] = self._node(expr)
        return known

    def _node(self, expr: Expr) -> Tile:
        name = expr[0]
        if name == "in":
            return self.inputs[expr[1]]
        dtype = dtype_name(expr[1])
        if name == "const":
            return self.lane.constant(expr[2], dtype)
        if name in _UNROUNDED and expr[2][0] != "const" and _is_rounded(expr[3]):
            left, number = self.lane.cast(self.value(expr[2]), "float32"), self.lane.constant(expr[3][2], "float32")
            return self.apply(name, dtype, left, number)
        operands = [self.value(e) for e in expr[2:]]
        if name == "cast":
            return self.cast(operands[0], dtype)
        return self.apply(name, dtype, *operands)

    def cast(self, tile: Tile, dtype: str) -> Tile:
        """A number to a truth value is a comparison with zero; everything else is a cast."""
        if dtype == "bool" and tile.dtype != "bool":
            return self.apply("ne", "bool", tile, self.lane.constant(0, tile.dtype))
        return self.lane.cast(tile, dtype)

    def apply(self, name: str, dtype: str, *operands: Tile) -> Tile:
        """*name* on *operands*, rounded once to *dtype*."""
        working = self.working(name, operands[-1].dtype)
        if working != operands[-1].dtype:
            chooses = name == "where"
            operands = (*operands[:chooses], *(self.lane.cast(t, working) for t in operands[chooses:]))
        composite = _COMPOSITES.get(name)
        if composite is not None:
            return self.lane.cast(composite(self, working, *operands), dtype)
        rows, columns = max(t.rows for t in operands), max(t.columns for t in operands)
        truth = name in ("eq", "ne", "lt", "le", "gt", "ge")
        result = self.lane.new(name, rows, columns, "bool" if truth else working, *operands)
        return self.lane.cast(result, dtype)

    def working(self, name: str, dtype: str) -> str:
        """The format in which this chip computes *name* on operands of *dtype*: its own where the vector engine has the
        instruction, else what the HDL casts it to where that changes no result, else its own on the scalar engine, else
        float32."""
        how = self.target.chip.numerics.rule(dtype).vector
        if name in _COMPOSITES:
            return "float32"
        if how in ("error", "host"):
            raise errors.KernelError("DSF-K004", f"{name} on {dtype}: the HDL computes {dtype} on no engine ({how})")
        if self.target.serves(name, dtype, "vector"):
            return dtype
        wider = how.removeprefix("cast:")
        exact = dtype in FLOATS or name in _EXACT_IN_HALF
        if wider != how and exact and self.target.serves(name, wider, "vector"):
            return wider
        if self.target.serves(name, dtype):
            return dtype
        if dtype in FLOATS and self.target.serves(name, "float32"):
            return "float32"
        raise errors.KernelError("DSF-K001", f"{self.target.isa.name}: no instruction serves '{name}' on {dtype}")


_EXACT_IN_HALF = frozenset(
    ("add", "sub", "max", "min", "neg", "abs", "sign", "eq", "ne", "lt", "le", "gt", "ge", "where")
)
"""What float16 does to 8-bit whole numbers without a rounding: its 11 bits hold their sums, not their products."""

_UNROUNDED = ("mul", "div", "floor_div", "trunc_div")
"""These compute with a Python number as it is, in float32, where the others of torch round it to 16 bits first."""


def _is_rounded(expr: Expr) -> bool:
    """Whether *expr* is a number that its own 16-bit format does not hold."""
    if expr[0] != "const" or expr[1] not in (torch.float16, torch.bfloat16):
        return False
    return not isnan(expr[2]) and torch.tensor(expr[2], dtype=expr[1]).item() != expr[2]


def _silu(c: Compiler, dtype: str, x: Tile) -> Tile:
    return c.apply("mul", dtype, x, c.apply("sigmoid", dtype, x))


def _gelu(c: Compiler, dtype: str, x: Tile) -> Tile:
    """x * (1 + erf(x / sqrt 2)) / 2"""
    inner = c.apply("erf", dtype, c.apply("mul", dtype, x, c.lane.constant(1 / sqrt(2), dtype)))
    outer = c.apply("add", dtype, inner, c.lane.constant(1.0, dtype))
    return c.apply("mul", dtype, c.apply("mul", dtype, x, c.lane.constant(0.5, dtype)), outer)


def _gelu_tanh(c: Compiler, dtype: str, x: Tile) -> Tile:
    """x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2"""
    cube = c.apply("mul", dtype, c.apply("mul", dtype, x, x), x)
    inner = c.apply("add", dtype, x, c.apply("mul", dtype, cube, c.lane.constant(0.044715, dtype)))
    bent = c.apply("tanh", dtype, c.apply("mul", dtype, inner, c.lane.constant(sqrt(2 / pi), dtype)))
    outer = c.apply("add", dtype, bent, c.lane.constant(1.0, dtype))
    return c.apply("mul", dtype, c.apply("mul", dtype, x, c.lane.constant(0.5, dtype)), outer)


_COMPOSITES: dict[str, Any] = {"silu": _silu, "gelu": _gelu, "gelu_tanh": _gelu_tanh}
