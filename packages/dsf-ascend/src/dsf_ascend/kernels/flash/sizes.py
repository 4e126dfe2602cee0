"""The sizes of one flash attention: heads, tiles, strides, slots. What the cube's half and the vector's half share."""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve, frozen

from dsf import errors
from dsf.intent.ir import Intent
from dsf.intent.tape import Window
from dsf.isa import Affine, Builder, Operand
from dsf.isa.crew import CORE, PART
from dsf.isa.program import Term, affine, dtype_name, torch_dtype
from dsf.kernels.attention import Heads
from dsf.kernels.target import Target

__all__ = ["AIC", "AIV", "P_READY", "ROWS", "SLOTS", "S_READY", "U_READY", "Block", "Item", "Sizes", "Slots", "of",
           "part_row", "rounds", "rows_of", "turn", "up"]  # fmt: skip

AIC, AIV = "AIC", "AIV"
ROWS = 128  # query rows that the cube takes at once: half of L0A for a head of 128
SLOTS = 4  # of each workspace that a team has: the cube is two items ahead

S_READY, U_READY, P_READY = range(3)  # flags between the cores


def up(value: int, step: int) -> int:
    """*value* rounded up to a multiple of *step*."""
    return -(-value // step) * step


def turn(first: int, number: Affine) -> Affine:
    """0 or 1: of two buffers the one whose turn it is in round *number* (of a loop, or after it) if *first* began."""
    if not number.terms:
        return affine((first + number.const) % 2)
    return number % 2 if first % 2 == 0 else 1 + (number % 2) * -1


def rounds(b: Builder, total: int, step: int, emit: Callable[[Affine, Affine, int], None]) -> int:
    """*emit* (round, start, size) for *total* in steps: a loop over the whole ones, then what is left. How many."""
    whole, rest = divmod(total, step)
    with b.loop(whole) as n:
        emit(n, n * step, step)
    if rest:
        emit(affine(whole), affine(whole * step), rest)
    return whole + (rest > 0)


@frozen
class Slots:
    """Workspaces of the teams, as parameters of the program: slots for scores, weights and products."""

    scores: int
    weights: int
    products: int


@frozen
class Sizes:
    """One attention on one chip, keys cut into a *tile* at a time, on teams with *parts* vector cores."""

    b: Builder
    target: Target
    heads: Heads
    dtype: str
    scale: float
    causal: bool
    softcap: float | None
    window: int | None
    q: Window
    k: Window
    v: Window
    mask: Window | None
    y: Window
    tile: int
    slots: Slots
    parts: int

    @property
    def out(self) -> int:
        """The result's parameter."""
        return 3 if self.mask is None else 4

    @property
    def item(self) -> int:
        return torch_dtype(self.dtype).itemsize

    def slot(self, param: int, number: Affine, row: Affine | int, column: Affine | int, shape: tuple[int, int],
             pitch: int, dtype: str) -> Operand:  # fmt: skip
        """A window (rows, columns) of a team's slot *number* of workspace *param*, whose rows are *pitch* long."""
        size = torch_dtype(dtype).itemsize
        whole = ROWS * pitch * size
        own = Affine(0, (Term(CORE, SLOTS * whole),)) + number * whole
        offset = own + affine(row) * (pitch * size) + affine(column) * size
        return self.b.gm(param, offset, shape, dtype, (pitch, 1))

    def workspace(self, teams: int) -> tuple[int, int, int]:
        """Bytes of scores, weights and products for so many teams."""
        rows = SLOTS * ROWS * teams
        return rows * self.tile * 4, rows * self.tile * self.item, rows * self.heads.value_width * 4


@frozen
class Block:
    """*rows* query rows that one team has at hand, where the first stands in the sequence, and the place of their head
    among *group* heads to a head of keys."""

    rows: int
    first: Affine
    batch: Affine
    kv_head: Affine
    head: Affine
    group: int

    def of_queries(self, window: Window, row: Affine | int, item: int) -> Affine:
        """Bytes to *row* of the block in a window [B, H, S, D] of queries or results."""
        b, h, s, _ = window.stride
        return (
            self.batch * (b * item) + self.kv_head * (h * item * self.group) + self.head * (h * item)
            + (self.first + row) * (s * item)
        )  # fmt: skip

    def of_keys(self, window: Window, row: Affine, item: int) -> Affine:
        """Bytes to *row* of the block's keys or values."""
        b, h, s, _ = window.stride
        return self.batch * (b * item) + self.kv_head * (h * item) + row * (s * item)


@frozen
class Item:
    """A tile of keys from *start* on, *width* wide, and its *slot*. *masked*: some of the keys lie behind a row.
    *first*: no key was seen before."""

    start: Affine
    width: int
    slot: Affine
    masked: bool
    first: bool


def part_row(sizes: Sizes, rows: int) -> Affine:
    """The first row of the vector core's own share of *rows*."""
    return Affine(0, (Term(PART, rows // sizes.parts),)) if sizes.parts > 1 else Affine(0)


def rows_of(intent: Intent) -> tuple[Heads, Window, Window, Window | None]:
    """The heads with the windows of queries, results and mask. A single query of several heads to a head of keys is
    looked at as so many rows of one head, which then read the keys once."""
    heads, q, y = Heads.of(intent), intent.inputs[0].window, intent.outputs[0].window
    mask = intent.inputs[3].window if intent.attr("has_mask") else None
    if heads.queries > 1 or heads.group == 1:
        return heads, q, y, mask
    seen = None if mask is None else _heads_as_rows(mask, heads)
    return evolve(heads, group=1, queries=heads.group), _heads_as_rows(q, heads), _heads_as_rows(y, heads), seen


def _heads_as_rows(window: Window, heads: Heads) -> Window:
    """[B, H, 1, D] as [B, H / group, group, D]."""
    b, h, _, d = window.stride
    shape = (heads.batch, heads.kv_heads, heads.group, window.shape[3])
    return Window(shape, (b, h * heads.group, h, d), window.offset, window.dtype)


def of(intent: Intent, b: Builder, target: Target, tile: int, parts: int) -> Sizes:
    """The sizes of *intent*. Its workspaces are the parameters behind the result."""
    heads, q, y, mask = rows_of(intent)
    if target.strict_layouts:
        raise errors.KernelError("DSF-K024", "strict layouts: fused attention lays its tiles out as main memory does")
    first = len(intent.inputs) + 1
    return Sizes(
        b, target, heads, dtype_name(q.dtype), intent.attr("scale"), intent.attr("causal"), intent.attr("softcap"),
        intent.attr("window"), q, intent.inputs[1].window, intent.inputs[2].window, mask, y, tile,
        Slots(first, first + 1, first + 2), parts,
    )  # fmt: skip
