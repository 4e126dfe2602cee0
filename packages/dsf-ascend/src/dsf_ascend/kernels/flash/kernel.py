"""The kernel: which blocks there are, in which order a block's items are worked off, and when it may serve."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod

import torch
from attrs import frozen

from dsf import errors
from dsf.hdl import Chip
from dsf.intent.ir import Intent
from dsf.isa import Affine, Builder, Program
from dsf.isa.crew import crew_of
from dsf.isa.program import affine
from dsf.kernels.attention import Heads
from dsf.kernels.contraction import rows_copied_together
from dsf.kernels.kernel import Kernel, Limit, Rounding
from dsf.kernels.target import Target
from dsf.kernels.vector import reach
from dsf_ascend.kernels.flash.cube import Cube
from dsf_ascend.kernels.flash.sizes import ROWS, Block, Item, Sizes, Slots, Way, of
from dsf_ascend.kernels.flash.vector import STRIP, Vector

__all__ = ["KERNELS"]

NAME = "FlashAttentionScore"
SOURCE = "aclnnFlashAttentionScore; a cube core and two vector cores with flags between them: asc-devkit guide"
MOST_NESTS = 8  # of query rows that see alike many keys: more lose less to what is masked, and take longer to write


def emit(target: Target, intent: Intent, way: Way = Way(1, 512)) -> Program:
    """The program of an attention without a mask of its own."""
    b, heads = target.builder(NAME), Heads.of(intent)
    for name, region, role in zip("qkvy", (*intent.inputs, *intent.outputs), ("in", "in", "in", "out"), strict=True):
        b.param(name, role, reach(region.window))
    whole = ROWS * way.blocks
    tails = [n for n in (heads.queries // whole * whole, heads.queries % whole) if n]
    teams = {"MIX": [n for n in tails if n % 2 == 0], "PAIR": [n for n in tails if n % 2]}
    most = max(crew_of(target.chip, team).count for team, rows in teams.items() if rows)
    sizes = of(intent, b, target, way, Slots(4, 5, 6), 1)
    for name, nbytes in zip(("scores", "weights", "products"), sizes.workspace(most), strict=True):
        b.param(name, "workspace", nbytes)
    for team, rows in teams.items():
        if rows:
            parts = dict(crew_of(target.chip, team).members)["AIV"]
            with b.phase(team):
                _rows(of(intent, b, target, way, Slots(4, 5, 6), parts), rows)
    return b.build()


def _rows(sizes: Sizes, runs: list[int]) -> None:
    """The blocks of these runs of query rows, those that see most keys first."""
    whole = ROWS * sizes.way.blocks
    for start, rows in reversed([*_starts(sizes.heads.queries, runs)]):
        if rows < whole:
            _nest(sizes, start, 1, rows)
            continue
        blocks = rows // whole
        step = -(-blocks // MOST_NESTS) if sizes.causal else blocks
        for first in reversed(range(0, blocks, step)):
            _nest(sizes, start + first * whole, min(step, blocks - first), whole)


def _starts(queries: int, runs: list[int]) -> Iterator[tuple[int, int]]:
    """(first row, rows) of each run: whole blocks begin at the front, the rest follows them."""
    for rows in runs:
        yield (0 if rows == max(runs) and (len(runs) > 1 or rows == queries) else queries - rows), rows


def _nest(sizes: Sizes, start: int, blocks: int, rows: int) -> None:
    """*blocks* blocks of *rows* query rows from row *start* on, of every head."""
    heads = sizes.heads
    pieces = tuple([ROWS] * (rows // ROWS) + [rows % ROWS] * (rows % ROWS > 0))
    with sizes.b.nest(n=heads.batch, g=heads.kv_heads, h=heads.group, i=blocks) as (n, g, h, i):
        block = Block(pieces, i * rows + start, n, g, h, heads.group)
        last = start + blocks * rows if sizes.causal else heads.keys
        _Work(sizes, Cube(sizes, block), Vector(sizes, block), len(pieces)).emit(start, min(last, heads.keys))


@frozen
class _Work:
    """One block's items in order, the cube one ahead."""

    sizes: Sizes
    cube: Cube
    vector: Vector
    pieces: int

    def emit(self, first_row: int, seen: int) -> None:
        """The keys before *seen*; those that lie behind no row are plain, the others masked."""
        tile = self.sizes.way.tile
        plain = min((first_row + 1) // tile if self.sizes.causal else seen // tile, seen // tile)
        self.cube.begin()
        self.vector.begin()
        last = self._tiles(plain, seen)
        self._behind(last)
        for piece in range(self.pieces):
            self.vector.finish(piece)
        self.cube.end()
        self.vector.end()

    def _tiles(self, plain: int, seen: int) -> Item:
        """All tiles; the plain ones but the first two in a loop, of two at a time unless every buffer has its turn
        again after one. (The second one works off what the first has left, which no key was seen before.)"""
        tile, step = self.sizes.way.tile, 1 if self._even() else 2
        before, slot, rounds = None, 0, max(plain - 2, 0) // step
        for number in range(min(plain, 2)):
            before, slot = self._tile(affine(number * tile), tile, False, before, slot)
        if rounds and before is not None:
            with self.sizes.b.loop(rounds) as r:
                before = _at(before, r * (step * tile) + tile)
                for place in range(step):
                    before, slot = self._tile(r * (step * tile) + (2 + place) * tile, tile, False, before, slot)
            before = _at(before, affine((rounds * step + 1) * tile))  # where the last round has left it
        for number in range(2 + rounds * step, plain):
            before, slot = self._tile(affine(number * tile), tile, False, before, slot)
        for start in range(plain * tile, seen, tile):
            masked = self.sizes.causal
            before, slot = self._tile(affine(start), min(tile, seen - start), masked, before, slot)
        assert before is not None, "there are keys"
        return before

    def _even(self) -> bool:
        """Whether every buffer has an even number of turns in one tile."""
        shares = self.vector.shares
        strips = sum(-(-share // STRIP) for share in shares)
        chunks = sum(-(-share // 32) for share in shares)
        accumulators = self.pieces * (-(-self.sizes.way.tile // ROWS) + 1)
        return not any(n % 2 for n in (self.pieces, strips, chunks, accumulators))

    def _tile(
        self, start: Affine, width: int, masked: bool, before: Item | None, slot: int
    ) -> tuple[Item, int]:
        """One tile of keys for all pieces: scores and weights of each, and the products of the one before."""
        first = before is None
        for piece in range(self.pieces):
            item = Item(start, width, piece, slot, masked, first)
            self.cube.scores(item)
            self.vector.weights(item)
            self._behind(before)
            before, slot = item, 1 - slot
        assert before is not None
        return before, slot

    def _behind(self, item: Item | None) -> None:
        if item is not None:
            self.cube.products(item)
            self.vector.update(item)


def _at(item: Item, start: Affine) -> Item:
    return Item(start, item.width, item.piece, item.slot, item.masked, item.first)


def reference(
    intent: Intent, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """fp32 scores, powers of their distance from the row's maximum rounded to q's format, fp32 sums, one rounding."""
    group = intent.attr("groups")
    keys, values = (t.float().repeat_interleave(group, 1) for t in (k, v))
    scores = q.float() @ keys.transpose(-1, -2)
    if intent.attr("causal"):
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    powers = torch.exp((scores - scores.amax(-1, keepdim=True)) * intent.attr("scale"))
    product = powers.to(q.dtype).float() @ values
    return ((product / powers.sum(-1, keepdim=True)).to(intent.outputs[0].dtype),)


HALF = (torch.float16, torch.bfloat16)


def _formats(chip: Chip, intent: Intent) -> bool:
    operands = (*intent.inputs[:3], *intent.outputs)
    return all(r.dtype in HALF for r in operands) and len({r.dtype for r in operands}) == 1


def _plain(chip: Chip, intent: Intent) -> bool:
    return not intent.attr("has_mask") and intent.attr("softcap") is None and intent.attr("window") is None


def _rising(chip: Chip, intent: Intent) -> bool:
    return bool(intent.attr("scale") > 0)


def _widths(chip: Chip, intent: Intent) -> bool:
    q, v = intent.inputs[0].shape[3], intent.inputs[2].shape[3]
    return all(n % 16 == 0 for n in (q, v)) and v <= min(q, ROWS) and q <= 2 * ROWS


def _dense(chip: Chip, intent: Intent) -> bool:
    return all(r.stride[-1] == 1 for r in (*intent.inputs[:3], *intent.outputs))


def _filled(chip: Chip, intent: Intent) -> bool:
    return all(prod(r.shape) for r in (*intent.inputs, *intent.outputs))


LIMITS = (
    Limit("q, k, v and y are fp16 or bf16, all of one format", _formats, "aclnnFlashAttentionScore"),
    Limit("there is no mask but a causal one, no cap and no window", _plain),
    Limit("the scale is above zero", _rising, "the maximum is taken before scaling"),
    Limit("heads are multiples of 16 wide, at most 256, values at most 128 and no wider than queries", _widths,
          "aclnnFlashAttentionScore: D 1 to 768, qD = kD >= vD; L0A, L0B and L0C are halved here"),
    Limit("heads lie densely along the head dimension", _dense),
    Limit("no dimension is empty", _filled),
)  # fmt: skip
ROUNDING = Rounding(2, 64, "sums and powers in fp32 in another order, powers and result rounded once each")

KERNELS = (Kernel(NAME, "attention", "ascend", emit, reference, LIMITS, ROUNDING, SOURCE),)
