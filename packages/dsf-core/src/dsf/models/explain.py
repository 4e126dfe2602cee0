"""Which kernel serves what a model wants on a chip, why, and how far that is from what the chip could not beat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from attrs import define, frozen

from dsf.intent.expression import text
from dsf.intent.ir import Intent, key
from dsf.isa.program import dtype_name
from dsf.kernels.choose import Candidate
from dsf.kernels.roofline import Roofline, roofline
from dsf.models.wants import wants
from dsf.pipeline import Decision, Session

if TYPE_CHECKING:
    import torch

    from dsf.plugins import View

__all__ = ["Explained", "Explanation", "Kind", "explain", "explained"]

OWN = ("generic", "compiled")  # libraries that come with DSF; every other one is the vendor's
Watch = Callable[[str], None]


@frozen(eq=False)
class Explained:
    """One distinct intent of a step. Times are of one launch, in femtoseconds; *share* is of the whole step."""

    intent: Intent
    times: int
    module: str
    kernel: str
    library: str
    fs: int
    share: float
    reason: str
    others: tuple[Candidate, ...]
    ideal: Roofline

    @property
    def what(self) -> str:
        """The intent in few words: its kind, an expression, the shapes, the first operand's format."""
        shapes = (
            " ".join(f"[{', '.join(map(str, r.shape))}]" for r in side)
            for side in (self.intent.inputs, self.intent.outputs)
        )
        regions = (*self.intent.inputs, *self.intent.outputs)
        said = text(self.intent.attr("expr")) if self.intent.kind == "elementwise" else ""
        if self.intent.kind == "linear":
            added = "+ residual" if self.intent.attr("has_residual") else ""
            said = " ".join(part for part in (self.intent.attr("activation"), added) if part)
        return " ".join(
            part for part in (self.intent.kind, said, " -> ".join(shapes), dtype_name(regions[0].dtype)) if part
        )

    @property
    def of_roofline(self) -> float:
        """How near the time is to what the chip could not beat: 1 is there."""
        return self.ideal.fs / self.fs if self.fs else 0.0

    def to_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "times": self.times, "intent": str(self.intent), "kind": self.intent.kind, "module": self.module,
            "kernel": self.kernel, "library": self.library, "emulated_femtoseconds": self.fs, "share": self.share,
            "roofline_femtoseconds": self.ideal.fs, "roofline_bound": self.ideal.bound,
            "share_of_roofline": self.of_roofline, "reason": self.reason,
            "others": [
                {"kernel": other.title, "emulated_femtoseconds": other.fs, "refusal": other.refusal or None}
                for other in self.others
            ],
        }  # fmt: skip


@frozen
class Kind:
    """All intents of a kind: their part of the step's time, and how near they are to the roofline together."""

    kind: str
    launches: int
    share: float
    of_roofline: float


@frozen(eq=False)
class Explanation:
    """A step of *model* on *chip*: its intents, the slowest first. The time is the kernels' own, without launches."""

    model: str
    chip: str
    step: str
    batch: int
    length: int
    lines: tuple[Explained, ...]
    origin: str

    @property
    def fs(self) -> int:
        return sum(line.fs * line.times for line in self.lines)

    @property
    def fallbacks(self) -> tuple[Explained, ...]:
        """What the host does."""
        return tuple(line for line in self.lines if line.library == "host")

    def libraries(self) -> dict[str, float]:
        """The share of the time by whose kernels they are, the largest first."""
        spent = Counter[str]()
        for line in self.lines:
            spent[line.library] += line.fs * line.times
        return {name: fs / self.fs for name, fs in spent.most_common()} if self.fs else {}

    @property
    def native(self) -> float:
        """The share of the time in the vendor's own kernels."""
        return sum(share for name, share in self.libraries().items() if name not in (*OWN, "host"))

    def kinds(self) -> tuple[Kind, ...]:
        """By kind, the largest share first."""
        sums: dict[str, list[int]] = {}
        for line in self.lines:
            row = sums.setdefault(line.intent.kind, [0, 0, 0])
            for n, more in enumerate((line.times, line.fs * line.times, line.ideal.fs * line.times)):
                row[n] += more
        order = sorted(sums.items(), key=lambda item: -item[1][1])
        return tuple(Kind(kind, n, fs / (self.fs or 1), ideal / fs if fs else 0.0) for kind, (n, fs, ideal) in order)

    def to_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "model": self.model, "chip": self.chip, "step": self.step, "batch": self.batch, "length": self.length,
            "emulated_femtoseconds": self.fs, "origin": self.origin, "native_share": self.native,
            "libraries": self.libraries(),
            "kinds": [
                {"kind": k.kind, "launches": k.launches, "share": k.share, "share_of_roofline": k.of_roofline}
                for k in self.kinds()
            ],
            "intents": [line.to_json() for line in self.lines],
            "fallbacks": [{"intent": str(line.intent), "times": line.times, "reason": line.reason}
                          for line in self.fallbacks],
        }  # fmt: skip


def explain(
    name: str,
    view: View,
    *,
    batch: int = 1,
    length: int = 128,
    decode: bool = False,
    dtype: torch.dtype | None = None,
    watch: Watch = lambda stage: None,
) -> Explanation:
    """What serves the model called *name* on the chip of *view*: its prefill of *length* tokens, or the step after."""
    wanted = wants(name, batch=batch, length=length, decode=decode, dtype=dtype, watch=watch)
    session = Session(view, "timing")
    decisions = (decision for part in wanted.step_parts for decision in session.decisions(part.segment))
    return Explanation(
        wanted.model, view.chip.name, wanted.step, batch, length, explained(session, decisions, watch), "derived"
    )


@define(eq=False)
class _Seen:
    decision: Decision
    times: int = 0


def explained(
    session: Session, decisions: Iterable[Decision], watch: Watch = lambda stage: None
) -> tuple[Explained, ...]:
    """The distinct intents among *decisions*, each once, the largest part of the time first."""
    seen: dict[object, _Seen] = {}
    for decision in decisions:
        if decision.intent.kind != "nothing":
            seen.setdefault(key(decision.intent), _Seen(decision)).times += 1
    total = sum(found.decision.fs * found.times for found in seen.values())
    lines = []
    for number, found in enumerate(seen.values(), 1):
        watch(f"intent {number} of {len(seen)}")
        lines.append(_line(session, found.decision, found.times, total))
    return tuple(sorted(lines, key=lambda line: -line.fs * line.times))


def _line(session: Session, decision: Decision, times: int, total: int) -> Explained:
    intent, choice = decision.intent, decision.choice
    others = tuple(c for c in session.compare(intent) if choice.kernel is None or c.title != choice.name)
    return Explained(
        intent, times, intent.scope.path, choice.name, choice.kernel.library if choice.kernel else "host", decision.fs,
        decision.fs * times / total if total else 0.0, choice.reason,
        tuple(sorted(others, key=_quickest_first)), roofline(session.chip, intent),
    )  # fmt: skip


def _quickest_first(candidate: Candidate) -> tuple[bool, int]:
    return candidate.fs is None, candidate.fs or 0
