"""Which kernel serves an intent, in which variant, and why not the others.

Candidates are the variants of all kernels whose limits hold: the vendor's, generic's, the fallback compiler's. The tree
that was learned for the chip decides: the first candidate of its leaf whose program can be written is taken. Outside of
what the tree knows, and where there is none, the candidate is taken that the timing plane finishes first; the order of
offers breaks ties. Every refusal is kept in words. Nothing left means the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from time import perf_counter

import torch
from attrs import define, field, frozen

from dsf import errors
from dsf.intent.ir import Intent, key
from dsf.intent.tape import Region
from dsf.isa import Program
from dsf.isa.program import dtype_name
from dsf.isa.verify import verify
from dsf.kernels.cache import Cache, Entry
from dsf.kernels.features import bucket, sizes
from dsf.kernels.kernel import AS_IT_IS, Kernel, Variant
from dsf.kernels.target import Target
from dsf.kernels.tree import Advice, Preference
from dsf.machine.ordering import check
from dsf.machine.timing import KernelTime

__all__ = ["SHORT", "Candidate", "Choice", "Chooser", "label"]

LONG = 0.004  # seconds: a choice that takes longer is kept on disk, since reading it takes less
SHORT = 5  # candidates of a leaf that are timed where the tree may not decide alone
MATRIX_KINDS = ("linear", "matmul", "attention", "paged_attention", "latent_attention", "grouped_linear",
                "quant_linear", "scaled_linear", "convolution")  # fmt: skip
MOVING_KINDS = ("copy", "concat", "fill", "embedding", "nothing", "index", "gather", "scatter", "index_put",
                "kv_append")  # fmt: skip


@frozen(eq=False)
class Choice:
    """The kernel that serves an intent, its variant and program; None, None for the host. *refused*: (kernel, why not)
    of those that could not serve it, *why*: in words, why it was this one of the others, *considered*: who those were.
    *time* is the predicted one where it was kept with the choice. *sketched*: the program came from a search and was
    not verified on the way.
    """

    kernel: Kernel | None
    program: Program | None
    refused: tuple[tuple[str, str], ...]
    variant: Variant = AS_IT_IS
    why: str = ""
    considered: tuple[Preference, ...] = ()
    time: KernelTime | None = None
    sketched: bool = False

    @property
    def name(self) -> str:
        """Kernel and variant."""
        return label(self.kernel.name, self.variant) if self.kernel is not None else "host"

    @property
    def reason(self) -> str:
        """Why this one, in words."""
        told = [f"{name}: {why}" for name, why in self.refused]
        return "; ".join([self.why, *told] if self.why else told) or "no kernel of this kind is offered"


@frozen
class Candidate:
    """A kernel's variant for an intent: its predicted time in femtoseconds, or why it cannot serve it."""

    name: str
    variant: Variant
    fs: int | None
    refusal: str = ""

    @property
    def preference(self) -> Preference:
        return self.name, self.variant

    @property
    def title(self) -> str:
        """Kernel and variant."""
        return label(self.name, self.variant)


def label(kernel: str, variant: Variant) -> str:
    """A candidate as people read it: `MatMul 128x256`."""
    return f"{kernel} {'x'.join(map(str, variant))}" if variant else kernel


@define(eq=False)
class Chooser:
    """Chooses for one chip; every verdict is kept, since equal intents have equal verdicts."""

    target: Target
    kernels: dict[str, tuple[Kernel, ...]]
    strict: bool = False
    cache: Cache | None = None
    _known: dict[object, Choice] = field(factory=dict)
    _timed: dict[object, tuple[Preference, str]] = field(factory=dict)
    _seen: dict[int, tuple[Intent, Choice]] = field(factory=dict)

    @classmethod
    def of(cls, target: Target, kernels: Iterable[Kernel], strict: bool = False, cache: Cache | None = None) -> Chooser:
        by_kind: dict[str, list[Kernel]] = {}
        for kernel in kernels:
            by_kind.setdefault(kernel.kind, []).append(kernel)
        return cls(target, {kind: tuple(offers) for kind, offers in by_kind.items()}, strict, cache)

    def __call__(self, intent: Intent) -> Choice:
        """The choice for *intent*; a DtypeError for a format that the HDL forbids."""
        seen = self._seen.get(id(intent))
        if seen is not None:
            return seen[1]
        asked = key(intent)
        known = self._known.get(asked)
        if known is None:
            known = self._known[asked] = self._kept(asked, intent)
        self._seen[id(intent)] = intent, known  # the intent is kept: its identity is the key
        return known

    def compare(self, intent: Intent) -> tuple[Candidate, ...]:
        """Every variant of every kernel of the kind of *intent* with its predicted time, or why it is none."""
        return tuple(self._compared(intent))

    def _compared(self, intent: Intent) -> Iterator[Candidate]:
        for kernel in self.kernels.get(intent.kind, ()):
            why = kernel.refusal(self.target.chip, intent)
            if why is not None:
                yield Candidate(kernel.name, AS_IT_IS, None, f"not so: {why}")
                continue
            try:
                variants = kernel.variants(self.target, intent)
            except errors.KernelError as error:
                yield Candidate(kernel.name, AS_IT_IS, None, error.sentence)
                continue
            for variant in variants:
                try:
                    with self.target.sketches():
                        program = kernel.write(self.target, intent, variant)
                except errors.KernelError as error:
                    yield Candidate(kernel.name, variant, None, error.sentence)
                else:
                    yield Candidate(kernel.name, variant, self.target.timing(program).duration_fs)

    def advice(self, intent: Intent) -> Advice | None:
        """What the chip's tree says of *intent*; None where it has none for its kind."""
        return self.target.trees.advice(intent.kind, sizes(intent, self.target.chip))

    def _kept(self, asked: object, intent: Intent) -> Choice:
        """The choice from the disk, or the one that is made now; it is kept there if making it took long."""
        if self.forbidden(intent):
            return Choice(None, None, (("chip", f"the HDL computes {_formats(intent)} on the host"),))
        found = self.cache.get(asked) if self.cache is not None else None
        if found is not None:
            kernel = next((k for k in self.kernels.get(intent.kind, ()) if k.name == found.kernel), None)
            if kernel is not None:
                return Choice(
                    kernel, found.program, found.refused, found.variant, found.why, found.considered, found.time
                )
        start = perf_counter()
        choice = self._choose(intent)
        if self.cache is not None and choice.kernel is not None and choice.program is not None:
            time = self.target.timing(choice.program)
            if perf_counter() - start > LONG:
                self.cache.put(asked, Entry(choice.kernel.name, choice.variant, choice.why, choice.refused,
                                            choice.considered, time, choice.program))  # fmt: skip
        return choice

    def _choose(self, intent: Intent) -> Choice:
        search = _Search(self.target, intent)
        offers = search.admitted(self.kernels.get(intent.kind, ()))
        advice = self.advice(intent) if offers else None
        strangers = [name for name in offers if not self.target.trees.knows(intent.kind, name)]
        if advice is not None and advice.decides and not strangers:
            found = search.first(offers, advice.order(), advice.why)
        else:
            found = self._by_time(search, offers, advice, strangers)
        found = found or search.quickest(offers, search.all_of(offers))
        if found.program is not None:
            if found.sketched:
                verify(found.program, self.target.isa, self.target.chip)
            check(found.program, self.target.isa, self.target.chip)
        return found

    def _by_time(
        self, search: _Search, offers: dict[str, Kernel], advice: Advice | None, strangers: list[str]
    ) -> Choice | None:
        """The quickest by predicted time; of intents that differ only in a size that grows, one tells for all."""
        alike = bucket(search.intent.kind, sizes(search.intent, self.target.chip)), tuple(offers)
        if alike in self._timed:
            preference, why = self._timed[alike]
            return search.first(offers, (preference,), why)
        if advice is None:
            found = search.quickest(offers, search.all_of(offers))
        else:
            told = f"the tree does not know {', '.join(strangers)}" if strangers else advice.why
            short = list(islice((pair for pair in advice.order() if pair[0] in offers), SHORT))
            short += search.all_of({name: offers[name] for name in strangers})
            found = search.quickest(offers, short, told)
            if found.kernel is None:  # nothing that the leaf names serves it; another offer may
                found = search.quickest(offers, search.all_of(offers), told)
        if found.kernel is not None:
            self._timed[alike] = (found.kernel.name, found.variant), found.why
        return found

    def forbidden(self, intent: Intent) -> bool:
        """Whether some operand's format is computed on the host; an error if the HDL (or `strict`) says so."""
        if intent.kind in MOVING_KINDS:
            return False
        matrix = intent.kind in MATRIX_KINDS
        for place, region in enumerate((*intent.inputs, *intent.outputs)):
            name = dtype_name(region.dtype)
            rule = self.target.chip.numerics.rule(name)
            how = rule.matrix if matrix and _is_multiplied(intent, place, region) else rule.vector
            if how == "error" or (self.strict and how not in ("native", "scalar")):
                raise errors.DtypeError("DSF-N010", _refusal(self.target.chip.name, intent, name, how, self.strict))
            if how == "host":
                return True
        return False


def _is_multiplied(intent: Intent, place: int, region: Region) -> bool:
    """Whether an operand of a product's kind enters the matrix engine, or leaves it, as it is: masks, tables, lengths,
    ends, sums of whole numbers and packed weights do not."""
    if region.dtype.is_floating_point or intent.kind == "quant_linear":
        return region.dtype.is_floating_point
    return place < 2 or region.dtype == torch.int8


@define
class _Search:
    """One intent's way to a kernel; who cannot serve it is noted on the way."""

    target: Target
    intent: Intent
    refused: list[tuple[str, str]] = field(factory=list)
    offers: tuple[str, ...] = ()

    def admitted(self, kernels: Iterable[Kernel]) -> dict[str, Kernel]:
        """The kernels whose limits hold, by name."""
        kernels = tuple(kernels)
        self.offers = tuple(kernel.name for kernel in kernels)
        open_to: dict[str, Kernel] = {}
        for kernel in kernels:
            why = kernel.refusal(self.target.chip, self.intent)
            if why is None:
                open_to[kernel.name] = kernel
            else:
                self.refused.append((kernel.name, f"not so: {why}"))
        return open_to

    def all_of(self, kernels: dict[str, Kernel]) -> list[Preference]:
        """Every variant of *kernels*."""
        found: list[Preference] = []
        for kernel in kernels.values():
            try:
                found += ((kernel.name, variant) for variant in kernel.variants(self.target, self.intent))
            except errors.KernelError as error:
                self._refuse(kernel.name, error)
        return found

    def first(self, kernels: dict[str, Kernel], order: Iterable[Preference], why: str) -> Choice | None:
        """The first of *order* whose program can be written."""
        for name, variant in (pair for pair in order if pair[0] in kernels):
            program = self._written(kernels[name], variant)
            if program is not None:
                return Choice(kernels[name], program, self._refusals([name]), variant, why, ((name, variant),))
        return None

    def quickest(self, kernels: dict[str, Kernel], candidates: list[Preference], told: str = "") -> Choice:
        """The one of *candidates* that the timing plane finishes first; the host where none can be written."""
        with self.target.sketches():
            written = [(pair, self._written(kernels[pair[0]], pair[1])) for pair in candidates]
        programs = [(pair, program) for pair, program in written if program is not None]
        if not programs:
            return Choice(None, None, self._refusals())
        alone = len(programs) == 1
        place = 0 if alone else self.target.timing.quickest([program for _, program in programs])
        (name, variant), program = programs[place]
        why = "nothing else takes it" if alone else f"quickest of {len(programs)} by predicted time"
        considered = tuple(pair for pair, _ in programs)
        told = f"; {told}" if told and not alone else ""
        refused = self._refusals(name for name, _ in considered)
        return Choice(kernels[name], program, refused, variant, why + told, considered, sketched=True)

    def _written(self, kernel: Kernel, variant: Variant) -> Program | None:
        try:
            return kernel.write(self.target, self.intent, variant)
        except errors.KernelError as error:
            self._refuse(kernel.name, error)
            return None

    def _refusals(self, served: Iterable[str] = ()) -> tuple[tuple[str, str], ...]:
        """Who cannot serve the intent and why, in the order of offers, without those of whose variants some can."""
        able = set(served)
        told = dict.fromkeys(pair for pair in self.refused if pair[0] not in able)
        return tuple(sorted(told, key=lambda pair: self.offers.index(pair[0])))

    def _refuse(self, name: str, error: errors.KernelError) -> None:
        self.refused.append((name, error.sentence))


def _formats(intent: Intent) -> str:
    return ", ".join(sorted({dtype_name(r.dtype) for r in (*intent.inputs, *intent.outputs)}))


def _refusal(chip: str, intent: Intent, dtype: str, how: str, strict: bool) -> str:
    where = f" (recorded at {intent.site})" if intent.site else ""
    operand = next(r for r in (*intent.inputs, *intent.outputs) if dtype_name(r.dtype) == dtype)
    does = "cannot compute it" if how == "error" else f"computes it by way of {how}, which strict forbids"
    advice = "convert the tensor on the host, for example with .cpu().to(torch.float32)" + (
        ", or enable without strict" if strict else ""
    )
    scope = intent.scope.path or "outside any module"
    return f"{scope}: {intent.kind} on a {list(operand.shape)} tensor of {dtype}; {chip} {does}{where}; {advice}"
