"""Every leaf of every tree that ships acts: turn its preferences round, and some shape is served otherwise."""

from __future__ import annotations

from functools import cache

import pytest
from attrs import evolve
from tests.sensitivity.conftest import CHIPS, Table

from dsf import hdl
from dsf.intent.ir import Intent
from dsf.isa.program import torch_dtype
from dsf.kernels.choose import Chooser
from dsf.kernels.features import sizes
from dsf.kernels.learn import FEW, SHAPES
from dsf.kernels.target import Target
from dsf.kernels.tree import Leaf, Node, Tree, Trees
from dsf.kernels.workloads import workloads
from dsf.machine.timing import Timing
from dsf.plugins import View, registry

MOST_SHAPES = 6  # of a leaf, that are tried until one is served otherwise


@cache
def view_of(chip: str) -> View:
    return registry().view(hdl.load(chip))


@cache
def trees_of(chip: str) -> Trees:
    return view_of(chip).trees()


@cache
def learned_from(chip: str, kind: str) -> dict[int, list[Intent]]:
    """The shapes that a tree was learned from, by the leaf where they end."""
    described, found = view_of(chip).chip, {}
    for intent in workloads(kind, torch_dtype(described.numerics.preferred), "training", SHAPES.get(kind, FEW)):
        leaf, _ = trees_of(chip).by_kind[kind].walk(sizes(intent, described))
        found.setdefault(leaf.number, []).append(intent)
    return found


def turned(node: Node | Leaf, number: int, place: int) -> Node | Leaf:
    """The tree with leaf *number* preferring alone what it has at *place*."""
    if isinstance(node, Leaf):
        return evolve(node, order=(node.order[place],)) if node.number == number else node
    return evolve(node, left=turned(node.left, number, place), right=turned(node.right, number, place))


def with_leaf_turned(trees: Trees, kind: str, number: int, place: int) -> Trees:
    tree = trees.by_kind[kind]
    other = Tree(kind, tree.kernels, tree.ranges, turned(tree.root, number, place))
    return Trees({**trees.by_kind, kind: other}, trees.foreign)


def chooser(chip: str, trees: Trees) -> Chooser:
    view = view_of(chip)
    isa = view.isa()
    return Chooser.of(Target(view.chip, isa, Timing(view.chip, isa), trees=trees), view.kernels())


def served_otherwise(chip: str, kind: str, number: int) -> str | None:
    """What changes with that leaf turned, in words; None where nothing does. What it likes least is tried first."""
    before = chooser(chip, trees_of(chip))
    intents = [i for i in learned_from(chip, kind).get(number, ()) if not before.forbidden(i)][:MOST_SHAPES]
    orders = [len(leaf.order) for leaf in trees_of(chip).by_kind[kind].leaves() if leaf.number == number]
    for place in range(max(orders, default=0) - 1, -1, -1):
        after = chooser(chip, with_leaf_turned(trees_of(chip), kind, number, place))
        for intent in intents:
            if before(intent).name != after(intent).name:
                return f"{before(intent).name} to {after(intent).name} for {intent}"
    return None


CASES = [
    (chip, kind, leaf.number)
    for chip in CHIPS
    for kind, tree in trees_of(chip).by_kind.items()
    for leaf in tree.leaves()
]


@pytest.mark.parametrize(("chip", "kind", "number"), CASES, ids=[f"{c}:{k}:{n}" for c, k, n in CASES])
def test_every_leaf_acts(chip: str, kind: str, number: int, table: Table) -> None:
    found = served_otherwise(chip, kind, number)
    assert found is not None, f"{chip}: leaf {number} of {kind}: whatever it prefers, every choice is the same"
    table.add(f"{chip} {kind} leaf {number}", "preferences turned round", found[:80])


def test_a_leaf_where_no_shape_ends_is_found() -> None:
    chip = CHIPS[0]
    assert served_otherwise(chip, "linear", 10**6) is None
