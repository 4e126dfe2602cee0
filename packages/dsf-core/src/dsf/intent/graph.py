"""Who writes and who reads what on a tape: the questions that patterns ask."""

from __future__ import annotations

from typing import Any

from dsf.intent.tape import Op, Region, Slot, Tape, slots
from dsf.intent.views import same

__all__ = ["Graph", "Node"]


# These look at the shape of their argument, never at its values.
_SHAPE_ONLY = frozenset(
    f"{name}.default"
    for name in ("empty_like", "full_like", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros",
                 "ones_like", "zeros_like")
)  # fmt: skip


class Node:
    """An operation with what a matcher needs at hand. *name* is the target without its namespace and the underscore
    of in-place variants ("mul.Tensor" for aten.mul_.Tensor); an operation is *inplace* if it writes an argument."""

    __slots__ = ("args", "index", "inplace", "kwargs", "name", "op", "outs", "reads", "writes")

    def __init__(self, index: int, op: Op) -> None:
        signature = op.signature
        regions = tuple(map(Region, op.buffers, signature.windows))
        taken = [*slots(signature.args), *slots(signature.kwargs)]
        self.index, self.op = index, op
        self.name = _name(signature.target)
        self.args = tuple(_fill(a, regions) for a in signature.args)
        self.kwargs = {name: _fill(value, regions) for name, value in signature.kwargs}
        self.reads = () if self.name in _SHAPE_ONLY else tuple(regions[s] for s in taken)
        self.writes = tuple(regions[s] for s in signature.writes)
        self.outs = tuple(regions[s] for s in signature.outs)
        self.inplace = any(s in taken for s in signature.writes)

    def arg(self, position: int, name: str, default: Any = None) -> Any:
        """The argument, given by position or by name, or *default*."""
        return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)

    @property
    def out(self) -> Region:
        """What the operation produces: its first result, else the first region it writes."""
        return self.outs[0] if self.outs else self.writes[0]


def _name(target: str) -> str:
    name = target.removeprefix("aten.")
    base, dot, overload = name.partition(".")
    if base.startswith("__"):
        return f"bitwise_{base.strip('_').removeprefix('i')}{dot}{overload}"
    return f"{base.removesuffix('_')}{dot}{overload}"


def _fill(value: Any, regions: tuple[Region, ...]) -> Any:
    if isinstance(value, Slot):
        return regions[value.index]
    if isinstance(value, tuple):
        return tuple(_fill(v, regions) for v in value)
    return value


class Graph:
    """A tape with its readers and writers. *readers* and *writers* give, per buffer, the indices of the operations,
    one entry per occurrence; *fresh* buffers begin their life on this tape."""

    def __init__(self, tape: Tape) -> None:
        self.nodes = tuple(Node(i, op) for i, op in enumerate(tape.ops))
        self.buffers = tape.buffers
        self.readers: dict[int, list[int]] = {}
        self.writers: dict[int, list[int]] = {}
        self.fresh: set[int] = set()
        for node in self.nodes:
            for region in node.reads:
                self.readers.setdefault(region.buffer, []).append(node.index)
            for region in node.writes:
                if region.buffer not in self.readers and region.buffer not in self.writers:
                    self.fresh.add(region.buffer)
                self.writers.setdefault(region.buffer, []).append(node.index)

    def hidden(self, buffer: int) -> bool:
        """May the buffer's value stay inside a match? It is born here, written once and nobody outside holds it."""
        return buffer in self.fresh and len(self.writers[buffer]) == 1 and not self.buffers[buffer].live

    def producer(self, region: Region) -> Node | None:
        """The operation whose result is exactly *region*, if its buffer is hidden."""
        if not self.hidden(region.buffer):
            return None
        node = self.nodes[self.writers[region.buffer][0]]
        return node if same(node.out, region) else None

    def written_between(self, buffer: int, after: int, before: int) -> bool:
        """Does an operation strictly between the two indices write the buffer?"""
        return any(after < index < before for index in self.writers.get(buffer, ()))
