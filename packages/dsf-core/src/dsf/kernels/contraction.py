"""Products of matrices as kernels see them: where the operands lie, what is a row, what is a batch; limits, references.

A chip's library brings one function that emits a phase for a `Product`; linear layers, batched products and attention
are then the same on every chip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from attrs import evolve, frozen

from dsf.hdl import Chip
from dsf.intent.ir import Intent
from dsf.intent.tape import Window
from dsf.isa import Affine, Builder, Operand, Program
from dsf.isa.program import dtype_name, torch_dtype
from dsf.kernels.kernel import AS_IT_IS, Limit, Rounding, Variant
from dsf.kernels.target import Target
from dsf.kernels.vector import reach, row_gap

__all__ = [
    "LIMITS", "LINEAR_LIMITS", "ROUNDING", "Batch", "EmitProduct", "Product", "Side", "Tile", "batch_product",
    "batch_reference", "emit_batch", "emit_linear", "linear_product", "linear_reference", "rows_copied_together",
    "tiles",
]  # fmt: skip


@frozen
class Side:
    """A matrix operand in main memory. *row* and *column* are strides in elements of the (M, K) or (K, N) matrix (of
    the result: (M, N)), one of which is 1."""

    param: int
    row: int
    column: int
    dtype: str


@frozen
class Batch:
    """One batch dimension: how often, and the step of a, b and the result in elements."""

    count: int
    a: int
    b: int
    out: int


@frozen
class Pick:
    """Which of *count* matrices, *step* elements from each other, is b at each place of the first batch dimension: a
    parameter of int32 says it, and instruction *load* reads it there."""

    param: int
    count: int
    step: int
    load: str


@frozen
class Product:
    """out (m, n) = a (m, k) @ b (k, n) (+ bias (n)), for every combination of the batch dimensions."""

    m: int
    n: int
    k: int
    a: Side
    b: Side
    out: Side
    batch: tuple[Batch, ...] = ()
    bias: Side | None = None
    pick: Pick | None = None

    def __str__(self) -> str:
        return f"({self.m} x {self.k}) by ({self.k} x {self.n}) in {self.a.dtype}"

    def typical(self) -> Product:
        """The product as the search for a tiling sees it. Where there is a batch (so that no operand is a weight) long
        n and k are rounded up to whole buckets and operands lie densely, each in its own order: a growing KV cache is
        then the same product until its bucket is full."""
        if not self.batch:
            return self
        m, n, k = self.m, _bucket(self.n), _bucket(self.k)
        return evolve(
            self, n=n, k=k, a=_packed(self.a, m, k), b=_packed(self.b, k, n), out=_packed(self.out, m, n),
            batch=_steps(self.batch, m * k, k * n, m * n),
        )  # fmt: skip

    def extents(self) -> dict[int, int]:
        """Bytes from each operand's first element to the end of its last, by parameter."""
        steps = {"a": [b.a for b in self.batch], "b": [b.b for b in self.batch], "out": [b.out for b in self.batch]}
        sizes = {"a": (self.m, self.k), "b": (self.k, self.n), "out": (self.m, self.n)}
        found: dict[int, int] = {}
        for name, side in (("a", self.a), ("b", self.b), ("out", self.out)):
            rows, columns = sizes[name]
            last = (rows - 1) * side.row + (columns - 1) * side.column
            last += sum((batch.count - 1) * step for batch, step in zip(self.batch, steps[name], strict=True))
            found[side.param] = (last + 1) * torch_dtype(side.dtype).itemsize
        if self.bias is not None:
            found[self.bias.param] = ((self.n - 1) * self.bias.column + 1) * torch_dtype(self.bias.dtype).itemsize
        if self.pick is not None:
            found[self.b.param] += (self.pick.count - 1) * self.pick.step * torch_dtype(self.b.dtype).itemsize
            found[self.pick.param] = self.batch[0].count * 4
        return found


@frozen
class Tile:
    """One block of a product: the result tile of (m, n) at (row, column), at one place of the batch."""

    b: Builder
    product: Product
    batch: tuple[Affine, ...]
    row: Affine
    column: Affine
    m: int
    n: int

    def a(self, k: Affine, depth: int) -> Operand:
        """The tile's rows of a in main memory, columns *k* to *k* + *depth*."""
        return self._window(self.product.a, self.row, k, (self.m, depth), [batch.a for batch in self.product.batch])

    def w(self, k: Affine, depth: int) -> Operand:
        """The tile's columns of b in main memory, rows *k* to *k* + *depth*."""
        return self._window(self.product.b, k, self.column, (depth, self.n), [batch.b for batch in self.product.batch])

    def load_w(self, load: str, place: Operand, k: Affine, depth: int) -> None:
        """Bring `w` to *place* by instruction *load*, or by the one that finds out which matrix it is of."""
        source, pick = self.w(k, depth), self.product.pick
        if pick is None:
            self.b(load, place, source)
            return
        table = evolve(source, shape=(pick.count, *source.shape), stride=(pick.step, *source.stride))
        self.b(pick.load, place, table, self.b.gm(pick.param, self.batch[0] * 4, (1,), "int32"))

    def out(self) -> Operand:
        """The tile's place in the result in main memory."""
        steps = [batch.out for batch in self.product.batch]
        return self._window(self.product.out, self.row, self.column, (self.m, self.n), steps)

    def _window(self, side: Side, row: Affine, column: Affine, shape: tuple[int, int], steps: list[int]) -> Operand:
        item = torch_dtype(side.dtype).itemsize
        offset = row * (side.row * item) + column * (side.column * item)
        for variable, step in zip(self.batch, steps, strict=True):
            offset = offset + variable * (step * item)
        return self.b.gm(side.param, offset, shape, side.dtype, (side.row, side.column))


def tiles(b: Builder, core: str, product: Product, m: int, n: int) -> Iterator[Tile]:
    """One phase of *product* on cores of kind *core*: the body of each nest is what the caller emits for its tile, once
    for the whole tiles of (m, n) and once for each ragged edge."""
    with b.phase(core):
        for m0, height, rows in _cut(product.m, m):
            for n0, width, columns in _cut(product.n, n):
                counts = {f"b{d}": batch.count for d, batch in enumerate(product.batch)}
                with b.nest(**counts, i=rows, j=columns) as variables:
                    *batch, i, j = variables
                    yield Tile(b, product, tuple(batch), i * height + m0, j * width + n0, height, width)


def _cut(total: int, size: int) -> Iterator[tuple[int, int, int]]:
    """(start, size, count) of the whole tiles and of the ragged end."""
    if total // size:
        yield 0, size, total // size
    if total % size:
        yield total // size * size, total % size, 1


BUCKET = 128


def _bucket(size: int) -> int:
    return size if size <= BUCKET else -(-size // BUCKET) * BUCKET


def _packed(side: Side, rows: int, columns: int) -> Side:
    return evolve(side, row=columns, column=1) if side.column == 1 else evolve(side, row=1, column=rows)


def _steps(batch: tuple[Batch, ...], a: int, b: int, out: int) -> tuple[Batch, ...]:
    """The batch over dense operands of these sizes; an operand that stood still stands still."""
    dims: list[Batch] = []
    for dim in reversed(batch):
        dims.append(Batch(dim.count, a if dim.a else 0, b if dim.b else 0, out if dim.out else 0))
        a, b, out = (size * dim.count if step else size for size, step in ((a, dim.a), (b, dim.b), (out, dim.out)))
    return tuple(reversed(dims))


EmitProduct = Callable[..., None]
"""Emits one phase that computes a product with a chip's own engines: (builder, target, product), and where the caller
knows better than the generator, the tile."""


def emit_linear(emit: EmitProduct, name: str, target: Target, intent: Intent, variant: Variant = AS_IT_IS) -> Program:
    """The program of a linear intent."""
    return _program(emit, name, target, intent, linear_product(intent), variant)


def emit_batch(emit: EmitProduct, name: str, target: Target, intent: Intent, variant: Variant = AS_IT_IS) -> Program:
    """The program of a matmul intent."""
    return _program(emit, name, target, intent, batch_product(intent), variant)


def _program(
    emit: EmitProduct, name: str, target: Target, intent: Intent, product: Product, variant: Variant
) -> Program:
    b = target.builder(name)
    for n, region in enumerate(intent.inputs):
        b.param(f"in{n}", "in", reach(region.window))
    b.param("out", "out", reach(intent.outputs[0].window))
    emit(b, target, product, variant)
    return b.build()


def side(param: int, window: Window) -> Side:
    """The last two dimensions of *window* as a matrix operand."""
    row = window.stride[-2] if len(window.shape) > 1 else 0
    return Side(param, row, window.stride[-1], dtype_name(window.dtype))


def linear_product(intent: Intent) -> Product:
    """x [..., K], w [N, K] or [K, N] -> y [..., N]: the leading dimensions of x that lie evenly are the rows, the
    others a batch."""
    x, w, y = intent.inputs[0].window, intent.inputs[1].window, intent.outputs[0].window
    lead = merged(x.shape[:-1], x.stride[:-1], y.stride[:-1])
    *outer, (m, x_row, y_row) = lead or [(1, 0, 0)]
    n, k = y.shape[-1], x.shape[-1]
    w_k, w_n = (w.stride[1], w.stride[0]) if intent.attr("transposed") else w.stride
    bias = (
        Side(2, 0, intent.inputs[2].stride[0], dtype_name(intent.inputs[2].dtype)) if intent.attr("has_bias") else None
    )
    return Product(
        m, n, k, Side(0, x_row, x.stride[-1], dtype_name(x.dtype)), Side(1, w_k, w_n, dtype_name(w.dtype)),
        Side(len(intent.inputs), y_row, y.stride[-1], dtype_name(y.dtype)),
        tuple(Batch(count, a, 0, out) for count, a, out in outer), bias,
    )  # fmt: skip


def merged(shape: tuple[int, ...], *strides: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Dimensions as (size, stride in each operand), joined where every operand walks two of them as one."""
    dims: list[tuple[int, ...]] = []
    for n, *steps in zip(shape, *strides, strict=True):
        if n == 1:
            continue
        if dims and all(outer == inner * n for outer, inner in zip(dims[-1][1:], steps, strict=True)):
            dims[-1] = (dims[-1][0] * n, *steps)
        else:
            dims.append((n, *steps))
    return dims


def batch_product(intent: Intent) -> Product:
    """a [..., M, K] @ b [..., K, N] -> y [..., M, N]."""
    a, b, y = intent.inputs[0].window, intent.inputs[1].window, intent.outputs[0].window
    batch = merged(y.shape[:-2], a.stride[:-2], b.stride[:-2], y.stride[:-2])
    out = Side(2, y.stride[-2], y.stride[-1], dtype_name(y.dtype))
    return Product(
        y.shape[-2], y.shape[-1], a.shape[-1], side(0, a), side(1, b), out, tuple(Batch(*dims) for dims in batch)
    )


def linear_reference(intent: Intent, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """fp32 accumulation over the whole depth, one rounding to the result's format."""
    x, w, *bias = (t.float() for t in inputs)
    y = x @ (w.t() if intent.attr("transposed") else w)
    return ((y + bias[0] if bias else y).to(intent.outputs[0].dtype),)


def batch_reference(intent: Intent, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (torch.matmul(a.float(), b.float()).to(intent.outputs[0].dtype),)


FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def _formats(chip: Chip, intent: Intent) -> bool:
    return (
        all(r.dtype in FLOATS for r in (*intent.inputs, *intent.outputs))
        and len({r.dtype for r in intent.inputs[:2]}) == 1
    )


def _one_dense(window: Window, last: int = 2) -> bool:
    return any(s == 1 or n == 1 for n, s in zip(window.shape[-last:], window.stride[-last:], strict=True))


def _dense(chip: Chip, intent: Intent) -> bool:
    y = intent.outputs[0].window
    return all(_one_dense(r.window) for r in intent.inputs[:2]) and (y.stride[-1] == 1 or y.shape[-1] == 1)


def _filled(chip: Chip, intent: Intent) -> bool:
    return all(r.numel for r in (*intent.inputs, *intent.outputs))


def _products(intent: Intent) -> tuple[Product, ...]:
    return (linear_product(intent) if intent.kind == "linear" else batch_product(intent),)


def rows_copied_together(chip: Chip, *products: Product) -> bool:
    """Whether a copy may step from row to row (or column to column) of every operand."""
    sides = [s for p in products for s in ((p.a, p.m, p.k), (p.b, p.k, p.n), (p.out, p.m, p.n))]
    gaps = (
        max(side.row * (rows > 1), side.column * (columns > 1)) * torch_dtype(side.dtype).itemsize
        for side, rows, columns in sides
    )
    return max(gaps) <= row_gap(chip)


def _together(chip: Chip, intent: Intent) -> bool:
    return rows_copied_together(chip, *_products(intent))


def _plain(chip: Chip, intent: Intent) -> bool:
    return intent.attr("activation") is None and not intent.attr("has_residual")


LIMITS = (
    Limit("operands are fp16, bf16 or fp32, both of one format", _formats, "aclnnMatmul, supported dtypes"),
    Limit("each matrix lies densely along rows or columns", _dense, "DataCopy ND2NZ reads rows of a dense matrix"),
    Limit("no dimension is empty", _filled),
    Limit("rows lie no further apart than a copy can skip", _together, "DataCopy: a gap of 65535 blocks of 32 bytes"),
)
LINEAR_LIMITS = (Limit("nothing is done to the product but adding a bias", _plain), *LIMITS)
ROUNDING = Rounding(1, 32, "sums in fp32 in another order, rounded once")
