"""Learning a chip's decision trees from predicted times; what a run then walks is in `tree`.

Every candidate for every shape of the workloads is timed by the timing plane. scikit-learn (the extra `tune`) fits one
tree for each kind: its target is, for every candidate and every rule for tiles, how much longer than the best it takes.
A leaf lists them by what it learned of that. Shapes that no tree was learned from say what the choice then costs.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from math import log2
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from attrs import asdict, frozen

from dsf import errors
from dsf.intent.ir import Intent
from dsf.isa.program import torch_dtype
from dsf.kernels.choose import SHORT, Candidate, Chooser
from dsf.kernels.cutting import LEAST, cut, least
from dsf.kernels.features import Sizes, feature, sizes
from dsf.kernels.kernel import Variant
from dsf.kernels.tree import SCHEMA, Preference, Trees, parse
from dsf.kernels.workloads import KINDS, PARTS, workloads

__all__ = [
    "Learned", "Regret", "Sample", "Watch", "check_can_learn", "learn", "regret", "samples", "tune", "write",
]  # fmt: skip

Watch = Callable[[str, int, int], None]

SHAPES = {"linear": 1600, "matmul": 1200, "attention": 240}
FEW = 60  # shapes of any other kind
JUDGED = 0.2  # of as many unseen ones as were learned from
EDGES = (4, 16, 64, 256)
RULES = tuple((LEAST, *rule) for rule in product(EDGES, EDGES, (0, 4096)))
MOST_RULES = 8
MOST_LEAVES, LEAST_SAMPLES = 128, 12
LISTED = 12  # candidates that a leaf names
HELD_BACK = 3  # one shape in so many is not learned from, but says how far a leaf is to be trusted
CAP = 0.5  # beyond this share more than the best time, worse is no worse
LOGARITHMIC = frozenset(
    [
        "m",
        "n",
        "k",
        "batch",
        "rows",
        "columns",
        "heads",
        "queries",
        "keys",
        "width",
        "value_width",
        "groups",
        "operands",
    ]
)
RESTS = (("m", 128), ("m", 256), ("n", 128), ("n", 256), ("keys", 512))


@frozen(eq=False)
class Sample:
    """A shape, and the predicted time of every candidate that can serve it, in femtoseconds."""

    intent: Intent
    sizes: Sizes
    times: dict[Preference, int]

    @property
    def best(self) -> int:
        return min(self.times.values())

    def loss(self, preference: Preference) -> float:
        """How much longer than the best *preference* takes, as a share; infinite where it cannot serve."""
        fs = self.times.get(preference)
        if fs is None and len(preference[1]) == 2:  # a tile that the product cuts like another one
            fs = next((t for pair, t in self.times.items() if self._alike(pair, preference)), None)
        return fs / self.best - 1 if fs is not None else float("inf")

    def _alike(self, one: Preference, other: Preference) -> bool:
        return one[0] == other[0] and len(one[1]) == 2 and cut(self.sizes, one[1]) == cut(self.sizes, other[1])


@frozen
class Regret:
    """How much longer than the best of all candidates the chosen ones took, over some shapes, as shares."""

    kind: str
    shapes: int
    mean: float
    worst: float
    where: str


@frozen(eq=False)
class Learned:
    """The trees of a chip as JSON, and what they cost on shapes that they were not learned from."""

    chip: str
    asked: tuple[str, ...]
    document: dict[str, Any]
    regrets: tuple[Regret, ...]

    def to_json(self) -> dict[str, Any]:
        """Both as plain data."""
        rows = [asdict(row) for row in self.regrets]
        return {"chip": self.chip, "origin": "derived", "regret": rows, "trees": self.document}


def tune(chooser: Chooser, kinds: Sequence[str], watch: Watch, scale: float = 1.0) -> Learned:
    """Trees for *kinds* of the chip of *chooser*, from its kernels' predicted times; kinds for which there is nothing
    to choose get none. *scale* is how many shapes to learn from, as a share of the usual number."""
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        known = ", ".join(KINDS)
        raise errors.UsageError("DSF-K031", f"no workloads of the kind '{unknown[0]}'; expected some of {known}")
    chip = chooser.target.chip
    trees: dict[str, Any] = {}
    unseen: dict[str, tuple[Sample, ...]] = {}
    for kind in kinds:
        most = max(round(SHAPES.get(kind, FEW) * scale), 2)
        seen = samples(chooser, kind, PARTS[0], most, watch)
        if len({preference for sample in seen for preference in sample.times}) < 2:
            continue
        trees[kind] = learn(seen, [kernel.name for kernel in chooser.kernels[kind]])
        unseen[kind] = samples(chooser, kind, PARTS[1], max(round(most * JUDGED), 2), watch)
    document = {
        "schema": SCHEMA,
        "chip": chip.name,
        "hdl_hash": chip.hash,
        "origin": "derived",
        "source": "predicted times of the timing plane over the shapes of workloads.json; written by dsf-cli tune",
        "trees": trees,
    }
    decided = parse(document, chip)
    return Learned(
        chip.name, tuple(kinds), document, tuple(regret(kind, decided, found) for kind, found in unseen.items())
    )


def samples(
    chooser: Chooser, kind: str, part: str, most: int, watch: Watch = lambda stage, done, total: None
) -> tuple[Sample, ...]:
    """At most *most* shapes of *kind* of a *part* of the workloads, with the times of all candidates."""
    chip = chooser.target.chip
    intents = workloads(kind, torch_dtype(chip.numerics.preferred), part, most)
    found = []
    for done, intent in enumerate(intents, 1):
        times = _times(chooser.compare(intent)) if not chooser.forbidden(intent) else {}
        if times:
            found.append(Sample(intent, sizes(intent, chip), times))
        watch(f"{kind}, {part}", done, len(intents))
    return tuple(found)


def _times(candidates: Iterable[Candidate]) -> dict[Preference, int]:
    return {candidate.preference: candidate.fs for candidate in candidates if candidate.fs is not None}


def regret(kind: str, trees: Trees, unseen: Sequence[Sample]) -> Regret:
    """What the choice by *trees* costs: where one is in doubt, its first few candidates are timed."""
    losses = [_chosen_loss(kind, trees, sample) for sample in unseen]
    worst = max(range(len(losses)), key=losses.__getitem__)
    return Regret(kind, len(losses), mean(losses), losses[worst], str(unseen[worst].intent))


def _chosen_loss(kind: str, trees: Trees, sample: Sample) -> float:
    advice = trees.advice(kind, sample.sizes)
    assert advice is not None, f"no tree for {kind}"
    able = [loss for pair in advice.order() if (loss := sample.loss(pair)) != float("inf")]
    return (able[0] if advice.decides else min(able[:SHORT])) if able else CAP


def learn(seen: Sequence[Sample], weighed: Iterable[str] = ()) -> dict[str, Any]:
    """The tree for *seen* shapes of one kind, as JSON. *weighed* are the kernels that were asked, also those that can
    serve none of these shapes."""
    tiles = _tiles(seen)
    columns = _columns(seen, tiles)
    losses = _losses(seen, tiles, columns)
    names = _feature_names(seen)
    numbers = np.array([[_number(name, sample.sizes) for name in names] for sample in seen])
    capped = np.minimum(losses, CAP)
    regressor = _regressor()(
        max_leaf_nodes=min(MOST_LEAVES, len(seen)), min_samples_leaf=_least_samples(len(seen)), random_state=0
    )
    taught = np.arange(len(seen)) % HELD_BACK > 0
    fitted = regressor.fit(numbers[taught], capped[taught]).tree_
    ends = fitted.apply(numbers.astype(np.float32))
    kernels = {
        name: tiles.get(name, ()) for name in dict.fromkeys([*weighed, *(name for s in seen for name, _ in s.times)])
    }
    counter = iter(range(1, fitted.node_count + 1))

    def written(node: int) -> dict[str, Any]:
        if fitted.children_left[node] < 0:
            inside = ends == node
            order = _order(capped[inside & taught].mean(axis=0), columns)
            first = losses[inside][:, columns.index(order[0])]
            return {
                "leaf": next(counter), "samples": int(inside.sum()), "doubt": round(float(min(first.max(), CAP)), 4),
                "order": [[name, list(variant)] for name, variant in order],
            }  # fmt: skip
        name, most = names[fitted.feature[node]], float(fitted.threshold[node])
        left, right = written(int(fitted.children_left[node])), written(int(fitted.children_right[node]))
        if _same_end(left, right):
            return {**left, "samples": left["samples"] + right["samples"], "doubt": max(left["doubt"], right["doubt"])}
        return {
            "feature": name,
            "most": round(2**most if name in LOGARITHMIC else most, 2),
            "left": left,
            "right": right,
        }

    return {
        "samples": len(seen),
        "kernels": {name: [list(tile) for tile in of] for name, of in kernels.items()},
        "range": {name: [min(s.sizes[name] for s in seen), max(s.sizes[name] for s in seen)] for name in seen[0].sizes},
        "root": _numbered(written(0)),
    }


def _least_samples(shapes: int) -> int:
    """Of how many shapes a leaf must have learned: fewer where there are few in all."""
    return max(1, min(LEAST_SAMPLES, shapes // 40))


def _same_end(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return "leaf" in left and "leaf" in right and left["order"] == right["order"]


def _numbered(root: dict[str, Any]) -> dict[str, Any]:
    """The leaves numbered from left to right, since some were joined."""
    count = 0

    def visit(node: dict[str, Any]) -> dict[str, Any]:
        nonlocal count
        if "leaf" in node:
            count += 1
            return {**node, "leaf": count}
        return {**node, "left": visit(node["left"]), "right": visit(node["right"])}

    return visit(root)


def _tiles(seen: Sequence[Sample]) -> dict[str, tuple[Variant, ...]]:
    """The tiles of every kernel that cuts a product into some."""
    found: dict[str, dict[Variant, None]] = {}
    for sample in seen:
        for name, variant in sample.times:
            if "m" in sample.sizes and len(variant) == 2 and all(isinstance(size, int) for size in variant):
                found.setdefault(name, {})[variant] = None
    return {name: tuple(sorted(variants, reverse=True)) for name, variants in found.items()}


def _columns(seen: Sequence[Sample], tiles: dict[str, tuple[Variant, ...]]) -> list[Preference]:
    """What a leaf may name: every candidate, and the few rules whose best is near the best for all shapes."""
    columns: list[Preference] = []
    for name, of in tiles.items():
        rules = [(name, rule) for rule in RULES]
        losses = np.minimum(_losses(seen, tiles, rules), CAP)
        taken: list[int] = []
        for _ in range(MOST_RULES if len(of) > 2 else 0):
            value = [losses[:, [*taken, n]].min(axis=1) for n in range(len(rules))]
            taken.append(min(range(len(rules)), key=lambda n: value[n].mean() + 0.02 * value[n].max()))
        columns += [rules[n] for n in dict.fromkeys(taken)]
    return columns + list(dict.fromkeys(pair for sample in seen for pair in sample.times))


def _losses(
    seen: Sequence[Sample], tiles: dict[str, tuple[Variant, ...]], columns: Sequence[Preference]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The loss of every shape by every column."""

    def resolved(sample: Sample, column: Preference) -> Preference:
        name, variant = column
        return (name, least(sample.sizes, tiles[name], variant)) if LEAST in variant else column

    rows = []
    for sample in seen:
        known: dict[Preference, float] = {}
        row = []
        for column in columns:
            pair = resolved(sample, column)
            if pair not in known:
                known[pair] = sample.loss(pair)
            row.append(known[pair])
        rows.append(row)
    return np.array(rows)


def _feature_names(seen: Sequence[Sample]) -> list[str]:
    """The sizes that differ between shapes, and what is left of some after whole tiles."""
    known = seen[0].sizes
    names = [name for name in known if len({sample.sizes[name] for sample in seen}) > 1]
    names += [f"{size}%{step}" for size, step in RESTS if size in known]
    return names or list(known)[:1]


def _number(name: str, of: Sizes) -> float:
    value = feature(name).of(of)
    return log2(max(value, 1)) if name in LOGARITHMIC else value


def _order(losses: Any, columns: Sequence[Preference]) -> list[Preference]:
    """The columns by their mean loss, the first few; and the best of every kernel that is not among them."""
    order = [columns[n] for n in sorted(range(len(columns)), key=lambda n: (losses[n], n))]
    listed = order[:LISTED]
    for pair in order[LISTED:]:
        if pair[0] not in {name for name, _ in listed}:
            listed.append(pair)
    return listed


def check_can_learn() -> None:
    """A UsageError (DSF-K032) where scikit-learn is not installed."""
    _regressor()


def _regressor() -> Any:
    try:
        from sklearn.tree import DecisionTreeRegressor
    except ImportError:
        raise errors.UsageError(
            "DSF-K032", "learning a tree needs scikit-learn; pip install 'dsf-core[tune]'"
        ) from None
    return DecisionTreeRegressor


def write(learned: Learned, path: Path) -> None:
    """The trees of *learned* to the file at *path*, at once."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(_compact(learned.document) + "\n", "utf-8")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise errors.UsageError("DSF-K033", f"{path} cannot be written: {error.strerror or error}") from None


def _compact(document: dict[str, Any]) -> str:
    """JSON of which every node of a tree is a line, so that a difference can be read."""
    text = json.dumps(document, separators=(",", ":"))
    return re.sub(r'(\{"(?:feature|leaf|schema|samples)")', r"\n\1", text).strip()
