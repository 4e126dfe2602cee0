"""The vector cores' half: the running maximum and sum of every row, its weights, and the result that grows with them.

Each of a team's vector cores has its share of the rows. Scores come in strips of 16 rows, twice buffered; a row's
maximum and sum are folded in halves, since adding two halves is five times as quick as the reducing instructions.
"""

from __future__ import annotations

from attrs import define, field

from dsf.isa import Affine, Operand, Scratch
from dsf.isa.program import affine
from dsf_ascend.kernels.flash.masking import FLOOR, HIDDEN, MINUS_SCALE, ONE, SCALE, Masking
from dsf_ascend.kernels.flash.sizes import (
    AIC,
    AIV,
    P_READY,
    S_READY,
    SLOTS,
    U_READY,
    Block,
    Item,
    Sizes,
    part_row,
    rounds,
    turn,
    up,
)  # fmt: skip

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
    masking: Masking = field(init=False)
    _at: dict[str, int] = field(init=False, factory=dict)
    _strip_bytes: int = field(init=False, default=0)
    _chunk_bytes: int = field(init=False, default=0)
    _out_bytes: int = field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        """Room for everything in UB; a KernelError where it does not fit."""
        s, tile, wide = self.sizes, self.sizes.tile, self.sizes.heads.value_width
        self.masking = Masking(s, self.block, min(STRIP, self.share), self._at)
        ub = Scratch(s.b.chip, "UB")
        share, strip, chunk = _up(self.share, 8), min(STRIP, self.share), min(CHUNK, self.share)
        room = {"scores": 2 * strip * tile * 4, "folded": strip * max(tile // 2, PAD) * 4,
                "weights": 2 * max(strip * tile, chunk * _up(wide)) * s.item, "products": 2 * chunk * _up(wide) * 4,
                "result": share * _up(wide) * 4, "factor": SLOTS * share * 4}  # fmt: skip
        room |= self.masking.room()
        room |= dict.fromkeys(("highest", "total", "shift", "fresh"), share * 4)
        for name, nbytes in room.items():
            self._at[name] = ub.take(nbytes, name)
        self._strip_bytes, self._chunk_bytes = strip * tile * 4, chunk * _up(wide) * 4
        self._out_bytes = max(strip * tile, chunk * _up(wide)) * s.item

    @property
    def share(self) -> int:
        """Rows that one vector core has."""
        return self.block.rows // self.sizes.parts

    def begin(self) -> None:
        b = self.sizes.b
        for half in (0, 1):
            b.set_flag(V, MTE2, LOADED + half)
            b.set_flag(V, MTE2, PRODUCT + half)
            b.set_flag(MTE3, V, half)
        self.masking.begin()

    def end(self) -> None:
        b = self.sizes.b
        for half in (0, 1):
            b.wait_flag(V, MTE2, LOADED + half)
            b.wait_flag(V, MTE2, PRODUCT + half)
            b.wait_flag(MTE3, V, half)

    def weights(self, item: Item) -> None:
        """P of one item, and what its rows know now."""
        b = self.sizes.b
        b.wait_flag(f"{AIC}.FIX", MTE2, S_READY)
        self.masking.columns(item)

        def strip(n: Affine, row: Affine, rows: int) -> None:
            self._strip(item, row, rows, turn(self.strip, n), turn(self.out, n))

        done = rounds(b, self.share, STRIP, strip)
        self.strip, self.out = self.strip + done, self.out + done
        b.set_flag(MTE3, f"{AIC}.MTE2", P_READY)

    def _strip(self, item: Item, row: Affine, rows: int, strip: Affine, out: Affine) -> None:
        b, s, shape, pitch = self.sizes.b, self.sizes, (rows, item.width), _up(item.width)
        x = b.on("UB", strip * self._strip_bytes + self._at["scores"], shape, "float32", (pitch, 1))
        mine = part_row(s, self.block.rows) + row
        b.wait_flag(V, MTE2, strip + LOADED)
        b("DataCopy.GM2UB", x, s.slot(s.slots.scores, item.slot, mine, 0, shape, s.tile, "float32"))
        self.masking.load(item, mine, rows, strip)
        b.order(MTE2, V, strip + LOADED)
        self.masking.apply(x, item, mine, strip)
        self._exponentiate(x, item, row)
        p = b.on("UB", out * self._out_bytes + self._at["weights"], shape, s.dtype, (pitch, 1))
        b.wait_flag(MTE3, V, out)
        b("Cast", p, x)
        b.set_flag(V, MTE2, strip + LOADED)
        b.order(V, MTE3, out)
        b("DataCopy.UB2GM", s.slot(s.slots.weights, item.slot, mine, 0, shape, s.tile, s.dtype), p)
        b.set_flag(MTE3, V, out)

    def _exponentiate(self, x: Operand, item: Item, row: Affine) -> None:
        """x = exp(scale * (x - m)) with the new maximum m; l = l * alpha + its sums, alpha for what was before."""
        b, (rows, width) = self.sizes.b, x.shape
        highest, total, factor, shift, fresh = (
            self._column(name, item, row, rows) for name in ("highest", "total", "factor", "shift", "fresh")
        )
        number = self.masking.number
        self._fold("Max", "ReduceMax", x, fresh)
        if item.first:
            b("Max", highest, fresh, number(FLOOR if self.masking.floored else HIDDEN, rows, 1))
        else:
            b("Max", fresh, fresh, highest)
            b("Sub", factor, highest, fresh)
            b("Mul", factor, factor, number(SCALE, rows, 1))
            b("Exp", factor, factor)
            b("Muls", highest, fresh, value=1.0)
        b("Mul", shift, highest, number(MINUS_SCALE, rows, 1))
        b("FusedMulAdd", x, number(SCALE, rows, width), _across(shift, width))
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
            dst = self._own("folded", (rows, half), "float32", max(self.sizes.tile // 2, PAD))
            b(combine, dst, _columns(source, 0, half), _columns(source, half, half))
            source, width, half = dst, half, half // 2
        b(reduce, column, source)

    def update(self, item: Item) -> None:
        """O = O * alpha + U."""
        b = self.sizes.b
        b.wait_flag(f"{AIC}.FIX", MTE2, U_READY)

        def chunk(n: Affine, row: Affine, rows: int) -> None:
            self._chunk(item, row, rows, turn(self.chunk, n))

        self.chunk += rounds(b, self.share, CHUNK, chunk)

    def _chunk(self, item: Item, row: Affine, rows: int, chunk: Affine) -> None:
        b, s, wide = self.sizes.b, self.sizes, self.sizes.heads.value_width
        u = b.on("UB", chunk * self._chunk_bytes + self._at["products"], (rows, wide), "float32", (_up(wide), 1))
        mine = part_row(s, self.block.rows) + row
        b.wait_flag(V, MTE2, chunk + PRODUCT)
        b("DataCopy.GM2UB", u, s.slot(s.slots.products, item.slot, mine, 0, (rows, wide), wide, "float32"))
        b.order(MTE2, V, chunk + PRODUCT)
        if item.first:
            b("Muls", self._result(row, rows), u, value=1.0)
        else:
            b("FusedMulAdd", self._result(row, rows), _across(self._column("factor", item, row, rows), wide), u)
        b.set_flag(V, MTE2, chunk + PRODUCT)

    def finish(self) -> None:
        """y = O / l."""
        for n, row in enumerate(range(0, self.share, CHUNK)):
            self._finished(row, min(CHUNK, self.share - row), (self.out + n) % 2)

    def _finished(self, row: int, rows: int, out: int) -> None:
        b, s, wide, result = self.sizes.b, self.sizes, self.sizes.heads.value_width, self._result(affine(row), rows)
        total = b.on("UB", self._at["total"] + row * 4, (rows, 1), "float32")
        if self.masking.floored:
            b("Max", total, total, self.masking.number(ONE, rows, 1))
        b("Div", result, result, _across(total, wide))
        b.wait_flag(MTE3, V, out)
        y = b.on("UB", self._at["weights"] + out * self._out_bytes, (rows, wide), s.dtype, (_up(wide), 1))
        b("Cast", y, result)
        b.order(V, MTE3, out)
        place = self.block.of_queries(s.y, part_row(s, self.block.rows) + row, s.item)
        b("DataCopy.UB2GM", b.gm(s.out, place, (rows, wide), s.dtype, (s.y.stride[2], 1)), y)
        b.set_flag(MTE3, V, out)

    # places in UB

    def _result(self, row: Affine, rows: int) -> Operand:
        pitch = _up(self.sizes.heads.value_width)
        offset = row * (pitch * 4) + self._at["result"]
        return self.sizes.b.on("UB", offset, (rows, self.sizes.heads.value_width), "float32", (pitch, 1))

    def _column(self, name: str, item: Item, row: Affine, rows: int) -> Operand:
        """One number for each of *rows*; the factors of an item keep until its products have come."""
        offset = row * 4 + self._at[name]
        if name == "factor":
            offset = offset + item.slot * (_up(self.share, 8) * 4)
        return self.sizes.b.on("UB", offset, (rows, 1), "float32")

    def _own(self, name: str, shape: tuple[int, int], dtype: str, pitch: int | None = None) -> Operand:
        return self.sizes.b.on("UB", self._at[name], shape, dtype, None if pitch is None else (pitch, 1))


def _up(value: int, step: int = PAD) -> int:
    return up(value, step)


def _across(column: Operand, width: int) -> Operand:
    """A column as a matrix of equal columns."""
    return Operand(column.space, (column.shape[0], width), (1, 0), column.dtype, column.offset)


def _columns(x: Operand, start: int, width: int) -> Operand:
    """Some columns of a matrix."""
    return Operand(x.space, (x.shape[0], width), x.stride, x.dtype, x.offset + start * 4)
