"""Who writes and who reads what on a tape: the questions that patterns ask."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from attrs import frozen

from dsf.intent.tape import Op, Region, Signature, Slot, Tape, slots
from dsf.intent.views import same

__all__ = ["Graph", "Node"]


# These look at the shape of their argument, never at its values.
_SHAPE_ONLY = frozenset(
    f"{name}.default"
    for name in ("empty_like", "full_like", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros",
                 "ones_like", "zeros_like")
)  # fmt: skip


@frozen(eq=False)
class _Facts:
    """What all operations of one signature have in common: their name, and which slots they read."""

    name: str
    reads: tuple[int, ...]
    inplace: bool


@lru_cache(maxsize=1 << 16)
def _facts(signature: Signature) -> _Facts:
    name, taken = _name(signature.target), [*slots(signature.args), *slots(signature.kwargs)]
    reads = () if name in _SHAPE_ONLY else tuple(taken)
    return _Facts(name, reads, any(s in taken for s in signature.writes))


class Node:
    """An operation with what a matcher needs at hand. *name* is the target without its namespace and the underscore
    of in-place variants ("mul.Tensor" for aten.mul_.Tensor); an operation is *inplace* if it writes an argument.

    Most operations of a tape are never looked at closely, so regions and arguments are made when somebody asks."""

    __slots__ = ("_args", "_regions", "facts", "index", "inplace", "name", "op")

    def __init__(self, index: int, op: Op) -> None:
        self.index, self.op = index, op
        self.facts = facts = _facts(op.signature)
        self.name, self.inplace = facts.name, facts.inplace
        self._regions: tuple[Region, ...] | None = None
        self._args: tuple[Any, ...] | None = None

    @property
    def regions(self) -> tuple[Region, ...]:
        """The region of every slot."""
        if self._regions is None:
            self._regions = tuple(map(Region, self.op.buffers, self.op.signature.windows))
        return self._regions

    @property
    def args(self) -> tuple[Any, ...]:
        if self._args is None:
            regions = self.regions
            self._args = tuple([_fill(a, regions) for a in self.op.signature.args])
        return self._args

    @property
    def kwargs(self) -> dict[str, Any]:
        return {name: _fill(value, self.regions) for name, value in self.op.signature.kwargs}

    @property
    def reads(self) -> tuple[Region, ...]:
        regions = self.regions
        return tuple([regions[s] for s in self.facts.reads])

    @property
    def writes(self) -> tuple[Region, ...]:
        regions = self.regions
        return tuple([regions[s] for s in self.op.signature.writes])

    @property
    def outs(self) -> tuple[Region, ...]:
        regions = self.regions
        return tuple([regions[s] for s in self.op.signature.outs])

    def arg(self, position: int, name: str, default: Any = None) -> Any:
        """The argument, given by position or by name, or *default*."""
        return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)

    @property
    def out(self) -> Region:
        """What the operation produces: its first result, else the first region it writes."""
        signature = self.op.signature
        return self.regions[signature.outs[0] if signature.outs else signature.writes[0]]


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
        readers, writers = self.readers, self.writers
        for index, node in enumerate(self.nodes):
            buffers = node.op.buffers
            for slot in node.facts.reads:
                readers.setdefault(buffers[slot], []).append(index)
            for slot in node.op.signature.writes:
                buffer = buffers[slot]
                if buffer not in readers and buffer not in writers:
                    self.fresh.add(buffer)
                writers.setdefault(buffer, []).append(index)

        self._makers = {
            buffer: self.nodes[at[0]] for buffer, at in writers.items()
            if len(at) == 1 and buffer in self.fresh and not self.buffers[buffer].live
        }  # fmt: skip

    def hidden(self, buffer: int) -> bool:
        """May the buffer's value stay inside a match? It is born here, written once and nobody outside holds it."""
        return buffer in self._makers

    def maker(self, buffer: int) -> str:
        """The name of the operation that makes the buffer, if it is hidden; else empty."""
        node = self._makers.get(buffer)
        return node.name if node is not None else ""

    def producer(self, region: Region) -> Node | None:
        """The operation whose result is exactly *region*, if its buffer is hidden."""
        node = self._makers.get(region.buffer)
        return node if node is not None and same(node.out, region) else None

    def written_between(self, buffer: int, after: int, before: int) -> bool:
        """Does an operation strictly between the two indices write the buffer?"""
        writers = self.writers.get(buffer)
        return writers is not None and any(after < index < before for index in writers)
