"""Decision trees that a run only walks: which kernel, in which variant, for such sizes; in the order to try them.

A leaf names kernels with their variants. Where variants are tiles of a product, it may name a rule instead, by which
the tile follows from the very sizes (see `cutting`): so a leaf serves shapes whose best tiles differ.

`dsf-cli tune` learns them from predicted times and writes them as plain JSON, which a package ships beside its kernels,
one file for each chip. A tree says for which sizes it was learned, and which description of the chip it knows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from attrs import field, frozen

from dsf import errors
from dsf.hdl import Chip
from dsf.kernels.cutting import LEAST, cut, least
from dsf.kernels.features import Feature, Sizes, feature
from dsf.kernels.kernel import Variant

__all__ = ["FOLDER", "SCHEMA", "Advice", "Leaf", "Node", "Preference", "Tree", "Trees", "load", "parse"]

SCHEMA = 1
FOLDER = Path(__file__).parent / "trees"
DEEPEST = 64
SURE = 0.05
"""A leaf whose first choice took longer than this share beyond the best, for some shape it was learned from, leaves the
decision between its first few candidates to predicted times."""

Preference = tuple[str, Variant]
"""A candidate: a kernel's name and a variant of it."""


@frozen
class Leaf:
    """The end of a walk: candidates, or rules for them, in the order to try them. *samples* is how many shapes taught
    it, *doubt* how much longer than the best the first took in the worst of them, as a share."""

    number: int
    order: tuple[Preference, ...]
    samples: int = 0
    doubt: float = 0.0


@frozen
class Node:
    """A fork: left where the feature is at most *most*, else right."""

    feature: Feature
    most: float
    left: Node | Leaf
    right: Node | Leaf


@frozen(eq=False)
class Advice:
    """What a tree says of some sizes: its leaf, and why, in words. *decides* is false where the leaf is in doubt, or
    the tree was not learned for such sizes or for another description of the chip: *why* then says so."""

    leaf: Leaf
    why: str
    decides: bool
    sizes: Sizes
    tiles: Mapping[str, tuple[Variant, ...]]

    def order(self) -> Iterator[Preference]:
        """The candidates of the leaf in their order, each once; tiles that the product cuts alike are one."""
        seen = set()
        for name, variant in self.leaf.order:
            tiles = self.tiles[name]
            found = least(self.sizes, tiles, variant) if LEAST in variant else variant
            same = name, cut(self.sizes, found) if found in tiles else found
            if same not in seen:
                seen.add(same)
                yield name, found


@frozen(eq=False)
class Tree:
    """The tree of one kind of intent. *kernels* are all that it weighed, with the tiles that a rule picks from,
    *ranges* the sizes it was learned from: the least and the most of each."""

    kind: str
    kernels: Mapping[str, tuple[Variant, ...]]
    ranges: tuple[tuple[str, tuple[int, int]], ...]
    root: Node | Leaf

    def walk(self, sizes: Sizes) -> tuple[Leaf, str]:
        """The leaf for *sizes*, and the way to it in words."""
        node, path = self.root, []
        while isinstance(node, Node):
            left = node.feature.of(sizes) <= node.most
            path.append((node, left))
            node = node.left if left else node.right
        return node, _told(path)

    def unlike(self, sizes: Sizes) -> str:
        """The first size that is outside of what the tree was learned from, in words; empty where none is."""
        for name, (low, high) in self.ranges:
            if not low <= sizes.get(name, low) <= high:
                return f"{name.replace('_', ' ')} {sizes[name]} is outside {low} to {high}"
        return ""

    def leaves(self) -> Iterator[Leaf]:
        """Its leaves, from left to right."""
        stack: list[Node | Leaf] = [self.root]
        while stack:
            node = stack.pop()
            if isinstance(node, Leaf):
                yield node
            else:
                stack += [node.right, node.left]


def _told(path: list[tuple[Node, bool]]) -> str:
    """The conditions on a path; of several on one feature, in one direction, the last is the sharpest."""
    said: dict[tuple[str, bool], str] = {}
    for node, left in path:
        said[node.feature.name, left] = f"{node.feature.words} {'<=' if left else '>'} {node.most:g}"
    return ", ".join(said.values())


@frozen(eq=False)
class Trees:
    """What was learned for a chip. *foreign* says, in words, why these trees are not for the chip in use, if so;
    *digest* tells them from others."""

    by_kind: dict[str, Tree] = field(factory=dict)
    foreign: str = ""
    digest: str = ""

    def advice(self, kind: str, sizes: Sizes) -> Advice | None:
        """What the tree for *kind* says of *sizes*; None where there is none."""
        tree = self.by_kind.get(kind)
        if tree is None:
            return None
        leaf, path = tree.walk(sizes)
        unlike = self.foreign or tree.unlike(sizes)
        if unlike:
            return Advice(leaf, f"the tree does not decide: {unlike}", False, sizes, tree.kernels)
        where = f"tree: leaf {leaf.number}{f' ({path})' if path else ''}"
        if leaf.doubt > SURE:
            return Advice(leaf, f"{where} narrows it down", False, sizes, tree.kernels)
        return Advice(leaf, where, True, sizes, tree.kernels)

    def knows(self, kind: str, kernel: str) -> bool:
        """Whether the tree for *kind* weighed *kernel*."""
        return kind in self.by_kind and kernel in self.by_kind[kind].kernels


def load(chip: Chip, folders: Iterable[Path]) -> Trees:
    """The trees for *chip* in the first of *folders* that has some. Those of another description of it are kept, but
    they do not decide: they say so."""
    names = dict.fromkeys((chip.name, Path(chip.path).stem))
    for path in (folder / f"{name}.json" for folder in folders for name in names):
        if path.is_file():
            return read(path, chip)
    return Trees()


def read(path: Path, chip: Chip) -> Trees:
    """The trees in the file at *path*; a KernelError (DSF-K030) says what is wrong with it."""
    try:
        return parse(json.loads(path.read_text("utf-8")), chip)
    except (ValueError, RecursionError) as error:  # also what is no UTF-8 or no JSON
        raise _refused(path, str(error) or type(error).__name__) from None
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise _refused(path, f"{type(error).__name__}: {error}") from None
    except OSError as error:
        raise _refused(path, error.strerror or str(error)) from None


def _refused(path: Path, found: str) -> errors.KernelError:
    return errors.KernelError(
        "DSF-K030", f"{path}: {found}; expected decision trees as `dsf-cli tune` writes them; run it again or delete it"
    )


def parse(document: dict[str, Any], chip: Chip) -> Trees:
    """The trees that *document* states; a ValueError, KeyError or TypeError where it states none."""
    if document["schema"] != SCHEMA:
        raise ValueError(f"schema {document['schema']!r}; this DSF reads schema {SCHEMA}")
    trees = {kind: _tree(kind, tree) for kind, tree in document["trees"].items()}
    foreign = "" if document["hdl_hash"] == chip.hash else f"it knows another description of {chip.name}"
    digest = blake2b(json.dumps(document, sort_keys=True).encode(), digest_size=16).hexdigest()
    return Trees(trees, foreign, digest)


def _tree(kind: str, data: dict[str, Any]) -> Tree:
    ranges = tuple((name, (int(low), int(high))) for name, (low, high) in data["range"].items())
    kernels = {str(name): tuple(map(tuple, tiles)) for name, tiles in data["kernels"].items()}
    tree = Tree(kind, kernels, ranges, _node(data["root"], 0))
    unknown = {name for leaf in tree.leaves() for name, _ in leaf.order} - set(kernels)
    if unknown:
        raise ValueError(f"the tree for {kind} prefers {sorted(unknown)[0]}, which is not among its kernels")
    return tree


def _node(data: dict[str, Any], depth: int) -> Node | Leaf:
    if depth > DEEPEST:
        raise ValueError(f"a tree deeper than {DEEPEST}")
    if "leaf" in data:
        order = tuple((str(kernel), tuple(variant)) for kernel, variant in data["order"])
        return Leaf(int(data["leaf"]), order, int(data["samples"]), float(data["doubt"]))
    return Node(
        feature(data["feature"]), float(data["most"]), _node(data["left"], depth + 1), _node(data["right"], depth + 1)
    )
