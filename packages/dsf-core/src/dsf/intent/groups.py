"""Which intents are one block of a model, for a kernel that takes them at once and for people."""

from __future__ import annotations

from collections.abc import Iterator

from dsf.intent.fuse import activation
from dsf.intent.ir import Intent
from dsf.intent.views import same

__all__ = ["mark"]


def mark(intents: list[Intent]) -> list[Intent]:
    """*intents*, those of a block marked with its kind and their role in it."""
    makers = {r.buffer: at for at, intent in enumerate(intents) for r in intent.outputs}
    takers: dict[int, list[int]] = {}
    for at, intent in enumerate(intents):
        for buffer in {r.buffer for r in intent.inputs}:
            takers.setdefault(buffer, []).append(at)
    blocks = _Blocks(intents, makers, takers)
    for at, intent in enumerate(intents):
        if intent.kind == "gated_activation":
            blocks.gated(at)
        elif intent.kind in ("elementwise", "linear"):
            blocks.plain(at)
    for at, intent in enumerate(intents):
        if intent.kind == "grouped_linear":
            blocks.experts(at)
    return blocks.intents


class _Blocks:
    def __init__(self, intents: list[Intent], makers: dict[int, int], takers: dict[int, list[int]]) -> None:
        self.intents, self.makers, self.takers = intents, makers, takers
        self.members: dict[int, list[int]] = {}  # by the anchor of their block

    def put(self, kind: str, anchor: int, roles: dict[int, str]) -> None:
        for at, role in roles.items():
            self.intents[at] = self.intents[at].in_group(kind, anchor, role)
        self.members[anchor] = list(roles)

    def before(self, at: int) -> Iterator[int]:
        """Who makes the inputs of *at*."""
        for region in self.intents[at].inputs:
            if region.buffer in self.makers and self.makers[region.buffer] < at:
                yield self.makers[region.buffer]

    def after(self, at: int) -> list[int]:
        """Who takes the first output of *at*."""
        return [taker for taker in self.takers.get(self.intents[at].outputs[0].buffer, ()) if taker > at]

    def _next(self, at: int, kind: str) -> int | None:
        """The *kind* that takes the first output of *at* as its first input."""
        buffer = self.intents[at].outputs[0].buffer
        found = (t for t in self.after(at) if self.intents[t].kind == kind)
        return next((t for t in found if self.intents[t].inputs[0].buffer == buffer), None)

    # feed-forward

    def gated(self, at: int) -> None:
        """The linears around a gated activation: gate, up (or both in one), down."""
        intent = self.intents[at]
        made = [self.makers.get(r.buffer, at) for r in intent.inputs]
        if any(m >= at or self.intents[m].kind != "linear" for m in made):
            return
        gate, up = made
        down = self._next(at, "linear")
        if down is None or not same(self.intents[gate].inputs[0], self.intents[up].inputs[0]):
            return
        roles = {gate: "gate", up: "up"} if gate != up else {gate: "gate_up"}
        self.put("gated_ffn", intent.ops[-1], {**roles, at: "activation", down: "down"})

    def plain(self, at: int) -> None:
        """An activation between two linears, in the first of them or for itself."""
        intent = self.intents[at]
        roles: dict[int, str] = {}
        if intent.kind == "linear":
            if intent.attr("activation") is None:
                return
            roles[at] = "up"
        else:
            up = next(self.before(at), None)
            if up is None or len(intent.inputs) != 1 or self.intents[up].kind != "linear":
                return
            if activation(intent.attr("expr")) is None:
                return
            roles |= {up: "up", at: "activation"}
        down = self._next(at, "linear")
        if down is not None and self.intents[down].group is None:
            self.put("ffn", intent.ops[-1], {**roles, down: "down"})

    # experts

    def experts(self, at: int) -> None:
        """Around the second product of the experts: where tokens are sent, and how they come back."""
        down = self.intents[at]
        inner, first = self._inner(at)
        if first is None:
            return
        gate_up = self.intents[first]
        roles = dict.fromkeys(inner, "activation") | {first: "gate_up", at: "down"}
        self._route(first, roles)
        self._combine(at, roles)
        self._shared(roles)
        assert gate_up.kind == down.kind
        self.put("moe", down.ops[-1], roles)

    def _inner(self, at: int) -> tuple[list[int], int | None]:
        """What lies between the two products of the same experts, and the first of them."""
        ends, waiting = self.intents[at].inputs[2], [self.makers.get(self.intents[at].inputs[0].buffer, at)]
        inner: list[int] = []
        while waiting:
            here = waiting.pop()
            intent = self.intents[here]
            if intent.kind == "grouped_linear" and here != at and same(intent.inputs[2], ends):
                return inner, here
            if intent.kind in ("gated_activation", "elementwise") and here not in inner and here < at:
                inner.append(here)
                waiting += list(self.before(here))
        return [], None

    _ROUTING = frozenset({"softmax", "top_k", "elementwise", "reduce", "gather", "scatter", "copy", "fill", "iota",
                          "sort", "index", "histogram", "cumsum", "nothing", "index_put"})  # fmt: skip

    def _route(self, first: int, roles: dict[int, str]) -> None:
        """Back from the first product to the router: sorting is dispatch, what decides is top_k."""
        x = self.makers.get(self.intents[first].inputs[0].buffer)
        tokens = self.intents[x].inputs[0].buffer if x is not None and self.intents[x].kind == "index" else None
        waiting = [(at, "dispatch") for at in self.before(first)]
        while waiting:
            at, role = waiting.pop()
            intent = self.intents[at]
            if at in roles or self.makers.get(tokens if tokens is not None else -1) == at:
                continue
            if intent.kind == "linear":
                roles[at] = "router"
            elif intent.kind in self._ROUTING:
                role = "top_k" if intent.kind == "top_k" else role
                roles[at] = role
                waiting += [(source, role) for source in self.before(at)]

    _RETURNING = frozenset({"elementwise", "index", "copy", "index_put", "scatter"})

    def _combine(self, at: int, roles: dict[int, str]) -> None:
        """On from the last product until every token's parts are one."""
        while True:
            following = self.after(at)
            if len(following) != 1:
                return
            at = following[0]
            intent = self.intents[at]
            if intent.kind not in self._RETURNING and intent.kind != "reduce":
                return
            roles[at] = "combine"
            for source in self.before(at):
                self._gather_back(source, roles)
            if intent.kind == "reduce" or (intent.kind == "index_put" and intent.attr("accumulate")):
                return

    def _gather_back(self, at: int, roles: dict[int, str]) -> None:
        """What only prepares the way back: weights in the order of the experts, the inverse permutation."""
        if at in roles or self.intents[at].kind not in ("index", "index_put", "iota", "nothing"):
            return
        roles[at] = "combine"
        for source in self.before(at):
            self._gather_back(source, roles)

    def _shared(self, roles: dict[int, str]) -> None:
        """Feed-forward blocks that read what the router reads are experts of every token."""
        router = next((at for at, role in roles.items() if role == "router"), None)
        if router is None:
            return
        tokens = {self.intents[router].inputs[0].buffer}
        tokens |= {r.buffer for at in self.before(router) if self.intents[at].kind == "elementwise"
                   for r in self.intents[at].inputs}  # fmt: skip
        for entry in {t for buffer in tokens for t in self.takers.get(buffer, ())}:
            block = self.intents[entry].group
            if block is not None and block.kind == "gated_ffn" and block.role != "down":
                for at in self.members[block.anchor]:
                    roles[at] = "shared"
