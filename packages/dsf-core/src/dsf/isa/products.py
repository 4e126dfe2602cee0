"""Matrix products: what a matrix engine multiplies, in which numbers, and what it adds up.

A product adds one slab at a time in the program's order. In `exact` a slab is summed in float64 and rounded once to the
accumulator; in `fast` torch sums it in the accumulator's own format. Whole numbers are exact in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from attrs import field, frozen

from dsf.hdl import Chip
from dsf.isa import laws
from dsf.isa.program import Instruction
from dsf.isa.rules import one_dtype, product_shapes
from dsf.isa.table import Isa, Row, Rule, accumulate, read

__all__ = ["INT4", "INT8", "Product", "WholeProduct", "add_matrix", "summed_otherwise"]


def _as_it_is(x: torch.Tensor) -> torch.Tensor:
    return x


@frozen
class Product:
    """c = a @ b, on what was in c where *accumulate*, else on a bias where there is one. *enters* is what becomes of an
    operand's number before it is multiplied."""

    enters: Callable[[torch.Tensor], torch.Tensor] = _as_it_is

    def _operands(self, c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Operands enter the accumulator's precision losslessly."""
        if self.enters is not _as_it_is:
            a, b = self.enters(a), self.enters(b)
        return (a, b) if a.dtype == b.dtype == c.dtype else (a.to(c.dtype), b.to(c.dtype))

    def semantics(self, c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, accumulate: int) -> torch.Tensor:
        a, b = self._operands(c, a, b)
        return torch.addmm(c, a, b) if accumulate else torch.mm(a, b)

    def on_bias(
        self, c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, accumulate: int
    ) -> torch.Tensor:
        a, b = self._operands(c, a, b)
        return torch.addmm(c if accumulate else bias, a, b)

    def fast(self, c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, accumulate: int) -> None:
        if b.shape[-1] == 1:  # torch sums into one strided column in another order than into a dense one
            c.copy_(self.semantics(c, a, b, accumulate))
            return
        a, b = self._operands(c, a, b)
        if accumulate:
            c.addmm_(a, b)
        else:
            torch.mm(a, b, out=c)

    def fast_on_bias(
        self, c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, accumulate: int
    ) -> None:
        if not accumulate:
            c.copy_(bias)
        self.fast(c, a, b, 1)

    def lanes(self, c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, accumulate: int) -> None:
        if summed_otherwise(a, b):
            for lane in zip(c, a, b, strict=True):
                self.fast(*lane, accumulate)
            return
        a, b = self._operands(c, a, b)
        if accumulate:
            c.baddbmm_(a, b)
        else:
            torch.bmm(a, b, out=c)

    def lanes_on_bias(
        self, c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, accumulate: int
    ) -> None:
        if not accumulate:
            c.copy_(bias.unsqueeze(1))
        self.lanes(c, a, b, 1)


@frozen
class WholeProduct(Product):
    """A product of whole numbers. Sums over *longest* places of k are 2^24 at most, so that float32 holds them exactly
    in any order; the accumulator adds them as int32 and wraps like one."""

    longest: int = field(kw_only=True)

    def _total(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = self.enters(a).float(), self.enters(b).float()
        total = torch.zeros((*a.shape[:-1], b.shape[-1]), dtype=torch.int32)
        for k in range(0, a.shape[-1], self.longest):
            total += torch.matmul(a[..., k : k + self.longest], b[..., k : k + self.longest, :]).to(torch.int32)
        return total

    def fast(self, c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, accumulate: int) -> None:
        total = self._total(a, b)
        c.copy_(total.add_(c) if accumulate else total)

    lanes = fast


INT8 = 1024
"""Products of int8 are 2^14 at most: 1024 of them make 2^24."""

INT4 = 1 << 18
"""Products of int4 are 2^6 at most."""


def add_matrix(
    isa: Isa, engine: str, name: str, acc: str, a: str, b: str, dtypes: Iterable[str], accumulator: str = "float32", *,
    product: Product | None = None, form: str = "", bias: str = "", rules: Iterable[Rule] = (), implements: str = "",
    source: str = "",
) -> None:  # fmt: skip
    """c (m, n) = a (m, k) @ b (k, n), added to c where scalar *accumulate* is not 0, else to a bias (n) in the memory
    *bias*, if one is named. *form* is the number format that prices it, where that is not the operands' dtype."""
    taken, kind = tuple(dtypes), product or _usual(accumulator)
    roles = [("c", accumulate(acc, dtypes=(accumulator,))), ("a", read(a, dtypes=taken)), ("b", read(b, dtypes=taken))]
    forms: tuple[Any, Any, Any] = kind.semantics, kind.fast, kind.lanes
    if bias:
        roles.append(("bias", read(bias, dtypes=(accumulator,))))
        forms = kind.on_bias, kind.fast_on_bias, kind.lanes_on_bias

    def macs(chip: Any, ins: Instruction) -> int:
        return laws.padded_macs(chip, isa.rows[name], ins, form)

    numbers = f" in {form}" if form else ""
    text = f"c = a @ b{numbers} (+ c where accumulate{', else + bias' if bias else ''})"
    serves = implements or ("matmul.bias" if bias else "matmul")
    isa.add(
        Row(name, engine, laws.fractals_of(form), tuple(roles), forms[0], text, forms[1],
            (product_shapes, one_dtype(1, 2), _as_described(form), *rules), serves, None, macs, source, "mac",
            forms[2])
    )  # fmt: skip


def _as_described(form: str) -> Rule:
    """The HDL knows products of *form* (none: of the operands' dtype) and has them added up in the accumulator's dtype.

    A dtype that the chip computes elsewhere is who chooses kernels' business; a form has no tensors to choose by.
    """

    def rule(chip: Chip, ins: Instruction) -> str | None:
        acc, name = ins.operands[0].dtype, form or ins.operands[1].dtype
        stated = chip.numerics.rule(name)
        if form and stated.matrix != "native":
            return f"{chip.name} has no products of {name} ({stated.matrix})"
        if acc != stated.accumulate:
            return f"products of {name} added up in {acc}; {chip.name} adds them up in {stated.accumulate}"
        return None

    rule.__doc__ = f"The chip's description knows products of {form or 'this dtype'} and adds them up in c's dtype."
    return rule


def _usual(accumulator: str) -> Product:
    return WholeProduct(longest=INT8) if accumulator == "int32" else Product()


def summed_otherwise(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether torch's batched product of these matrices adds in another order than one product after the other: below
    400 multiply-adds it has a loop of its own [ATen LinearAlgebra.cpp, bmm_out_or_baddbmm_], and a single column is a
    product with a vector."""
    return a.shape[-2] * b.shape[-2] * b.shape[-1] < 400 or b.shape[-1] == 1
