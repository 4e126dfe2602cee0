"""M under strict layouts: Mmad on operands in the fractal orders that L0A, L0B and L0C have. [asc-devkit: Mmad]

It is the same instruction; its tagged form leaves the order of a tile to the memory. m, k and n are MmadParams', and
what the fractals hold beyond them takes no part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil

import torch

from dsf.hdl import Chip
from dsf.isa import Isa, accumulate, read
from dsf.isa.laws import rate
from dsf.isa.products import Product
from dsf.isa.program import Instruction
from dsf.isa.rules import holds_numbers, limit, one_dtype, whole
from dsf.isa.table import Row

__all__ = ["declare"]

MMAD = "asc-devkit guide, Mmad: cycles = dt + ceil16(m) * ceil16(n) * ceil_k0(k) / (cube_m * cube_n * cube_k)"
FLOATS = ("float16", "bfloat16", "float32")
FRACTAL = 16
SIZES = ("m", "k", "n")
PRODUCT = Product()


def declare(isa: Isa) -> None:
    """Add the fractal form of Mmad, alone and on a bias from BT."""
    roles = [
        ("c", accumulate("L0C", dtypes=("float32",))),
        ("a", read("L0A", dtypes=FLOATS)),
        ("b", read("L0B", dtypes=FLOATS)),
    ]
    text = "c NZ (n / 16, m, 16) = a ZZ (m / 16, k / C0, 16, C0) @ b nZ (k / C0, n / 16, 16, C0) (+ c where accumulate"
    rules = (holds_numbers(*SIZES), fractal_shapes, one_dtype(1, 2))
    isa.add(
        Row("Mmad.fractal", "M", cycles, tuple(roles), _semantics, f"{text})", _in_place(PRODUCT.fast), rules,
            "matmul.fractal", None, macs, MMAD, "mac", _in_place(PRODUCT.lanes))
    )  # fmt: skip
    roles.append(("bias", read("BT", dtypes=("float32",))))
    isa.add(
        Row("Mmad.fractal.bias", "M", cycles, tuple(roles), _on_bias, f"{text}, else + bias)",
            _in_place(PRODUCT.fast_on_bias), rules, "matmul.fractal.bias", None, macs, MMAD, "mac",
            _in_place(PRODUCT.lanes_on_bias))
    )  # fmt: skip


def _rows(a: torch.Tensor, m: int, k: int) -> torch.Tensor:
    """ZZ (..., m / 16, k / C0, 16, C0) as (..., m, k)."""
    if a.dim() > 4 and a.stride(0) == 0:  # the same in every lane
        return _rows(a[0], m, k).expand(a.shape[0], m, k)
    if m < FRACTAL:
        return _dense(a[..., 0, :, :m, :].transpose(-3, -2)).flatten(-2)[..., :k]
    return _dense(a.transpose(-3, -2)).flatten(-2).flatten(-3, -2)[..., :m, :k]


def _columns(b: torch.Tensor, k: int, n: int) -> torch.Tensor:
    """nZ (..., k / C0, n / 16, 16, C0) as (..., k, n)."""
    if b.dim() > 4 and b.stride(0) == 0:
        return _columns(b[0], k, n).expand(b.shape[0], k, n)
    return _dense(b.movedim(-4, -2)).flatten(-2).flatten(-3, -2)[..., :n, :k].transpose(-1, -2)


def _dense(view: torch.Tensor) -> torch.Tensor:
    """*view* in memory of its own and order, 16-bit numbers as float32, in one go."""
    dtype = view.dtype if view.itemsize > 2 else torch.float32
    return torch.empty(view.shape, dtype=dtype).copy_(view)


def _matrix(c: torch.Tensor) -> torch.Tensor:
    """NZ (..., n / 16, m, 16) as (..., m, n / 16, 16), where it lies."""
    return c.transpose(-3, -2)


def _semantics(
    c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, accumulate: int, m: int, k: int, n: int
) -> torch.Tensor:
    matrix = _matrix(c).flatten(-2)[..., :m, :n]
    return _fractals(PRODUCT.semantics(matrix, _rows(a, m, k), _columns(b, k, n), accumulate), c)


def _on_bias(
    c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, accumulate: int, m: int, k: int, n: int
) -> torch.Tensor:
    matrix = _matrix(c).flatten(-2)[..., :m, :n]
    return _fractals(PRODUCT.on_bias(matrix, _rows(a, m, k), _columns(b, k, n), bias, accumulate), c)


def _fractals(matrix: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """(..., m, n) as NZ, zeros in the padding."""
    m, n = like.shape[-2], like.shape[-3] * FRACTAL
    padded = torch.nn.functional.pad(matrix, (0, n - matrix.shape[-1], 0, m - matrix.shape[-2]))
    return padded.unflatten(-1, (-1, FRACTAL)).transpose(-3, -2)


def _in_place(form: Callable[..., None]) -> Callable[..., None]:
    """*form* of a product of matrices (one core's or its lanes', alone or on a bias), on fractals."""

    def run(
        c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *bias: torch.Tensor, accumulate: int, m: int, k: int, n: int
    ) -> None:
        with _accumulator(c, accumulate, m, n) as matrix:
            form(matrix, _rows(a, m, k), _columns(b, k, n), *bias, accumulate=accumulate)

    return run


@contextmanager
def _accumulator(c: torch.Tensor, accumulate: int, m: int, n: int) -> Iterator[torch.Tensor]:
    """The accumulator as a matrix (..., m, n), which goes back into its fractals, with zeros in the padding. Lanes lie
    apart, as they do in L0C: torch sums a batch that lies densely in another order."""
    wide = c.shape[-3] * FRACTAL
    room = torch.empty((*c.shape[:-3], m * wide + 1), dtype=c.dtype)[..., :-1].unflatten(-1, (m, wide))
    fractals, own = room.unflatten(-1, (-1, FRACTAL)), _matrix(c)[..., :m, :, :]
    if accumulate:
        fractals.copy_(own)
    if wide != n:
        room[..., n:].zero_()
    if c.shape[-2] != m:
        c[..., m:, :].zero_()
    yield room[..., :n]
    own.copy_(fractals)


def _sizes(ins: Instruction) -> dict[str, int]:
    return {name: whole(ins, name) for name in SIZES}


def macs(chip: Chip, ins: Instruction) -> int:
    """Multiply-accumulates with every dimension padded to the engine's tile."""
    tiles, size = chip.engines["M"].tiles[ins.operands[1].dtype], _sizes(ins)
    tm, tk, tn = tiles
    return ceil(size["m"] / tm) * tm * ceil(size["k"] / tk) * tk * ceil(size["n"] / tn) * tn


def cycles(chip: Chip, row: Row, ins: Instruction) -> int:
    """Start-up plus padded multiply-accumulates over the engine's rate."""
    engine = chip.engines[row.engine]
    return engine.startup_cycles + ceil(macs(chip, ins) / rate(engine, "mac", ins.operands[1].dtype))


def fractal_shapes(chip: Chip, ins: Instruction) -> str | None:
    """The fractals of c, a and b are those that m, k and n need."""
    c, a, b = (operand.shape for operand in ins.operands[:3])
    size = _sizes(ins)
    if small := [f"{name}={value}" for name, value in size.items() if value < 1]:
        return f"{' and '.join(small)}; expected 1 at least"
    c0 = limit(chip, "vector_block_bytes") // ins.operands[1].itemsize
    m1, k1, n1 = ceil(size["m"] / FRACTAL), ceil(size["k"] / c0), ceil(size["n"] / FRACTAL)
    wanted = (n1, m1 * FRACTAL, FRACTAL), (m1, k1, FRACTAL, c0), (k1, n1, FRACTAL, c0)
    if (c, a, b) != wanted:
        return f"m={size['m']}, k={size['k']}, n={size['n']} are {wanted} in fractals, not {(c, a, b)}"
    if any(o.shape != (size["n"],) for o in ins.operands[3:]):
        return f"a bias for n={size['n']} is ({size['n']},), not {ins.operands[3].shape}"
    return None
