"""The sizes of one flash attention: heads, tiles, strides, slots. What the cube's half and the vector's half share."""

from __future__ import annotations

from attrs import field, frozen

from dsf import errors
from dsf.intent.ir import Intent
from dsf.intent.tape import Window
from dsf.isa import Affine, Builder, Operand
from dsf.isa.crew import CORE, PART
from dsf.isa.program import Term, affine, dtype_name, torch_dtype
from dsf.kernels.attention import Heads
from dsf.kernels.target import Target

__all__ = ["AIC", "AIV", "P_READY", "ROWS", "S_READY", "U_READY", "Block", "Item", "Sizes", "Slots", "Way", "of",
           "part_row"]  # fmt: skip

AIC, AIV = "AIC", "AIV"
ROWS = 128  # query rows that the cube takes at once: half of L0A for a head of 128

S_READY, U_READY, P_READY = 0, 2, 4  # flags between the cores, one more for the second slot


@frozen
class Way:
    """How the work is cut: *blocks* of rows that a team has at hand at once, keys in a *tile*."""

    blocks: int
    tile: int


@frozen
class Slots:
    """Workspaces of one team: two slots each for scores, weights and products, as parameters of the program."""

    scores: int
    weights: int
    products: int


@frozen
class Sizes:
    """One attention on one chip, cut in one *way*, on teams with *parts* vector cores."""

    b: Builder
    target: Target
    heads: Heads
    dtype: str
    scale: float
    causal: bool
    q: Window
    k: Window
    v: Window
    y: Window
    way: Way
    slots: Slots
    parts: int

    @property
    def item(self) -> int:
        return torch_dtype(self.dtype).itemsize

    def slot(self, param: int, number: int, row: Affine | int, column: int, shape: tuple[int, int], pitch: int,
             dtype: str) -> Operand:  # fmt: skip
        """A window (rows, columns) of a team's slot *number* of workspace *param*, whose rows are *pitch* long."""
        size = torch_dtype(dtype).itemsize
        whole = ROWS * pitch * size
        offset = Affine(number * whole + column * size, (Term(CORE, 2 * whole),)) + affine(row) * (pitch * size)
        return self.b.gm(param, offset, shape, dtype, (pitch, 1))

    def workspace(self, teams: int) -> tuple[int, int, int]:
        """Bytes of scores, weights and products for so many teams."""
        both = 2 * ROWS * teams
        return both * self.way.tile * 4, both * self.way.tile * self.item, both * self.heads.value_width * 4


@frozen
class Block:
    """Query rows that one team has at hand: how many each piece has, where the first starts in the sequence, and the
    place of their head among *group* heads to a head of keys."""

    rows: tuple[int, ...]
    first: Affine
    batch: Affine
    kv_head: Affine
    head: Affine
    group: int
    starts: tuple[int, ...] = field(init=False)

    @starts.default
    def _starts(self) -> tuple[int, ...]:
        return tuple(sum(self.rows[:n]) for n in range(len(self.rows)))

    def of_queries(self, window: Window, row: Affine | int, item: int) -> Affine:
        """Bytes to *row* of the block in a window [B, H, S, D] of queries or results."""
        b, h, s, _ = window.stride
        return (
            self.batch * (b * item) + self.kv_head * (h * item * self.group) + self.head * (h * item)
            + (self.first + row) * (s * item)
        )  # fmt: skip

    def of_keys(self, window: Window, row: Affine | int, item: int) -> Affine:
        """Bytes to *row* of the block's keys or values."""
        b, h, s, _ = window.stride
        return self.batch * (b * item) + self.kv_head * (h * item) + affine(row) * (s * item)


@frozen
class Item:
    """A tile of keys from *start* on, *width* wide, for rows number *piece* of a block. *slot*: 0 or 1. *masked*: some
    of the keys lie behind a row. *first*: no key of these rows was seen before."""

    start: Affine
    width: int
    piece: int
    slot: int
    masked: bool
    first: bool


def part_row(sizes: Sizes, rows: int) -> Affine:
    """The first row of the vector core's own share of *rows*."""
    return Affine(0, (Term(PART, rows // sizes.parts),)) if sizes.parts > 1 else Affine(0)


def of(intent: Intent, b: Builder, target: Target, way: Way, slots: Slots, parts: int) -> Sizes:
    """The sizes of *intent*."""
    q, k, v = (r.window for r in intent.inputs[:3])
    if target.strict_layouts:
        raise errors.KernelError("DSF-K030", "strict layouts: fused attention lays its tiles out as main memory does")
    return Sizes(
        b, target, Heads.of(intent), dtype_name(q.dtype), intent.attr("scale"), intent.attr("causal"), q, k, v,
        intent.outputs[0].window, way, slots, parts,
    )  # fmt: skip
