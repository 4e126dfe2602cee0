"""The kernel: which blocks there are, in which order a block's items are worked off, and when it may serve."""

from __future__ import annotations

from math import prod

import torch
from attrs import frozen

from dsf.hdl import Chip
from dsf.intent.ir import Intent
from dsf.isa import Affine, Program
from dsf.isa.crew import crew_of
from dsf.isa.program import affine
from dsf.kernels.kernel import Kernel, Limit, Rounding, Variant
from dsf.kernels.target import Target
from dsf.kernels.vector import reach
from dsf_ascend.kernels.flash.cube import Cube
from dsf_ascend.kernels.flash.sizes import ROWS, SLOTS, Block, Item, Sizes, of, rows_of
from dsf_ascend.kernels.flash.vector import Vector

__all__ = ["KERNELS"]

NAME = "FlashAttentionScore"
SOURCE = "aclnnFlashAttentionScore; a cube core and two vector cores with flags between them: asc-devkit guide"
AHEAD = 2  # tiles of scores that the cube computes before it asks for the first one's weights
MOST_NESTS = 8  # of query rows that see alike many keys: more lose less to what is masked, and take longer to write


TILES = (512, 256, 128)


def tiles(target: Target, intent: Intent) -> tuple[Variant, ...]:
    """How many keys at a time are worth trying: as many as fit, or so few that more cores have something to do."""
    keys, added = intent.inputs[1].shape[2], intent.attr("has_mask") and intent.inputs[3].dtype.is_floating_point
    fitting = TILES[1:] if added else TILES  # UB has no room for strips of a mask of numbers in the largest
    worth = [(tile,) for tile in fitting if tile < 2 * keys or tile == fitting[-1]]
    return tuple(worth[: 1 if keys > 4 * TILES[0] else 2])


def emit(target: Target, intent: Intent, variant: Variant = ()) -> Program:
    """The program of an attention, so many keys at a time."""
    tile = int((variant or tiles(target, intent)[0])[0])
    b, heads = target.builder(NAME), rows_of(intent)[0]
    for name, region in zip(("q", "k", "v", "mask"), intent.inputs, strict=False):
        b.param(name, "in", reach(region.window))
    b.param("y", "out", reach(intent.outputs[0].window))
    whole = heads.queries // ROWS * ROWS
    runs: dict[str, list[tuple[int, int]]] = {"MIX": [], "PAIR": []}  # two vector cores share even rows
    for start, rows in ((whole, heads.queries - whole), (0, whole)):
        if rows:
            runs["PAIR" if rows % 2 else "MIX"].append((start, rows))
    crews = {team: crew_of(target.chip, team) for team, own in runs.items() if own}
    parts = {team: dict(crew.members)["AIV"] for team, crew in crews.items()}
    sizes = {team: of(intent, b, target, tile, parts[team]) for team in crews}
    room = next(iter(sizes.values())).workspace(max(crew.count for crew in crews.values()))
    for name, nbytes in zip(("scores", "weights", "products"), room, strict=True):
        b.param(name, "workspace", nbytes)
    for team in crews:
        with b.phase(team):
            for start, rows in runs[team]:
                _rows(sizes[team], start, rows)
    return b.build()


def _rows(sizes: Sizes, start: int, rows: int) -> None:
    """The blocks of a run of query rows, those that see most keys first."""
    if rows < ROWS:
        _nest(sizes, start, 1, rows)
        return
    blocks = rows // ROWS
    step = -(-blocks // MOST_NESTS) if sizes.causal else blocks
    for first in reversed(range(0, blocks, step)):
        _nest(sizes, start + first * ROWS, min(step, blocks - first), ROWS)


def _nest(sizes: Sizes, start: int, blocks: int, rows: int) -> None:
    """*blocks* blocks of *rows* query rows from row *start* on, of every head."""
    heads = sizes.heads
    with sizes.b.nest(n=heads.batch, g=heads.kv_heads, h=heads.group, i=blocks) as (n, g, h, i):
        block = Block(rows, i * rows + start, n, g, h, heads.group)
        seen = min(start + blocks * rows, heads.keys) if sizes.causal else heads.keys
        low = 0 if sizes.window is None else max(start + 1 - sizes.window, 0) // sizes.tile
        plain = min(start + 1, seen) // sizes.tile if sizes.causal and sizes.window is None else seen // sizes.tile
        _Work(sizes, Cube(sizes, block), Vector(sizes, block), low).emit(max(plain - low, 0), seen)


@frozen
class _Work:
    """One block's items in order, the cube two ahead."""

    sizes: Sizes
    cube: Cube
    vector: Vector
    low: int

    def emit(self, plain: int, seen: int) -> None:
        """The keys before *seen* from tile number *low* on: so many *plain* tiles, which lie behind no row (where there
        is a window: whole ones), then the others."""
        self.cube.begin()
        self.vector.begin()
        for item in self._items(plain, seen)[-AHEAD:]:
            self._behind(item)
        self.vector.finish()
        self.cube.end()
        self.vector.end()

    def _items(self, plain: int, seen: int) -> list[Item]:
        """Emits every tile's scores and weights, and the products of all but the last two; the answer is all of them
        that stand outside a loop. In the loop, of two tiles, every buffer has its turn again."""
        tile, items = self.sizes.tile, list[Item]()
        straight = min(plain, AHEAD + 1)  # the products of the first tile are worked off with the third one
        rounds = (plain - straight) // 2
        for number in range(straight):
            items.append(self._tile(self._item(affine(number), 0), items))
        if rounds:
            with self.sizes.b.loop(rounds) as r:
                inside = [self._item(r * 2 + (straight - n), r) for n in range(AHEAD, 0, -1)]
                for place in range(2):
                    inside.append(self._tile(self._item(r * 2 + (straight + place), r), inside))
            items += [self._item(affine(straight + 2 * rounds - n), 0) for n in range(AHEAD, 0, -1)]
        for number in range(straight + 2 * rounds, plain):
            items.append(self._tile(self._item(affine(number), 0), items))
        for number, start in enumerate(range((self.low + plain) * tile, seen, tile), plain):
            width, masked = min(tile, seen - start), self.sizes.causal
            item = Item(affine(start), width, affine(number % SLOTS), masked, number == 0)
            items.append(self._tile(item, items))
        return items

    def _item(self, number: Affine, r: Affine | int) -> Item:
        """Plain tile *number*, which is const + 2 * r, from the lowest one on."""
        first = number.const % SLOTS
        slot = affine(first) if isinstance(r, int) else first + (r % 2) * (2 if first < 2 else -2)
        start = (number + self.low) * self.sizes.tile
        return Item(start, self.sizes.tile, slot, self.sizes.window is not None, number == affine(0))

    def _tile(self, item: Item, before: list[Item]) -> Item:
        """One tile's scores and weights, and the products of the one that is *AHEAD* tiles back."""
        self.cube.scores(item)
        self.vector.weights(item)
        if len(before) >= AHEAD:
            self._behind(before[-AHEAD])
        return item

    def _behind(self, item: Item) -> None:
        self.cube.products(item)
        self.vector.update(item)


def reference(
    intent: Intent, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, ...]:
    """fp32 scores, powers of their distance from the row's maximum rounded to q's format, fp32 sums, one rounding."""
    group, cap, scale = intent.attr("groups"), intent.attr("softcap"), intent.attr("scale")
    keys, values = (t.float().repeat_interleave(group, 1) for t in (k, v))
    scores = q.float() @ keys.transpose(-1, -2) * scale
    if cap is not None:
        scores = torch.tanh(scores / cap) * cap
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask.float()
    if intent.attr("causal"):
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        window = intent.attr("window")
        scores = scores.masked_fill(~(seen if window is None else seen & ~seen.tril(-window)), -torch.inf)
    powers = torch.exp(scores - scores.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).min))
    total = powers.sum(-1, keepdim=True).clamp(min=1.0)
    return ((powers.to(q.dtype).float() @ values / total).to(intent.outputs[0].dtype),)


HALF = (torch.float16, torch.bfloat16)


def _formats(chip: Chip, intent: Intent) -> bool:
    operands = (*intent.inputs[:3], *intent.outputs)
    return all(r.dtype in HALF for r in operands) and len({r.dtype for r in operands}) == 1


def _one_sees_all(chip: Chip, intent: Intent) -> bool:
    q, k = intent.inputs[0].shape[2], intent.inputs[1].shape[2]
    return not intent.attr("causal") or q > 1 or k == 1


def _masks(chip: Chip, intent: Intent) -> bool:
    if not intent.attr("has_mask"):
        return True
    mask = intent.inputs[3]
    return mask.dtype in (torch.bool, *HALF, torch.float32) and (mask.stride[3] == 1 or mask.shape[3] == 1)


def _windows(chip: Chip, intent: Intent) -> bool:
    return intent.attr("window") is None or (intent.attr("causal") and intent.attr("window") > 0)


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
    Limit("a mask is bool, fp16, bf16 or fp32 and lies densely along the keys", _masks),
    Limit("a window is of causal attention and not empty", _windows),
    Limit("a single query sees every key", _one_sees_all),
    Limit("the scale is above zero", _rising, "the maximum is taken before scaling"),
    Limit("heads are multiples of 16 wide, at most 256, values at most 128 and no wider than queries", _widths,
          "aclnnFlashAttentionScore: D 1 to 768, qD = kD >= vD; L0A, L0B and L0C are halved here"),
    Limit("heads lie densely along the head dimension", _dense),
    Limit("no dimension is empty", _filled),
)  # fmt: skip
ROUNDING = Rounding(6, 64, "powers of the distance from the highest score so far, rounded once, as is the result")

KERNELS = (Kernel(NAME, "attention", "ascend", emit, reference, LIMITS, ROUNDING, SOURCE, tiles),)
