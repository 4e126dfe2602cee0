"""What becomes of raw scores before their maximum is taken: a cap, a mask, and keys that a row may not see.

Where scores are capped or a number is added to each, they are scaled first; else only their powers are.
"""

from __future__ import annotations

from math import inf

from attrs import evolve, frozen

from dsf.intent.tape import Window
from dsf.isa import Affine, Operand
from dsf.isa.program import affine, dtype_name
from dsf_ascend.kernels.flash.sizes import Block, Item, Sizes, up

__all__ = ["Masking"]

MASK = 3  # the mask's parameter
SCALE, MINUS_SCALE, HIDDEN, FLOOR, ONE, CAPPED, CAP = range(7)  # numbers that stand in UB for good
NUMBERS = 7 * 32
ALIGNED = 32  # bytes: rows of truth values start on whole blocks


@frozen
class Masking:
    """The masks of one *block*, in the places *at* of UB for strips of up to *strip* rows."""

    sizes: Sizes
    block: Block
    strip: int
    at: dict[str, int]

    @property
    def scaled(self) -> bool:
        """Whether scores are scaled before their maximum is taken."""
        return self.sizes.softcap is not None or self._adds

    @property
    def floored(self) -> bool:
        """Whether a row may see nothing."""
        return self.sizes.mask is not None or self.sizes.window is not None

    @property
    def _adds(self) -> bool:
        return self.sizes.mask is not None and self.sizes.mask.dtype.is_floating_point

    @property
    def numbers(self) -> tuple[float, ...]:
        """The values of the numbers in UB. Added masks hide with the least float32, which no maximum may undercut."""
        s, scale = self.sizes, 1.0 if self.scaled else self.sizes.scale
        floor = -3.4028234663852886e38 if self._adds else -1e30
        cap = s.softcap or 1.0
        return scale, -scale, -inf, floor, 1.0, s.scale / cap, cap

    def room(self) -> dict[str, int]:
        """Bytes in UB, by name."""
        s, tile, room = self.sizes, self.sizes.tile, {"numbers": NUMBERS}
        if s.causal:
            room |= {"columns": tile * 4, "rows": ALIGNED * 4, "later": self.strip * _up(tile)}
        if s.mask is not None:
            room["mask"] = 2 * self._mask_bytes
            if self._adds and s.mask.dtype.itemsize == 2:
                room["added"] = self._rows(self.strip) * tile * 4
        return room

    @property
    def _mask_bytes(self) -> int:
        assert self.sizes.mask is not None, "asked for a mask"
        return self._rows(self.strip) * _up(self.sizes.tile) * self.sizes.mask.dtype.itemsize

    def _rows(self, rows: int) -> int:
        """A mask that is the same for all rows is loaded once."""
        assert self.sizes.mask is not None, "asked for a mask"
        return rows if self.sizes.mask.stride[2] else 1

    def begin(self) -> None:
        for place, value in enumerate(self.numbers):
            self.sizes.b("Duplicate", self.number(place, 1, 1), value=value)

    def columns(self, item: Item) -> None:
        """The places of a tile's keys in the sequence."""
        if item.masked:
            at = self.sizes.b.on("UB", self.at["columns"], (1, item.width), "int32")
            self.sizes.b("CreateVecIndex", at, start=item.start, step=1)

    def load(self, item: Item, mine: Affine, rows: int, turn: Affine) -> None:
        """The strip's part of the mask, beside its scores."""
        mask = self.sizes.mask
        if mask is None:
            return
        dst = self._mask(rows, item.width, turn)
        loaded = evolve(dst, shape=(self._rows(rows), item.width), stride=(dst.stride[0] or _up(item.width), 1))
        self.sizes.b("DataCopy.GM2UB", loaded, self._source(mask, item, mine, self._rows(rows)))

    def _source(self, mask: Window, item: Item, mine: Affine, rows: int) -> Operand:
        size, (_, _, s, column) = mask.dtype.itemsize, mask.stride
        offset = self.block.of_queries(mask, mine, size) + item.start * (column * size)
        return self.sizes.b.gm(MASK, offset, (rows, item.width), dtype_name(mask.dtype), (s or 1, 1))

    def _mask(self, rows: int, width: int, turn: Affine) -> Operand:
        mask = self.sizes.mask
        assert mask is not None, "asked for a mask"
        pitch = _up(width) if mask.stride[2] else 0
        offset = turn * self._mask_bytes + self.at["mask"]
        return self.sizes.b.on("UB", offset, (rows, width), dtype_name(mask.dtype), (pitch, 1))

    def apply(self, x: Operand, item: Item, mine: Affine, turn: Affine) -> None:
        """Raw scores become what their maximum is taken of."""
        b, s, (rows, width) = self.sizes.b, self.sizes, x.shape
        if s.softcap is not None:
            b("Mul", x, x, self.number(CAPPED, rows, width))
            b("Tanh", x, x)
            b("Mul", x, x, self.number(CAP, rows, width))
        if s.mask is not None:
            self._masked(x, self._mask(rows, width, turn))
        if item.masked:
            self._hide(x, mine)

    def _masked(self, x: Operand, mask: Operand) -> None:
        b, (rows, width) = self.sizes.b, x.shape
        if mask.dtype == "bool":
            b("Select", x, mask, x, self.number(HIDDEN, rows, width))
            return
        if mask.dtype != "float32":
            wide = b.on("UB", self.at["added"], (self._rows(rows), width), "float32", (self.sizes.tile, 1))
            b("Cast", wide, evolve(mask, shape=wide.shape, stride=(mask.stride[0] or _up(width), 1)))
            mask = evolve(wide, shape=x.shape, stride=(self.sizes.tile if mask.stride[0] else 0, 1))
        if self.sizes.softcap is not None:
            b("Add", x, x, mask)
        else:
            scale = b.on("UB", self.at["numbers"] + 32 * CAPPED, (rows, width), "float32", (0, 0))
            b("FusedMulAdd", x, scale, mask)

    def _hide(self, x: Operand, mine: Affine) -> None:
        """Scores of keys behind their row, or further before it than the window, become -inf."""
        first = self.block.first + mine
        self._compared("Compare.GT", x, first)
        if self.sizes.window is not None:
            self._compared("Compare.LE", x, first + -self.sizes.window)

    def _compared(self, compare: str, x: Operand, first: Affine) -> None:
        b, (rows, width) = self.sizes.b, x.shape
        at = self.at["rows"]
        b("CreateVecIndex", b.on("UB", at, (rows, 1), "int32"), start=first, step=1)
        hidden = b.on("UB", self.at["later"], (rows, width), "bool", (_up(width), 1))
        columns = b.on("UB", self.at["columns"], (rows, width), "int32", (0, 1))
        b(compare, hidden, columns, b.on("UB", at, (rows, width), "int32", (1, 0)))
        b("Select", x, hidden, self.number(HIDDEN, rows, width), x)

    def number(self, place: int, rows: int, columns: int) -> Operand:
        """One of the numbers, for as many places."""
        stride = (0, 0) if rows > 1 or columns > 1 else (1, 1)
        return self.sizes.b.on("UB", affine(self.at["numbers"] + 32 * place), (rows, columns), "float32", stride)


def _up(width: int) -> int:
    return up(width, ALIGNED)
