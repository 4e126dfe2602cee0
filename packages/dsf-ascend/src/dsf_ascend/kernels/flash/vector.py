"""The vector cores' half: the running maximum and sum of every row, its weights, and the result that grows with them.

Each of a team's vector cores has its share of the rows. Scores come in strips of 16 rows, twice buffered; a row's
maximum and sum are folded in halves, since adding two halves is five times as quick as the reducing instructions.
"""

from __future__ import annotations

from math import inf

from attrs import define, field

from dsf.isa import Affine, Operand, Scratch
from dsf.isa.program import torch_dtype
from dsf_ascend.kernels.flash.sizes import AIC, AIV, P_READY, S_READY, U_READY, Block, Item, Sizes, part_row

__all__ = ["Vector"]

MTE2, MTE3, V = (f"{AIV}.{engine}" for engine in ("MTE2", "MTE3", "V"))
STRIP, CHUNK = 16, 32  # rows of scores, rows of products that are worked on at once
LOADED, PRODUCT = 0, 2  # events of MTE2 and V: a strip's buffer, a chunk's buffer
PAD = 16  # numbers: rows start on whole blocks of 32 bytes in 16 bits


@define(eq=False)
class Vector:
    """Emits the vector cores' instructions for one *block*. Buffers that come in two have a turn."""

    sizes: Sizes
    block: Block
    strip: int = 0
    chunk: int = 0
    out: int = 0
    _at: dict[str, int] = field(init=False, factory=dict)
    _strip_bytes: int = field(init=False, default=0)
    _chunk_bytes: int = field(init=False, default=0)
    _out_bytes: int = field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        """Room for everything in UB; a KernelError where it does not fit."""
        s, tile, wide = self.sizes, self.sizes.way.tile, self.sizes.heads.value_width
        ub = Scratch(s.b.chip, "UB")
        strip, chunk = min(STRIP, max(self.shares)), min(CHUNK, max(self.shares))
        room = {"scores": 2 * strip * tile * 4, "folded": strip * max(tile // 2, PAD) * 4,
                "weights": 2 * max(strip * tile, chunk * _up(wide)) * s.item, "products": 2 * chunk * _up(wide) * 4,
                "result": sum(_up(share, 8) for share in self.shares) * _up(wide) * 4, "numbers": 3 * 32}  # fmt: skip
        if s.causal:
            room |= {"columns": tile * 4, "rows": STRIP * 4, "later": strip * _up(tile, 32)}
        for name in ("highest", "total", "factor", "shift", "fresh"):
            room[name] = sum(_up(share, 8) for share in self.shares) * 4 * (2 if name == "factor" else 1)
        for name, nbytes in room.items():
            self._at[name] = ub.take(nbytes, name)
        self._strip_bytes, self._chunk_bytes = strip * tile * 4, chunk * _up(wide) * 4
        self._out_bytes = max(strip * tile, chunk * _up(wide)) * s.item

    @property
    def shares(self) -> list[int]:
        """Rows of each piece that one vector core has."""
        return [rows // self.sizes.parts for rows in self.block.rows]

    def begin(self) -> None:
        b = self.sizes.b
        for turn in (0, 1):
            b.set_flag(V, MTE2, LOADED + turn)
            b.set_flag(V, MTE2, PRODUCT + turn)
            b.set_flag(MTE3, V, turn)
        for place, value in enumerate((self.sizes.scale, -self.sizes.scale, -inf)):
            b("Duplicate", self._number(place, 1, 1), value=value)

    def end(self) -> None:
        b = self.sizes.b
        for turn in (0, 1):
            b.wait_flag(V, MTE2, LOADED + turn)
            b.wait_flag(V, MTE2, PRODUCT + turn)
            b.wait_flag(MTE3, V, turn)

    def weights(self, item: Item) -> None:
        """P of one item, and what its rows know now."""
        b, s, share = self.sizes.b, self.sizes, self.shares[item.piece]
        b.wait_flag(f"{AIC}.FIX", MTE2, S_READY + item.slot)
        if item.masked:
            b("CreateVecIndex", self._own("columns", 0, (1, item.width), "int32"), start=item.start, step=1)
        for row in range(0, share, STRIP):
            self._strip(item, row, min(STRIP, share - row))
        b.set_flag(MTE3, f"{AIC}.MTE2", P_READY + item.slot)

    def _strip(self, item: Item, row: int, rows: int) -> None:
        b, s, turn = self.sizes.b, self.sizes, self.strip
        self.strip = 1 - turn
        shape, pitch = (rows, item.width), _up(item.width)
        x = b.on("UB", self._at["scores"] + turn * self._strip_bytes, shape, "float32", (pitch, 1))
        mine = part_row(s, self.block.rows[item.piece]) + row
        b.wait_flag(V, MTE2, LOADED + turn)
        b("DataCopy.GM2UB", x, s.slot(s.slots.scores, item.slot, mine, 0, shape, s.way.tile, "float32"))
        b.order(MTE2, V, LOADED + turn)
        if item.masked:
            self._hide(x, item, mine)
        self._exponentiate(x, item, row)
        out = self.out
        self.out = 1 - out
        p = b.on("UB", self._at["weights"] + out * self._out_bytes, shape, s.dtype, (pitch, 1))
        b.wait_flag(MTE3, V, out)
        b("Cast", p, x)
        b.set_flag(V, MTE2, LOADED + turn)
        b.order(V, MTE3, out)
        b("DataCopy.UB2GM", s.slot(s.slots.weights, item.slot, mine, 0, shape, s.way.tile, s.dtype), p)
        b.set_flag(MTE3, V, out)

    def _hide(self, x: Operand, item: Item, mine: Affine) -> None:
        """Scores of keys behind their row become -inf."""
        b, (rows, width) = self.sizes.b, x.shape
        at = self._own("rows", 0, (rows, 1), "int32")
        first = self.block.first + self.block.starts[item.piece] + mine
        b("CreateVecIndex", at, start=first, step=1)
        later = self._own("later", 0, (rows, width), "bool", _up(width, 32))
        columns = b.on("UB", self._at["columns"], (rows, width), "int32", (0, 1))
        b("Compare.GT", later, columns, b.on("UB", self._at["rows"], (rows, width), "int32", (1, 0)))
        b("Select", x, later, self._number(2, rows, width), x)

    def _exponentiate(self, x: Operand, item: Item, row: int) -> None:
        """x = exp(scale * (x - m)) with the new maximum m; l = l * alpha + its sums, alpha for what was before."""
        b, (rows, width) = self.sizes.b, x.shape
        highest, total, factor, shift, fresh = (
            self._column(name, item, row, rows) for name in ("highest", "total", "factor", "shift", "fresh")
        )
        self._fold("Max", "ReduceMax", x, fresh)
        if item.first:
            b("Muls", highest, fresh, value=1.0)
        else:
            b("Max", fresh, fresh, highest)
            b("Sub", factor, highest, fresh)
            b("Mul", factor, factor, self._number(0, rows, 1))
            b("Exp", factor, factor)
            b("Muls", highest, fresh, value=1.0)
        b("Mul", shift, highest, self._number(1, rows, 1))
        b("FusedMulAdd", x, self._number(0, rows, width), _across(shift, width))
        b("Exp", x, x)
        self._fold("Add", "ReduceSum", x, fresh)
        if item.first:
            b("Muls", total, fresh, value=1.0)
        else:
            b("FusedMulAdd", total, factor, fresh)

    def _fold(self, combine: str, reduce: str, x: Operand, column: Operand) -> None:
        """One number a row: halves are combined as long as they start on whole blocks, then the rest is reduced."""
        b, (rows, width) = self.sizes.b, x.shape
        source, half = x, width // 2
        while width % 16 == 0:
            dst = self._own("folded", 0, (rows, half), "float32", self._fold_pitch)
            b(combine, dst, _columns(source, 0, half), _columns(source, half, half))
            source, width, half = dst, half, half // 2
        b(reduce, column, source)

    @property
    def _fold_pitch(self) -> int:
        return max(self.sizes.way.tile // 2, PAD)

    def update(self, item: Item) -> None:
        """O = O * alpha + U."""
        b, s, share, wide = self.sizes.b, self.sizes, self.shares[item.piece], self.sizes.heads.value_width
        b.wait_flag(f"{AIC}.FIX", MTE2, U_READY + item.slot)
        for row in range(0, share, CHUNK):
            rows, turn = min(CHUNK, share - row), self.chunk
            self.chunk = 1 - turn
            u = b.on("UB", self._at["products"] + turn * self._chunk_bytes, (rows, wide), "float32", (_up(wide), 1))
            mine = part_row(s, self.block.rows[item.piece]) + row
            b.wait_flag(V, MTE2, PRODUCT + turn)
            b("DataCopy.GM2UB", u, s.slot(s.slots.products, item.slot, mine, 0, (rows, wide), wide, "float32"))
            b.order(MTE2, V, PRODUCT + turn)
            if item.first:
                b("Muls", self._result(item.piece, row, rows), u, value=1.0)
            else:
                factor = self._column("factor", item, row, rows)
                b("FusedMulAdd", self._result(item.piece, row, rows), _across(factor, wide), u)
            b.set_flag(V, MTE2, PRODUCT + turn)

    def finish(self, piece: int) -> None:
        """y = O / l."""
        b, s, share, wide = self.sizes.b, self.sizes, self.shares[piece], self.sizes.heads.value_width
        for row in range(0, share, CHUNK):
            rows, out = min(CHUNK, share - row), self.out
            self.out = 1 - out
            result = self._result(piece, row, rows)
            total = b.on("UB", self._at["total"] + self._place(piece, row) * 4, (rows, 1), "float32")
            b("Div", result, result, _across(total, wide))
            b.wait_flag(MTE3, V, out)
            y = b.on("UB", self._at["weights"] + out * self._out_bytes, (rows, wide), s.dtype, (_up(wide), 1))
            b("Cast", y, result)
            b.order(V, MTE3, out)
            at = part_row(s, self.block.rows[piece]) + self.block.starts[piece] + row
            place = self.block.of_queries(s.y, at, s.item)
            b("DataCopy.UB2GM", b.gm(3, place, (rows, wide), s.dtype, (s.y.stride[2], 1)), y)
            b.set_flag(MTE3, V, out)

    # places in UB

    def _place(self, piece: int, row: int) -> int:
        """Rows before *row* of a piece."""
        return sum(_up(share, 8) for share in self.shares[:piece]) + row

    def _result(self, piece: int, row: int, rows: int) -> Operand:
        wide = self.sizes.heads.value_width
        offset = self._at["result"] + self._place(piece, row) * _up(wide) * 4
        return self.sizes.b.on("UB", offset, (rows, wide), "float32", (_up(wide), 1))

    def _column(self, name: str, item: Item, row: int, rows: int) -> Operand:
        """One number for each of *rows*; the factors of an item keep until its products have come."""
        slot = item.slot * self._place(len(self.shares), 0) if name == "factor" else 0
        offset = self._at[name] + (slot + self._place(item.piece, row)) * 4
        return self.sizes.b.on("UB", offset, (rows, 1), "float32")

    def _number(self, place: int, rows: int, columns: int) -> Operand:
        """The scale, its negative or -inf, once for all."""
        stride = (0, 0) if rows > 1 or columns > 1 else (1, 1)
        return self.sizes.b.on("UB", self._at["numbers"] + 32 * place, (rows, columns), "float32", stride)

    def _own(self, name: str, offset: int, shape: tuple[int, int], dtype: str, pitch: int | None = None) -> Operand:
        stride = None if pitch is None else (pitch, 1)
        return self.sizes.b.on("UB", self._at[name] + offset * torch_dtype(dtype).itemsize, shape, dtype, stride)


def _up(value: int, step: int = PAD) -> int:
    return -(-value // step) * step


def _across(column: Operand, width: int) -> Operand:
    """A column as a matrix of equal columns."""
    return Operand(column.space, (column.shape[0], width), (1, 0), column.dtype, column.offset)


def _columns(x: Operand, start: int, width: int) -> Operand:
    """Some columns of a matrix."""
    return Operand(x.space, (x.shape[0], width), x.stride, x.dtype, x.offset + start * 4)
