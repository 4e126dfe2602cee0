"""A small tree, checked by hand: where a walk ends, what it says of that, and when it does not decide."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from attrs import evolve

from dsf import errors, hdl
from dsf.kernels.choose import Chooser
from dsf.kernels.cutting import cut, least
from dsf.kernels.features import sizes
from dsf.kernels.kernel import Kernel
from dsf.kernels.target import Target
from dsf.kernels.tree import Trees, load, parse, read

FLAT, TALL, WIDE = ["mine", [32, 64]], ["mine", [256, 64]], ["mine", [64, 256]]


def leaf(number, *order, doubt=0.0):
    return {"leaf": number, "order": list(order), "samples": 3, "doubt": doubt}


def document(chip, root=None, **changes):
    """Few rows: flat tiles; many rows of a long product: tall ones, else wide ones."""
    tree = {
        "kernels": {"mine": [[32, 64], [256, 64], [64, 256]]},
        "range": {"m": [1, 4096], "k": [16, 8192], "item": [2, 2]},
        "root": root or {
            "feature": "m", "most": 16, "left": leaf(1, FLAT, WIDE),
            "right": {"feature": "k", "most": 1024, "left": leaf(2, WIDE, FLAT), "right": leaf(3, TALL, FLAT)},
        },
    }  # fmt: skip
    return {"schema": 1, "hdl_hash": chip.hash, "trees": {"linear": tree}} | changes


def shape(m=64, n=512, k=512, item=2):
    return {"m": m, "n": n, "k": k, "batch": 1, "item": item, "transposed": 1, "cores": 8}


@pytest.fixture
def chip():
    return hdl.load("acme-x1")


@pytest.mark.parametrize(
    ("m", "k", "number", "first", "why"),
    [
        (1, 512, 1, (32, 64), "tree: leaf 1 (m <= 16)"),
        (16, 4096, 1, (32, 64), "tree: leaf 1 (m <= 16)"),
        (17, 1024, 2, (64, 256), "tree: leaf 2 (m > 16, k <= 1024)"),
        (4096, 1025, 3, (256, 64), "tree: leaf 3 (m > 16, k > 1024)"),
    ],
)
def test_a_walk_ends_in_the_leaf_of_its_sizes_and_says_the_way(chip, m, k, number, first, why):
    advice = parse(document(chip), chip).advice("linear", shape(m=m, k=k))
    assert advice.decides
    assert (advice.leaf.number, next(advice.order())) == (number, ("mine", first))
    assert advice.why == why


def test_a_condition_is_told_once_by_its_sharpest(chip):
    root = {"feature": "m", "most": 100, "right": leaf(3, FLAT),
            "left": {"feature": "m", "most": 10, "left": leaf(1, FLAT), "right": leaf(2, FLAT)}}  # fmt: skip
    trees = parse(document(chip, root), chip)
    assert trees.advice("linear", shape(m=5)).why == "tree: leaf 1 (m <= 10)"
    assert trees.advice("linear", shape(m=50)).why == "tree: leaf 2 (m <= 100, m > 10)"


def test_what_is_left_of_whole_steps_is_a_feature(chip):
    root = {"feature": "m%16", "most": 0, "left": leaf(1, FLAT), "right": leaf(2, TALL)}
    trees = parse(document(chip, root), chip)
    assert [trees.advice("linear", shape(m=m)).leaf.number for m in (16, 17, 31, 32)] == [1, 2, 2, 1]


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"m": 4097}, "m 4097 is outside 1 to 4096"),
        ({"k": 8}, "k 8 is outside 16 to 8192"),
        ({"item": 4}, "item 4 is outside 2 to 2"),
    ],
)
def test_outside_of_what_it_was_learned_from_a_tree_does_not_decide(chip, sizes, words):
    advice = parse(document(chip), chip).advice("linear", shape(**sizes))
    assert not advice.decides
    assert advice.why == f"the tree does not decide: {words}"


def test_a_tree_of_another_description_does_not_decide_and_says_so(chip):
    trees = parse(document(chip, hdl_hash="another"), chip)
    advice = trees.advice("linear", shape())
    assert not advice.decides
    assert advice.why == "the tree does not decide: it knows another description of acme-x1"
    assert next(advice.order()) == ("mine", (64, 256))


def test_a_leaf_in_doubt_does_not_decide_alone(chip):
    advice = parse(document(chip, leaf(1, FLAT, TALL, doubt=0.3)), chip).advice("linear", shape())
    assert not advice.decides
    assert advice.why == "tree: leaf 1 narrows it down"


def test_a_kind_without_a_tree_gets_no_advice(chip):
    assert parse(document(chip), chip).advice("softmax", shape()) is None
    assert Trees().advice("linear", shape()) is None


# rules for tiles


def test_a_rule_names_the_tile_by_the_sizes(chip):
    """8 cores: 2 x 512 elements are one wave of eight tiles of 64 columns; of 128 rows, all tiles that are cut alike
    are one."""
    tiles = ((32, 64), (256, 64), (64, 256))
    assert least(shape(m=2), tiles, ("least", 4, 4, 0)) == (32, 64)
    assert least(shape(m=256, n=2048), tiles, ("least", 16, 16, 0)) == (256, 64)
    root = leaf(1, ["mine", ["least", 4, 4, 0]], FLAT, TALL, WIDE)
    advice = parse(document(chip, root), chip).advice("linear", shape(m=2))
    assert [pair[1] for pair in advice.order()] == [(32, 64), (64, 256)]


def test_edges_count_as_a_rule_says():
    """One tile of 256 x 16 has far more edge than one of 64 x 64, and as much in it."""
    tiles = ((256, 16), (64, 64))
    one = shape(m=2048, n=512)
    assert least(one, tiles, ("least", 0, 0, 0)) == (256, 16)
    assert least(one, tiles, ("least", 256, 0, 0)) == (64, 64)
    assert least(one, ((64, 64), (256, 16)), ("least", 0, 256, 0)) == (256, 16)


def test_ragged_tiles_fill_up_the_last_wave():
    """77 rows on 24 cores: 16 tiles of 64 rows and 16 of 13 are done sooner than 16 of 77."""
    one = {**shape(m=77, n=1024), "cores": 24}
    assert least(one, ((128, 64), (64, 64)), ("least", 16, 16, 0)) == (64, 64)
    assert cut(one, (128, 64)) == (77, 64)


# files


def test_a_file_is_found_by_the_name_of_the_chip_or_of_its_description(chip, tmp_path):
    (tmp_path / "acme-x1.json").write_text(json.dumps(document(chip)))
    assert load(chip, [tmp_path]).knows("linear", "mine")
    assert load(evolve(chip, name="acme-x1s"), [tmp_path]).knows("linear", "mine")
    assert not load(evolve(chip, name="other", path="other.json"), [tmp_path]).by_kind


def test_the_first_folder_that_has_one_answers(chip, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        tree = document(chip)
        tree["trees"] = {name: tree["trees"]["linear"]}
        (tmp_path / name / "acme-x1.json").write_text(json.dumps(tree))
    assert list(load(chip, [tmp_path / "none", tmp_path / "b", tmp_path / "a"]).by_kind) == ["b"]


def spoilt(how):
    def spoil(good):
        bad = copy.deepcopy(good)
        how(bad, bad["trees"]["linear"])
        return json.dumps(bad).encode()

    return spoil


BAD = {
    "no JSON": lambda good: b"{",
    "no UTF-8": lambda good: b"\xff\xfe",
    "a list": lambda good: b"[]",
    "nested without end": lambda good: b"[" * 100_000,
    "another schema": spoilt(lambda whole, tree: whole.update(schema=2)),
    "no hash": spoilt(lambda whole, tree: whole.pop("hdl_hash")),
    "an unknown feature": spoilt(lambda whole, tree: tree["root"].update(feature="m;n")),
    "no number": spoilt(lambda whole, tree: tree["root"].update(most="many")),
    "half a fork": spoilt(lambda whole, tree: tree["root"].pop("left")),
    "half a range": spoilt(lambda whole, tree: tree["range"].update(m=[1])),
    "an order of words": spoilt(lambda whole, tree: tree["root"].update(left=leaf(1, "mine"))),
    "a kernel that it does not weigh": spoilt(lambda whole, tree: tree["root"].update(left=leaf(1, ["your", []]))),
    "a size that it does not know": spoilt(lambda whole, tree: tree["root"].update(feature="depth")),
}


@pytest.mark.parametrize("how", BAD)
def test_a_malformed_file_is_a_sentence(chip, tmp_path, how):
    path = tmp_path / "acme-x1.json"
    path.write_bytes(BAD[how](document(chip)))
    with pytest.raises(errors.KernelError, match=r"acme-x1\.json: .*; expected decision trees as `dsf-cli tune`"):
        read(path, chip)


def test_a_tree_as_deep_as_a_stack_is_refused(chip):
    root = leaf(1, FLAT)
    for _ in range(70):
        root = {"feature": "m", "most": 1, "left": root, "right": leaf(2, FLAT)}
    with pytest.raises(ValueError, match="deeper than 64"):
        parse(document(chip, root), chip)


# what a chooser makes of it


@pytest.fixture
def asked(bench):
    """A product of (64, 512) by (512, 512), and a chooser for the bench's own kernels with trees of the test's."""
    own = bench.kernel("MatMul" if bench.chip.vendor == "ascend" else "generic.matmul")
    kernel = evolve(own, name="mine")
    x, w = torch.randn(64, 512).half(), torch.randn(512, 512).half()
    intent = bench.intent("linear", [x, w], [bench.out((64, 512), x.dtype)], has_bias=False, transposed=True)

    def ask(root, *more: Kernel, emit=kernel.emit, **changes):
        target = Target(
            bench.chip, bench.isa, bench.timing, trees=parse(document(bench.chip, root, **changes), bench.chip)
        )
        return Chooser.of(target, [evolve(kernel, emit=emit), *more])(intent)

    return ask


def test_the_first_of_a_leaf_is_taken_and_only_that_is_written(asked):
    choice = asked(leaf(1, WIDE, FLAT))
    assert (choice.name, choice.reason) == ("mine 64x256", "tree: leaf 1")
    assert choice.considered == (("mine", (64, 256)),)
    assert asked(leaf(1, FLAT, WIDE)).name == "mine 32x64"


def test_what_cannot_be_written_is_passed_over(asked):
    def emit(target, intent, variant):
        if variant == (64, 256):
            raise errors.KernelError("DSF-K002", "the cupboard is full")
        return own.write(target, intent, variant)

    own = asked(leaf(1, FLAT)).kernel
    choice = asked(leaf(1, WIDE, FLAT), emit=emit)
    assert (choice.name, choice.reason) == ("mine 32x64", "tree: leaf 1")


def test_a_kernel_that_the_tree_does_not_know_is_timed_beside_its_first_ones(asked, bench):
    own = bench.kernel("MatMul" if bench.chip.vendor == "ascend" else "generic.matmul")
    new = evolve(own, name="new", variants=lambda target, intent: ((32, 64),))
    choice = asked(leaf(1, WIDE, FLAT), new)
    assert choice.reason == "quickest of 3 by predicted time; the tree does not know new"
    assert choice.considered == (("mine", (64, 256)), ("mine", (32, 64)), ("new", (32, 64)))


def test_outside_of_a_tree_the_quickest_of_its_first_ones_is_taken(asked, bench):
    choice = asked(leaf(1, FLAT, WIDE), hdl_hash="another")
    times = {}
    for variant in ((32, 64), (64, 256)):
        only = asked(leaf(1, ["mine", list(variant)]))
        times["mine", variant] = bench.timing(only.program).duration_fs
    assert (choice.kernel.name, choice.variant) == min(times, key=times.get)
    assert choice.reason.startswith("quickest of 2 by predicted time; the tree does not decide: it knows another")


def test_the_trees_that_ship_are_for_the_chips_that_ship(benches):
    """After a change of a chip's numbers: dsf-cli tune CHIP --out ... writes its trees anew."""
    from dsf.plugins import registry

    for name in ("acme-x1", "ascend-910b2"):
        view = registry().view(hdl.load(name))
        if view.plugin == "generic" and name != "acme-x1":
            continue
        trees = view.trees()
        assert trees.foreign == ""
        assert {"linear", "matmul"} <= set(trees.by_kind)
        names = {kernel.name for kernel in view.kernels()}
        for tree in trees.by_kind.values():
            assert {kernel for leaf in tree.leaves() for kernel, _ in leaf.order} <= set(tree.kernels) <= names


def test_the_users_own_trees_stand_before_those_that_ship(tmp_path: Path, monkeypatch, chip):
    from dsf.plugins import registry

    (tmp_path / "acme-x1.json").write_text(json.dumps(document(chip)))
    monkeypatch.setenv("DSF_TREE_PATH", str(tmp_path))
    assert registry().view(chip).trees().knows("linear", "mine")


def test_the_sizes_of_a_product_are_the_intents(bench):
    a, b = torch.randn(3, 5, 7).half(), torch.randn(3, 9, 7).half().transpose(1, 2)
    intent = bench.intent("matmul", [a, b], [bench.out((3, 5, 9), a.dtype)])
    found = sizes(intent, bench.chip)
    assert {name: found[name] for name in ("m", "n", "k", "batch", "item", "transposed")} == {
        "m": 5, "n": 9, "k": 7, "batch": 3, "item": 2, "transposed": 1,
    }  # fmt: skip
