"""V: reductions of blocks, pairs and repeats, and instructions that move numbers to other places of UB. [asc-devkit:
vector API, reduction, data conversion, gather, sort]

An index counts elements (or blocks) of its window; the chip counts bytes. A structure of a score and its index is a
pair of float32 here, the second one holding the index's bits; scores in float16 are left out, as their pairs are half
padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from dsf.hdl import Chip
from dsf.isa import Isa, accumulate, laws, read, write
from dsf.isa.families import in_place, in_range, one_by_one
from dsf.isa.program import Instruction
from dsf.isa.rules import holds_numbers, limit, one_dtype, one_shape, whole
from dsf.isa.table import Cycles, Role, Row, Rule

__all__ = ["declare"]

SOURCE = "asc-devkit guide, vector instruction throughput and the API of each instruction"
FLOATS = ("float16", "float32")
NUMBERS = (*FLOATS, "int32", "int16")
STORED = (*NUMBERS, "bfloat16")
Semantics = Callable[..., torch.Tensor]


def declare(isa: Isa, rules: Iterable[Rule]) -> None:
    """Add them all."""
    each = tuple(rules)
    _add_reductions(isa, each)
    _add_moves(isa, each)
    _add_gathers(isa, each)
    _add_sorts(isa, each)


def _row(
    isa: Isa, name: str, law: Cycles, roles: dict[str, Role], semantics: Semantics, text: str, rules: Iterable[Rule],
    implements: str, opclass: str, lanes: Callable[..., Any] | None = None,
) -> None:  # fmt: skip
    form = in_place(semantics)
    isa.add(
        Row(name, "V", law, tuple(roles.items()), semantics, text, form, tuple(rules), implements, None, None, SOURCE,
            opclass, lanes or form)
    )  # fmt: skip


def _add_reductions(isa: Isa, rules: tuple[Rule, ...]) -> None:
    """Sums add neighbours in pairs, and the pairs in pairs, as the guide draws it."""
    roles = {"dst": write("UB", dtypes=FLOATS), "a": read("UB", dtypes=FLOATS)}
    kinds: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"Sum": tree_sum, "Max": _amax, "Min": _amin}
    for kind, function in kinds.items():
        lower = kind.lower()
        _row(isa, f"WholeReduce{kind}", laws.reduction, roles, _of_rows(function),
             f"dst = {lower} of each row of a, a row being one repeat", (one_dtype(0, 1), one_a_repeat, *rules),
             f"repeat.{lower}", "reduce")  # fmt: skip
        _row(isa, f"BlockReduce{kind}", laws.reduction, roles, _of_blocks(function),
             f"dst = {lower} of each block of 32 bytes of a", (one_dtype(0, 1), one_a_block, *rules),
             f"block.{lower}", "reduce")  # fmt: skip
    _row(isa, "RepeatReduceSum", laws.reduction, roles, _of_rows(tree_sum),
         "dst = sum of each row of a, a row being one repeat", (one_dtype(0, 1), one_a_repeat, *rules),
         "repeat.sum", "reduce")  # fmt: skip
    _row(isa, "PairReduceSum", laws.reduction, roles, _of_blocks(tree_sum), "dst = sums of neighbours in a",
         (one_dtype(0, 1), one_a_pair, *rules), "pair.sum", "reduce")  # fmt: skip


def tree_sum(x: torch.Tensor) -> torch.Tensor:
    """The sum over the last dimension, which stays with size 1: neighbours first, in x's own format."""
    while x.shape[-1] > 1:
        even = x.shape[-1] // 2 * 2
        pairs = x[..., 0:even:2] + x[..., 1:even:2]
        x = torch.cat([pairs, x[..., even:]], -1) if even < x.shape[-1] else pairs
    return x


def _amax(x: torch.Tensor) -> torch.Tensor:
    return x.amax(-1, keepdim=True)


def _amin(x: torch.Tensor) -> torch.Tensor:
    return x.amin(-1, keepdim=True)


def _of_rows(function: Callable[[torch.Tensor], torch.Tensor]) -> Semantics:
    def semantics(dst: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return function(a)

    return semantics


def _of_blocks(function: Callable[[torch.Tensor], torch.Tensor]) -> Semantics:
    def semantics(dst: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return function(a.unflatten(-1, (dst.shape[-1], -1))).squeeze(-1)

    return semantics


def one_a_repeat(chip: Chip, ins: Instruction) -> str | None:
    """A row of the source is one repeat, 256 bytes at most, and leaves one number; 255 repeats."""
    dst, a = ins.operands
    size, most = limit(chip, "vector_repeat_bytes"), limit(chip, "vector_repeats")
    if len(a.shape) != 2 or dst.shape != (a.shape[0], 1):
        return f"{a.shape} leaves one number for each row, not {dst.shape}"
    if a.shape[1] * a.itemsize > size:
        return f"a row of {a.shape[1] * a.itemsize} bytes; one repeat has {size}"
    return f"{a.shape[0]} repeats; expected {most} at most" if a.shape[0] > most else None


def one_a_block(chip: Chip, ins: Instruction) -> str | None:
    """Every 32 bytes of a row leave one number."""
    dst, a = ins.operands
    width = limit(chip, "vector_block_bytes") // a.itemsize
    fits = a.shape[-1] % width == 0 and dst.shape == (*a.shape[:-1], a.shape[-1] // width)
    return None if fits else f"{a.shape} leaves one number for each block of {width}, not {dst.shape}"


def one_a_pair(chip: Chip, ins: Instruction) -> str | None:
    """Every two numbers of a row leave one."""
    dst, a = ins.operands
    fits = a.shape[-1] % 2 == 0 and dst.shape == (*a.shape[:-1], a.shape[-1] // 2)
    return None if fits else f"{a.shape} leaves one number for each pair, not {dst.shape}"


def _add_moves(isa: Isa, rules: tuple[Rule, ...]) -> None:
    wide = {"dst": write("UB", dtypes=STORED), "a": read("UB", dtypes=STORED)}
    _row(isa, "Copy", laws.elementwise, wide, _same, "dst = a, within UB", (one_shape, one_dtype(0, 1), *rules), "copy",
         "default")  # fmt: skip
    halves = {"dst": write("UB", dtypes=("float16", "int16")), "a": read("UB", dtypes=("float16", "int16"))}
    _row(isa, "Transpose", laws.elementwise, halves, _turned, "dst (16, 16) = a (16, 16) transposed",
         (one_dtype(0, 1), a_square_of_16, *rules), "transpose.square", "transpose")  # fmt: skip
    _row(isa, "TransDataTo5HD", laws.over(1), wide, _turned, "dst (n, 16) = a (16, n) transposed, n in blocks",
         (one_dtype(0, 1), sixteen_rows_turned, *rules), "transpose.rows", "transpose")  # fmt: skip
    _row(isa, "Brcb", laws.over(0), wide, _spread, "dst (n, C0) = a (n, 1) in every place of its block, 8 a repeat",
         (one_dtype(0, 1), blocks_of_eight, *rules), "broadcast.blocks", "default")  # fmt: skip


def _same(dst: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    return a


def _turned(dst: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    return a.transpose(-1, -2)


def _spread(dst: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    return a.expand(dst.shape)


def a_square_of_16(chip: Chip, ins: Instruction) -> str | None:
    """A fractal of 16-bit numbers is 16 x 16."""
    shapes = {o.shape for o in ins.operands}
    return None if shapes == {(16, 16)} else f"expected (16, 16) for both, not {' and '.join(map(str, shapes))}"


def sixteen_rows_turned(chip: Chip, ins: Instruction) -> str | None:
    """16 rows of whole blocks become 16 columns."""
    dst, a = ins.operands
    width = limit(chip, "vector_block_bytes") // a.itemsize
    fits = len(a.shape) == 2 and a.shape[0] == 16 and a.shape[1] % width == 0 and dst.shape == a.shape[::-1]
    return None if fits else f"expected 16 rows of whole blocks of {width} and their transpose, not {a.shape}"


def blocks_of_eight(chip: Chip, ins: Instruction) -> str | None:
    """Each repeat spreads 8 numbers over 8 blocks."""
    dst, a = ins.operands
    width = limit(chip, "vector_block_bytes") // a.itemsize
    fits = dst.shape[1:] == (width,) and a.shape == (dst.shape[0], 1) and dst.shape[0] % 8 == 0
    return None if fits else f"expected (8 n, {width}) of (8 n, 1), not {dst.shape} of {a.shape}"


def _add_gathers(isa: Isa, rules: tuple[Rule, ...]) -> None:
    index = read("UB", dtypes=("int32",))
    dst, table = write("UB", dtypes=NUMBERS), read("UB", dtypes=NUMBERS)
    _row(isa, "Gather", laws.over(0), {"dst": dst, "a": table, "index": index}, _gathered,
         "dst[i] = a[index[i]]; an index out of range is an error", (one_dtype(0, 1), one_index_each, *rules),
         "gather.elements", "gather", one_by_one(in_place(_gathered)))  # fmt: skip
    _row(isa, "Gatherb", laws.over(0), {"dst": dst, "a": table, "index": index}, _gathered_blocks,
         "dst[i] = block index[i] of a, 8 a repeat; an index out of range is an error",
         (one_dtype(0, 1), one_index_a_block, *rules), "gather.blocks", "gather_block",
         one_by_one(in_place(_gathered_blocks)))  # fmt: skip
    _row(isa, "GatherMask", laws.over(1), {"dst": dst, "a": table}, _every,
         f"dst = of each row of a, by pattern: {PATTERNS}",
         (one_dtype(0, 1), holds_numbers("pattern"), the_pattern_exists, *rules), "gather.pattern",
         "gather_mask")  # fmt: skip
    chosen = {"dst": accumulate("UB", dtypes=NUMBERS), "a": table, "mask": read("UB", dtypes=("bool",))}
    _row(isa, "GatherMask.Mask", laws.over(1), chosen, _chosen,
         "dst begins with the numbers of a where mask, in order; the rest of dst stays",
         (one_shape, one_dtype(0, 1), one_row, *rules), "gather.mask", "gather_mask",
         one_by_one(in_place(_chosen)))  # fmt: skip


def _gathered(dst: torch.Tensor, a: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return a.reshape(-1)[in_range(index, a.numel())].view(dst.shape)


def _gathered_blocks(dst: torch.Tensor, a: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return a[in_range(index, a.shape[0])]


STEPS = {1: (2, 0), 2: (2, 1), 3: (4, 0), 4: (4, 1), 5: (4, 2), 6: (4, 3), 7: (1, 0)}
PATTERNS = "1 and 2 every other one, 3 to 6 each fourth, 7 all"


def _every(dst: torch.Tensor, a: torch.Tensor, pattern: int) -> torch.Tensor:
    step, first = STEPS[pattern]
    return a[..., first::step]


def _chosen(dst: torch.Tensor, a: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    found = a[mask]
    return torch.cat([found, dst[found.numel() :]])


def one_index_each(chip: Chip, ins: Instruction) -> str | None:
    """As many indices as numbers."""
    dst, _, index = ins.operands
    return None if dst.shape == index.shape else f"{dst.shape} takes as many indices, not {index.shape}"


def one_index_a_block(chip: Chip, ins: Instruction) -> str | None:
    """Blocks of 32 bytes, 8 a repeat, an index for each."""
    dst, a, index = ins.operands
    width = limit(chip, "vector_block_bytes") // a.itemsize
    fits = dst.shape[1:] == a.shape[1:] == (width,) and index.shape == (dst.shape[0],) and dst.shape[0] % 8 == 0
    wanted = f"expected (8 n, {width}) from (m, {width}) by (8 n)"
    return None if fits else f"{wanted}, not {dst.shape} from {a.shape} by {index.shape}"


def the_pattern_exists(chip: Chip, ins: Instruction) -> str | None:
    """Patterns 1 to 7; a row of the result is as long as the pattern leaves it."""
    dst, a = ins.operands
    pattern = whole(ins, "pattern")
    if pattern not in STEPS:
        return f"pattern={pattern}; expected 1 to 7"
    step, _ = STEPS[pattern]
    fits = a.shape[-1] % step == 0 and dst.shape == (*a.shape[:-1], a.shape[-1] // step)
    return None if fits else f"pattern {pattern} leaves one of {step} of each row of {a.shape}, not {dst.shape}"


def one_row(chip: Chip, ins: Instruction) -> str | None:
    """The operands have one dimension."""
    shape = ins.operands[0].shape
    return None if len(shape) == 1 else f"expected one dimension, not {shape}"


def _add_sorts(isa: Isa, rules: tuple[Rule, ...]) -> None:
    pairs = write("UB", dtypes=("float32",))
    scores, index = read("UB", dtypes=("float32",)), read("UB", dtypes=("int32",))
    _row(isa, "Sort32", laws.over(1), {"dst": pairs, "a": scores, "index": index}, _sorted,
         "dst (n, 32, 2) = (score, index) of each row of 32, the largest score first; equals keep their order",
         (rows_of_32, *rules), "sort.rows", "sort")  # fmt: skip
    queue = read("UB", dtypes=("float32",))
    for queues in (2, 3, 4):
        sources = dict.fromkeys("abcd"[:queues], queue)
        _row(isa, f"MrgSort.{queues}", laws.over(0), {"dst": pairs, **sources}, _merged,
             f"dst = {queues} sorted queues of (score, index) in one, the largest score first", (queues_fit, *rules),
             f"sort.merge{queues}", "sort")  # fmt: skip


def _sorted(dst: torch.Tensor, a: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    scores, order = torch.sort(a, dim=-1, descending=True, stable=True)
    labels = index.contiguous().view(torch.float32).to(a.dtype).gather(-1, order)
    return torch.stack([scores, labels], -1)


def _merged(dst: torch.Tensor, *queues: torch.Tensor) -> torch.Tensor:
    pairs = torch.cat(queues, -2)
    order = torch.sort(pairs[..., 0], dim=-1, descending=True, stable=True)[1]
    return torch.take_along_dim(pairs, order.unsqueeze(-1), -2)


def rows_of_32(chip: Chip, ins: Instruction) -> str | None:
    """Each repeat sorts 32 numbers."""
    dst, a, index = (o.shape for o in ins.operands)
    fits = len(a) == 2 and a[1] == 32 and index == a and dst == (*a, 2)
    return None if fits else f"expected (n, 32, 2) of (n, 32) and (n, 32), not {dst} of {a} and {index}"


def queues_fit(chip: Chip, ins: Instruction) -> str | None:
    """The result has room for all pairs."""
    dst, *queues = (o.shape for o in ins.operands)
    wanted = (sum(q[0] for q in queues if q), 2)
    fits = dst == wanted and all(len(q) == 2 and q[1] == 2 for q in queues)
    return None if fits else f"queues {', '.join(map(str, queues))} make {wanted}, not {dst}"
