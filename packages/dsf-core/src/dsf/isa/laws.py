"""Cycle laws that several instructions share. They see shapes and the chip, never values."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, prod

from dsf import errors
from dsf.hdl import Chip, Engine
from dsf.isa.program import Instruction, Operand
from dsf.isa.table import Cycles, Row

__all__ = [
    "elementwise", "filling", "fixed", "fractals", "fractals_of", "indexed", "over", "padded_macs", "pieces", "rate",
    "reduction", "sorting", "stream",
]  # fmt: skip


def rate(engine: Engine, opclass: str, dtype: str) -> Fraction:
    """Elements (or MACs) a cycle of *engine* for *opclass* on *dtype*: the HDL's row, else its `default` row."""
    for name in (opclass, "default"):
        rates = engine.rates.get(name)
        if rates is None:
            continue
        for key in (dtype, "default"):
            if key in rates:
                return rates[key]
    raise errors.IsaError("DSF-I003", f"engine {engine.name}: the HDL states no rate of '{opclass}' for {dtype}")


def stream(chip: Chip, row: Row, ins: Instruction) -> int:
    """Start-up plus bytes over the path's width. Each row that lies apart on either side moves whole bursts, of the
    side that is aligned more finely; a copy that converts moves the narrower format."""
    dst, src = ins.operands[0], ins.operands[1]
    path = chip.paths[src.space, dst.space]
    rows, columns = _most_pieces((dst, src))
    burst = min(chip.memories[dst.space].alignment, chip.memories[src.space].alignment)
    nbytes = rows * ceil(columns * min(dst.itemsize, src.itemsize) / burst) * burst
    return path.startup_cycles + ceil(nbytes / path.bytes_per_cycle)


def elementwise(chip: Chip, row: Row, ins: Instruction) -> int:
    """Start-up plus elements over the engine's rate for the row's class, a row that lies apart at a time."""
    return _vector(chip, row, _most_pieces(ins.operands), _governing_dtype(ins.operands))


def reduction(chip: Chip, row: Row, ins: Instruction) -> int:
    """As elementwise, over the reduced (source) operand."""
    return _vector(chip, row, pieces(ins.operands[-1]), ins.operands[-1].dtype)


def over(place: int) -> Cycles:
    """As elementwise, over the operand at *place* alone."""

    def cycles(chip: Chip, row: Row, ins: Instruction) -> int:
        return _vector(chip, row, pieces(ins.operands[place]), ins.operands[place].dtype)

    cycles.__doc__ = (
        f"Start-up plus elements over the engine's rate for the row's class, over operand {place + 1} alone."
    )
    return cycles


def sorting(chip: Chip, row: Row, ins: Instruction) -> int:
    """Start-up plus the comparisons of a merge sort, n log2 n for each row of n elements, over the engine's rate."""
    source = ins.operands[-1]
    columns = source.shape[-1] if source.shape else 1
    steps = columns * max(1, (columns - 1).bit_length())
    return _vector(chip, row, (source.numel // max(columns, 1), steps), source.dtype)


def filling(source: str) -> Cycles:
    """As a copy from *source*: start-up plus the filled bytes over the width of the path that ends there."""

    def cycles(chip: Chip, row: Row, ins: Instruction) -> int:
        path = chip.paths[source, ins.operands[0].space]
        return path.startup_cycles + ceil(ins.operands[0].nbytes / path.bytes_per_cycle)

    cycles.__doc__ = f"Start-up plus the filled bytes over the width of the path that ends there, from {source}."
    return cycles


def indexed(chip: Chip, row: Row, ins: Instruction) -> int:
    """One start-up per gathered row, since each has an address of its own, plus the bytes over the path."""
    dst, src = ins.operands[0], ins.operands[1]
    path = chip.paths[src.space, dst.space]
    moved, index = (dst, ins.operands[2]) if src.space == chip.main_memory.name else (src, ins.operands[2])
    return max(1, index.numel) * max(1, path.startup_cycles) + ceil(moved.nbytes / path.bytes_per_cycle)


def fractals(chip: Chip, row: Row, ins: Instruction) -> int:
    """Start-up plus one matrix tile per cycle: padded MACs over the engine's MAC rate."""
    return _fractals(chip, row, ins, ins.operands[1].dtype)


def fractals_of(form: str) -> Cycles:
    """As fractals, at the rate of number format *form*, which torch stores in a wider one; none: the operands' own."""
    if not form:
        return fractals

    def cycles(chip: Chip, row: Row, ins: Instruction) -> int:
        return _fractals(chip, row, ins, form)

    cycles.__doc__ = f"Start-up plus one matrix tile per cycle: padded MACs over the engine's rate of {form}."
    return cycles


def _fractals(chip: Chip, row: Row, ins: Instruction, form: str) -> int:
    engine = chip.engines[row.engine]
    return engine.startup_cycles + ceil(padded_macs(chip, row, ins, form) / rate(engine, "mac", form))


def padded_macs(chip: Chip, row: Row, ins: Instruction, form: str = "") -> int:
    """Multiply-accumulates of c (m, n) += a (m, k) @ b (k, n) with every dimension padded to the engine's tile."""
    c, a = ins.operands[0], ins.operands[1]
    tiles, name = chip.engines[row.engine].tiles, form or a.dtype
    tm, tk, tn = tiles[name] if name in tiles else tiles["default"]
    (m, n), k = c.shape, a.shape[1]
    return ceil(m / tm) * tm * ceil(k / tk) * tk * ceil(n / tn) * tn


def fixed(cycles: int) -> Cycles:
    """The same for any operands."""
    return lambda chip, row, ins: cycles


def _vector(chip: Chip, row: Row, shape: tuple[int, int], dtype: str) -> int:
    engine = chip.engines[row.engine]
    rows, columns = shape
    per_cycle = rate(engine, row.opclass, dtype)
    return engine.startup_cycles + rows * ceil(columns / per_cycle)


def _most_pieces(operands: tuple[Operand, ...]) -> tuple[int, int]:
    """(rows, columns) of the operand that lies in the most pieces. What is broadcast is fetched once and kept."""
    whole = [o for o in operands if all(n == 1 or s for n, s in zip(o.shape, o.stride, strict=True))]
    return max(pieces(o) for o in whole or operands[:1])


def pieces(operand: Operand) -> tuple[int, int]:
    """(rows, columns): the elements that lie densely, in whatever order the dimensions have, are one row."""
    columns = 1
    for n, s in sorted(zip(operand.shape, operand.stride, strict=True), key=lambda dim: dim[1] or 1 << 62):
        if n != 1 and s != columns:
            break
        columns *= n
    return prod(operand.shape) // max(columns, 1), columns


def _governing_dtype(operands: tuple[Operand, ...]) -> str:
    """The widest number format among the operands: it sets how many lanes there are."""
    return max(operands, key=lambda o: o.itemsize).dtype
