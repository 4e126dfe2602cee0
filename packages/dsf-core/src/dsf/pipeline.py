"""One request, in order. If you read one module of DSF, read this one.

    tape -cut-> segments -parse-> intents -choose-> kernels and programs -place-> addresses -run-> numbers, time, report

A segment (the operations of one decoder layer, say) is planned once: its plan is kept under its structure, so equal
layers and equal steps share one. Addresses are settled per step, when the tape is flushed. This is the only module that
talks to plugins; what it calls gets plain values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from attrs import define, evolve, field, frozen

from dsf import errors
from dsf.execution import Executor
from dsf.forecast import Forecast
from dsf.hdl import Chip
from dsf.intent.flops import flops
from dsf.intent.ir import Intent
from dsf.intent.meaning import meaning
from dsf.intent.parse import parse
from dsf.intent.tape import Site, Tape, Window
from dsf.isa.program import Param, Program
from dsf.kernels.cache import opened
from dsf.kernels.choose import Candidate, Choice, Chooser
from dsf.kernels.target import Target
from dsf.ledger import Ledger
from dsf.machine.functional import Bound, Functional
from dsf.machine.heat import Heat, coldness
from dsf.machine.timing import KernelTime, Timing
from dsf.memory.place import Life, place
from dsf.plugins import View
from dsf.reports import Report
from dsf.segments import Segment, cut
from dsf.storage import Storage

__all__ = ["FIDELITIES", "Decision", "Session"]

FIDELITIES = ("isa", "operator", "timing")


@frozen(eq=False)
class Step:
    """One intent of a segment with what was decided: the choice, its predicted time, its matrix FLOPs. Regions name
    the segment's own buffers; *places* has each one's buffer and byte in it."""

    intent: Intent
    choice: Choice
    time: KernelTime | None
    flops: int
    places: tuple[tuple[int, int], ...] = field(init=False)

    @places.default
    def _places(self) -> tuple[tuple[int, int], ...]:
        regions = (*self.intent.inputs, *self.intent.outputs)
        return tuple((r.buffer, r.offset * r.dtype.itemsize) for r in regions)


@frozen(eq=False)
class Decision:
    """What serves an intent, and how many femtoseconds one launch of it (or the host's work) takes."""

    intent: Intent
    choice: Choice
    fs: int


@frozen(eq=False)
class Plan:
    """A segment's steps in order."""

    steps: tuple[Step, ...]


@define(eq=False, repr=False)
class Session:
    """One emulated chip in use: its memory, its plans, its clock and its accounts."""

    view: View
    fidelity: str = "isa"
    strict: bool = False
    exact: bool = False
    thermal: str = "ladder"
    ambient: float | None = None
    strict_layouts: bool = False
    target: Target = field(init=False)
    ledger: Ledger = field(init=False)
    storage: Storage = field(init=False)
    _chooser: Chooser = field(init=False)
    _executor: Executor | None = field(init=False)
    _plans: dict[object, Plan] = field(factory=dict)
    _listening: list[tuple[Intent, ...]] | None = None

    def __attrs_post_init__(self) -> None:
        chip, isa = self.view.chip, self.view.isa()
        if self.strict_layouts:  # byte for byte: no memory holds its numbers in wider containers
            isa = evolve(isa, wide=frozenset())
        self.target = Target(chip, isa, Timing(chip, isa), self.strict_layouts, self.view.trees())
        kernels = self.view.kernels()
        cache = opened(chip, isa, self.view.packages(), f"{self.target.trees.digest} {self.strict_layouts}")
        self._chooser = Chooser.of(self.target, kernels, self.strict, cache)
        self.storage = Storage(chip, valued=self.fidelity != "timing")
        arena = self.storage.arena
        self._executor = Executor(Functional(chip, isa, arena, self.exact), arena) if arena is not None else None
        self.ledger, policy = Ledger(chip), self.view.thermal_policy(self.thermal)
        if not coldness(chip):
            self.ledger.heat = Heat(chip, policy, self.ledger.timeline, self.ambient)

    def __repr__(self) -> str:
        """One line: `dsf.enable(...)` at a prompt shows this."""
        how = f"fidelity={self.fidelity!r}, strict={self.strict}, exact={self.exact}"
        return f"<dsf session on {self.view.chip.name}: {self.view.plugin} plugin, {how}>"

    # what the device asks

    @property
    def chip(self) -> Chip:
        return self.view.chip

    @property
    def capacity(self) -> int:
        return self.storage.pool.capacity

    @property
    def allocated(self) -> int:
        return self.storage.pool.used

    @property
    def peak(self) -> int:
        return self.storage.pool.peak

    def allocate(self, nbytes: int, site: Site | None) -> int:
        """Take device memory; an OutOfMemory says what was needed, what there is and what would fit."""
        return self.storage.allocate(nbytes, site)

    def free(self, address: int) -> None:
        """Give device memory back."""
        self.storage.free(address)

    def write(self, address: int, tensor: torch.Tensor) -> None:
        """The user's copy to the device."""
        self.ledger.copy(tensor.numel() * tensor.element_size())
        if self.storage.valued:
            self.peek(address, Window(tuple(tensor.shape), tensor.stride(), 0, tensor.dtype)).copy_(tensor)

    def read(self, address: int, window: Window) -> torch.Tensor:
        """The user's copy from the device: waits for the device, then copies."""
        self.ledger.copy(window.numel * window.dtype.itemsize)
        return self.peek(address, window).clone()

    def peek(self, address: int, window: Window) -> torch.Tensor:
        """The bytes themselves; zeros where there are none (`timing`)."""
        return self.storage.window(address, window)

    def host_op(self, target: str, bytes_in: int, bytes_out: int, site: Site | None) -> None:
        """Price and count an operation that the device ran on the host on its own."""
        reason = "its result's shape depends on values, or it is random"
        self._no_host_under_strict(target, reason, site)
        self.ledger.fallback(target, bytes_in, bytes_out, reason, 0)

    def synchronize(self) -> None:
        """Wait until the device is done."""
        self.ledger.synchronize()

    def now_fs(self) -> int:
        """The emulated present: when the device will have done all that was asked so far."""
        return self.ledger.now_fs

    def run(self, tape: Tape) -> dict[int, int]:
        """Run a flush. The answer has the address of every live buffer that had none."""
        segments = cut(tape)
        plans = [self._plan(segment) for segment in segments]
        if self._listening is not None:
            self._listening.append(tuple(step.intent for plan in plans for step in plan.steps))
        try:
            return self._run(tape, segments, plans)
        finally:
            self.storage.settle()

    def _run(self, tape: Tape, segments: tuple[Segment, ...], plans: list[Plan]) -> dict[int, int]:
        addresses = self._place(tape, segments, plans)
        made = {n: addresses[n] for n, buffer in enumerate(tape.buffers) if buffer.live and buffer.address is None}
        try:
            for segment, plan in zip(segments, plans, strict=True):
                for step in plan.steps:
                    self._execute(step, segment, addresses)
        except BaseException:  # nobody will ever know these addresses
            self._free_all(made.values())
            raise
        return made

    @contextmanager
    def listening(self) -> Iterator[list[tuple[Intent, ...]]]:
        """The intents of every flush inside, in order; equal layers share theirs."""
        before, self._listening = self._listening, []
        try:
            yield self._listening
        finally:
            self._listening = before

    @contextmanager
    def launches(self) -> Iterator[list[Bound]]:
        """The programs launched inside, bound to their addresses, in order: to be run again as they are. `isa` only."""
        assert self._executor is not None, "only fidelity 'isa' launches programs"
        before, self._executor.log = self._executor.log, []
        try:
            yield self._executor.log
        finally:
            self._executor.log = before

    def forecast(self) -> Forecast:
        """What steps would take on this chip that nobody runs."""
        return Forecast(self._price_fs, self.chip.host)

    def program(self, intent: Intent) -> Program | None:
        """The program that serves *intent*; None where the host does."""
        return self._step(intent).choice.program

    def _price_fs(self, intent: Intent) -> int:
        if intent.kind == "nothing":
            return 0
        step = self._step(intent)
        return step.time.duration_fs if step.time is not None else self.ledger.fallback_fs(*_moved(intent))

    def decisions(self, segment: Segment) -> tuple[Decision, ...]:
        """What is decided for *segment*, intent by intent, with the predicted time."""
        return tuple(Decision(s.intent, s.choice, self._price_fs(s.intent)) for s in self._plan(segment).steps)

    def compare(self, intent: Intent) -> tuple[Candidate, ...]:
        """All candidates for *intent*, with their predicted times or why they are none."""
        return self._chooser.compare(intent)

    # parse and choose

    def _plan(self, segment: Segment) -> Plan:
        """The plan of a segment, made once per structure."""
        plan = self._plans.get(segment.key)
        if plan is None:
            intents = parse(segment.tape, serves=self._serves)
            plan = self._plans[segment.key] = Plan(tuple(self._step(intent) for intent in intents))
        return plan

    def _serves(self, intent: Intent) -> bool:
        """Is *intent* better taken whole? If a kernel serves it; or if the host must, which then is asked once."""
        try:
            choice = self._chooser(intent)
        except errors.DtypeError:  # its pieces will say so, as far as it holds for them
            return False
        return choice.kernel is not None or any(who == "chip" for who, _ in choice.refused)

    def _step(self, intent: Intent) -> Step:
        if intent.kind == "nothing":
            return Step(intent, Choice(None, None, ()), None, 0)
        choice = self._chooser(intent)
        if choice.kernel is None:
            self._no_host_under_strict(_called(intent), choice.reason, intent.site)
        time = choice.time
        if time is None and choice.program is not None:
            time = self.target.timing(choice.program)
        return Step(intent, choice, time, flops(intent))

    def _no_host_under_strict(self, what: str, reason: str, site: Site | None) -> None:
        if self.strict:
            where = f" (recorded at {site})" if site else ""
            raise errors.FallbackError(
                "DSF-F001",
                f"{what}{where} would run on the host, which strict forbids: {reason}; "
                "enable without strict to have it priced and counted",
            )

    # place

    def _place(self, tape: Tape, segments: tuple[Segment, ...], plans: list[Plan]) -> dict[int, int]:
        """An address for every buffer that some step touches: outputs in the pool, temporaries in the workspace, which
        they share by liveness over the whole step."""
        first, last, sites = _lives(segments, plans)
        addresses = {n: b.address for n, b in enumerate(tape.buffers) if b.address is not None}
        taken: list[int] = []
        temporaries: list[int] = []
        try:
            for n, buffer in enumerate(tape.buffers):
                if buffer.address is not None:
                    continue
                if buffer.live:
                    addresses[n] = self.allocate(buffer.nbytes, sites.get(n))
                    taken.append(addresses[n])
                elif n in first:
                    temporaries.append(n)
            lives = [Life(tape.buffers[n].nbytes, first[n], last[n]) for n in temporaries]
            offsets = self._place_temporaries(lives, [sites[n] for n in temporaries])
            self._place_scratch(segments, plans)
        except errors.OutOfMemory:
            self._free_all(taken)
            raise
        return addresses | dict(zip(temporaries, offsets, strict=True))

    def _place_temporaries(self, lives: list[Life], sites: list[Site | None]) -> list[int]:
        """An address for each temporary. If they do not fit, the one that reaches furthest is named."""
        placement = place(lives, self.storage.pool.alignment)
        ends = [offset + life.nbytes for offset, life in zip(placement.offsets, lives, strict=True)]
        base = self.storage.temporaries.at_least(placement.nbytes, sites[ends.index(max(ends))] if ends else None)
        return [base + offset for offset in placement.offsets]

    def _place_scratch(self, segments: tuple[Segment, ...], plans: list[Plan]) -> None:
        """Room for the workspaces of the most demanding program."""
        for segment, plan in zip(segments, plans, strict=True):
            for step in plan.steps:
                nbytes = sum(self.storage.pool.rounded(p.nbytes) for p in _workspaces(step))
                self.storage.scratch.at_least(nbytes, _site(segment, step))

    def _free_all(self, addresses: Iterable[int]) -> None:
        for address in addresses:
            self.free(address)

    # run

    def _execute(self, step: Step, segment: Segment, addresses: dict[int, int]) -> None:
        intent, choice = step.intent, step.choice
        if intent.kind == "nothing":
            return
        buffers = segment.buffers
        places = tuple([addresses[buffers[number]] + offset for number, offset in step.places])
        if choice.kernel is None or choice.program is None or step.time is None:
            self._on_host(step, places)
            return
        self.ledger.launch(choice.kernel, intent.kind, step.time, step.flops, choice.why, choice.program)
        if self._executor is None:
            return
        if self.fidelity == "isa":
            self._executor.launch(choice.program, places + self._scratch_places(step))
        else:
            self._executor.compute(intent, partial(choice.kernel.reference, intent), places)

    def _scratch_places(self, step: Step) -> tuple[int, ...]:
        """Where a program's workspaces lie, one after the other in the scratch memory."""
        places, address = [], self.storage.scratch.address
        for param in _workspaces(step):
            places.append(address)
            address += self.storage.pool.rounded(param.nbytes)
        return tuple(places)

    def _on_host(self, step: Step, places: tuple[int, ...]) -> None:
        """A fallback: the host computes the meaning; the price is two copies and the host's time."""
        intent = step.intent
        into, back = _moved(intent)
        self.ledger.fallback(_called(intent), into, back, step.choice.reason, step.flops)
        if self._executor is not None:
            self._executor.compute(intent, partial(meaning, intent), places)

    # report

    def report(self, reset: bool = False) -> Report:
        """Everything counted so far; with *reset*, counting begins anew (memory stays as it is)."""
        mode = "exact" if self.exact else "fast"
        report = self.ledger.report(self.view.plugin, self.fidelity, mode, self.peak)
        if reset:
            self.ledger.reset()
        return report

    def close(self) -> None:
        """Forget plans and memory; the session cannot be used afterwards."""
        self._plans.clear()
        self._executor = None
        self.storage.arena = None


def _moved(intent: Intent) -> tuple[int, int]:
    """Bytes that go to the host and come back when it computes *intent*."""
    into, back = (sum(r.numel * r.dtype.itemsize for r in side) for side in (intent.inputs, intent.outputs))
    return into, back


def _called(intent: Intent) -> str:
    """What a fallback is listed as: torch's operator where the intent is just that, else the intent's kind."""
    return str(intent.attr("target")) if intent.kind == "opaque" else intent.kind


def _site(segment: Segment, step: Step) -> Site | None:
    """Who recorded *step* this time; the plan's own intents remember who did so first."""
    return segment.ops[step.intent.ops[-1]].site


def _workspaces(step: Step) -> tuple[Param, ...]:
    """The parameters of a step's program that are neither inputs nor outputs."""
    count = len(step.intent.inputs) + len(step.intent.outputs)
    return step.choice.program.params[count:] if step.choice.program is not None else ()


def _lives(
    segments: tuple[Segment, ...], plans: list[Plan]
) -> tuple[dict[int, int], dict[int, int], dict[int, Site | None]]:
    """For every buffer that some step touches: the first and the last such step, and who recorded the first."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    sites: dict[int, Site | None] = {}
    position = 0
    for segment, plan in zip(segments, plans, strict=True):
        for step in plan.steps:
            for own, _ in step.places:
                number = segment.buffers[own]
                if number not in first:
                    first[number], sites[number] = position, _site(segment, step)
                last[number] = position
            position += 1
    return first, last, sites
