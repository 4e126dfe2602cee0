"""What the trees that ship cost on shapes they were not learned from, and how a tree is learned."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from attrs import evolve

from dsf import errors, hdl
from dsf.intent.ir import key
from dsf.kernels import learn
from dsf.kernels.choose import Chooser
from dsf.kernels.learn import Sample, regret, samples
from dsf.kernels.target import Target
from dsf.kernels.tree import Leaf, Node, Tree, Trees, parse
from dsf.kernels.workloads import KINDS, PARTS, workloads
from dsf.machine.timing import Timing
from dsf.plugins import registry

UNSEEN = {"linear": 60, "matmul": 60, "attention": 4}
MEAN, MOST, WORST = 0.02, 0.15, 0.25
RARE = 0.02  # share of the shapes that may be between MOST and WORST: all of them microseconds long

needs_sklearn = pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn is in the extra 'tune'")


def chooser_of(name: str) -> Chooser:
    view = registry().view(hdl.load(name))
    isa = view.isa()
    return Chooser.of(Target(view.chip, isa, Timing(view.chip, isa), trees=view.trees()), view.kernels())


@pytest.fixture(scope="module")
def judged():
    """By chip and kind: the chip's trees, and unseen shapes with the times of all candidates."""
    found = {}
    for name in ("acme-x1", *(["ascend-910b2"] if find_spec("dsf_ascend") else [])):
        chooser = chooser_of(name)
        for kind in chooser.target.trees.by_kind:
            shapes = samples(chooser, kind, "unseen", UNSEEN.get(kind, 6))
            found[name, kind] = chooser.target.trees, shapes
    return found


def inverted(node: Node | Leaf) -> Node | Leaf:
    if isinstance(node, Leaf):
        return evolve(node, order=node.order[::-1])
    return evolve(node, left=inverted(node.left), right=inverted(node.right))


def with_leaves_inverted(trees: Trees) -> Trees:
    return Trees({kind: Tree(t.kind, t.kernels, t.ranges, inverted(t.root)) for kind, t in trees.by_kind.items()})


def too_long(kind: str, trees: Trees, shapes: tuple[Sample, ...]) -> list[str]:
    """What is beyond the goals."""
    found = regret(kind, trees, shapes)
    complaints = [f"{found.mean:.3f} in the mean"] if found.mean > MEAN else []
    beyond = sum(regret(kind, trees, (shape,)).worst > MOST for shape in shapes)
    complaints += [f"{beyond} of {len(shapes)} beyond {MOST}"] if beyond > RARE * len(shapes) else []
    return complaints + ([f"{found.worst:.3f} for {found.where}"] if found.worst > WORST else [])


def test_choices_are_near_the_best_of_all_candidates(judged):
    assert judged
    assert {
        case: found for case, (trees, shapes) in judged.items() if (found := too_long(case[1], trees, shapes))
    } == {}


def test_with_inverted_leaves_they_are_not(judged):
    for (_, kind), (trees, shapes) in judged.items():
        if kind in ("linear", "matmul"):
            assert too_long(kind, with_leaves_inverted(trees), shapes)


def test_no_shape_is_both_learned_from_and_judged_by():
    for kind in KINDS:
        parts = [{key(i) for i in workloads(kind, torch.float16, part, 50)} for part in PARTS]
        assert parts[0]
        assert parts[1]
        assert not parts[0] & parts[1]


def test_workloads_are_the_same_every_time_and_well_formed(bench):
    for kind in KINDS:
        some = workloads(kind, torch.float16, "training", 8)
        assert some == workloads(kind, torch.float16, "training", 8)
        assert len(some) == 8
        assert all(intent.kind == kind for intent in some)


# learning


def sample(m: int, k: int, **times: int) -> Sample:
    sizes = {"m": m, "n": 64, "k": k, "batch": 1, "item": 2, "transposed": 1, "cores": 8}
    return Sample(None, sizes, {(name, ()): fs for name, fs in times.items()})


def grid() -> list[Sample]:
    """`small` is best for few rows, `large` for many; the other takes twice as long."""
    return [
        sample(m, k, small=100 if m <= 32 else 200, large=200 if m <= 32 else 100)
        for m in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
        for k in (64, 128, 256, 512, 1024)
    ]


@needs_sklearn
def test_the_boundary_between_two_kernels_is_found():
    chip = hdl.load("acme-x1")
    tree = learn.learn(grid())
    trees = parse({"schema": 1, "hdl_hash": chip.hash, "trees": {"linear": tree}}, chip)
    firsts = {m: next(trees.advice("linear", sample(m, 100).sizes).order())[0] for m in (1, 32, 64, 1024)}
    assert firsts == {1: "small", 32: "small", 64: "large", 1024: "large"}
    assert [leaf.number for leaf in trees.by_kind["linear"].leaves()] == [1, 2]
    assert regret("linear", trees, grid()).worst == 0


@needs_sklearn
def test_a_leaf_that_is_wrong_for_some_of_its_shapes_is_in_doubt():
    """Nothing tells these shapes apart: one in four wants the other kernel."""
    shapes = [sample(8, 64, a=100, b=150) if n % 4 else sample(8, 64, a=120, b=100) for n in range(40)]
    (leaf,) = [learn.learn(shapes)["root"]]
    assert leaf["order"][0] == ["a", []]
    assert leaf["doubt"] == pytest.approx(0.2)


@needs_sklearn
def test_trees_are_learned_written_and_read(tmp_path):
    chooser = chooser_of("acme-x1")
    told = []
    learned = learn.tune(chooser, ["linear", "softmax"], lambda *stage: told.append(stage), 0.01)
    assert list(learned.document["trees"]) == ["linear"]  # one kernel alone serves softmax: nothing to learn
    assert told[-1][1] == told[-1][2]
    learn.write(learned, tmp_path / "acme-x1.json")
    from dsf.kernels.tree import read

    trees = read(tmp_path / "acme-x1.json", chooser.target.chip)
    assert (trees.foreign, list(trees.by_kind)) == ("", ["linear"])
    assert learned.regrets[0].kind == "linear"
    assert list(tmp_path.iterdir()) == [tmp_path / "acme-x1.json"]


def test_an_unknown_kind_is_answered_with_the_known_ones():
    with pytest.raises(errors.UsageError, match="no workloads of the kind 'magic'; expected some of linear, matmul"):
        learn.tune(chooser_of("acme-x1"), ["magic"], lambda *stage: None)


def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path):
    learned = learn.Learned("acme-x1", (), {}, ())
    with pytest.raises(errors.UsageError, match="cannot be written"):
        learn.write(learned, tmp_path / "none" / "acme-x1.json")


def test_without_scikit_learn_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.tree", None)
    with pytest.raises(errors.UsageError, match=r"pip install 'dsf-core\[tune\]'"):
        learn.check_can_learn()
