"""How a row walks back over the tape: what it has claimed, the choices it made, and what must stay visible.

A matcher reads like the model's source, backwards; wherever it finds something else it raises `Miss`. Where the source
leaves a choice (the order of factors, an optional cast) it says `pick`, and is run again with the next choice when it
misses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from attrs import evolve, frozen

from dsf.intent.graph import Graph, Node
from dsf.intent.ir import Intent
from dsf.intent.tape import Region
from dsf.intent.views import is_contiguous, same

__all__ = ["Match", "Matcher", "Miss", "Pattern", "cast_source", "match", "miss", "require"]

T = TypeVar("T")


class Miss(Exception):
    """The structure in front of the matcher is not the one its row describes."""


class Match:
    """What a row has claimed so far, from its anchor back; and the choices it made on the way."""

    def __init__(self, graph: Graph, anchor: Node, claimed: set[int], script: list[int]) -> None:
        self.graph, self.anchor = graph, anchor
        self.nodes = [anchor]
        self._claimed, self._script = claimed, script
        self._choices: list[tuple[int, int]] = []

    def pick(self, options: Sequence[T]) -> T:
        """One of *options*; the next one after each miss."""
        at = len(self._choices)
        choice = self._script[at] if at < len(self._script) else 0
        self._choices.append((choice, len(options)))
        return options[choice]

    def next_script(self) -> list[int] | None:
        """The choices to try after this miss; None when all have been tried."""
        choices = self._choices[:]
        while choices and choices[-1][0] + 1 == choices[-1][1]:
            choices.pop()
        return [*(c for c, _ in choices[:-1]), choices[-1][0] + 1] if choices else None

    def made_by(self, region: Region, *names: str) -> Node:
        """The operation that makes *region*, one of *names*; it becomes part of the match."""
        node = self.graph.producer(region)
        if node is None or node.name not in names or node.index in self._claimed:
            raise Miss
        if node not in self.nodes:
            self.nodes.append(node)
        return node

    def made_as(self, region: Region, *names: str) -> Node:
        """The operation that makes *region*, perhaps under another shape: both lie without gaps in the same place."""
        if not self.graph.hidden(region.buffer):
            raise Miss
        node = self.graph.nodes[self.graph.writers[region.buffer][0]]
        out = node.out
        if not same(out, region):
            require(out.dtype == region.dtype and out.offset == region.offset and out.numel == region.numel)
            require(is_contiguous(out) and is_contiguous(region))
        return self.made_by(out, *names)

    def maker(self, region: Region) -> str:
        """The name of the operation that makes *region* (perhaps under another shape); empty where that is seen by
        others."""
        return self.graph.maker(region.buffer)

    def operands(self, node: Node, *makers: str) -> tuple[Region, Region]:
        """The two tensors of a commutative operation, in either order; the first made by one of *makers*, if there are
        any. An `add` with a factor is none."""
        a, b = node.args[:2]
        if not (isinstance(a, Region) and isinstance(b, Region)) or node.op.signature.kwargs:
            raise Miss
        if not makers:
            return self.pick(((a, b), (b, a)))
        maker = self.graph.maker
        orders = [order for order in ((a, b), (b, a)) if maker(order[0].buffer) in makers]
        if not orders:
            raise Miss
        return orders[0] if len(orders) == 1 else self.pick(orders)

    def through_cast(self, region: Region) -> Region:
        """What *region* was before a cast, or *region* itself."""
        node = self.graph.producer(region)
        if node is None or node.name != "_to_copy.default" or node.args[0].shape != region.shape:
            return region
        if self.pick((True, False)):
            return cast_source(self.made_by(region, node.name))
        return region

    def finish(self, intent: Intent) -> Intent:
        """The intent with all it covers, if no value it hides is seen elsewhere and no input changes meanwhile."""
        inside, graph, last = {node.index for node in self.nodes}, self.graph, self.anchor.index
        for node in self.nodes:
            if node is self.anchor:
                continue
            buffers = node.op.buffers
            for slot in node.op.signature.writes:
                require(graph.hidden(buffers[slot]) and inside.issuperset(graph.readers.get(buffers[slot], ())))
            for slot in node.facts.reads:
                require(not graph.written_between(buffers[slot], node.index, last))
        return intent if len(inside) == 1 else evolve(intent, ops=tuple(sorted(inside)))


def require(condition: object) -> None:
    if not condition:
        raise Miss


def miss() -> NoReturn:
    raise Miss


def cast_source(node: Node) -> Region:
    """The operand of a cast."""
    source: Region = node.args[0]
    return source


Matcher = Callable[[Match], Intent]


@frozen
class Pattern:
    """A row: *anchors* are the operations that may end the structure, *matcher* walks back from one of them.

    Most anchors end something else. *needs* are operations that the structure has: a tape without one of them is not
    looked at. *after*: one of them makes an operand of the anchor, the one of number *operand* if that is said."""

    name: str
    anchors: tuple[str, ...]
    matcher: Matcher
    needs: tuple[str, ...] = ()
    after: frozenset[str] = frozenset()
    operand: int | None = None

    def may_end_in(self, graph: Graph, node: Node) -> bool:
        """Is it worth walking back from *node*?"""
        after, slots = self.after, node.facts.reads
        if not after:
            return True
        maker, buffers = graph.maker, node.op.buffers
        for slot in slots if self.operand is None else slots[self.operand : self.operand + 1]:
            if maker(buffers[slot]) in after:
                return True
        return False


def match(pattern: Pattern, graph: Graph, anchor: Node, claimed: set[int]) -> Intent | None:
    """The intent that *pattern* sees ending in *anchor*, without the operations already *claimed*."""
    script: list[int] | None = []
    while script is not None:
        attempt = Match(graph, anchor, claimed, script)
        try:
            return attempt.finish(pattern.matcher(attempt))
        except Miss:
            script = attempt.next_script()
    return None
