"""One request, in order. If you read one module of DSF, read this one.

    tape -cut-> segments -parse-> intents -choose-> kernels and programs -place-> addresses -run-> numbers, time, report

A segment (the operations of one decoder layer, say) is planned once: its plan is kept under its structure, so equal
layers and equal steps share one. Addresses are settled per step, when the tape is flushed. This is the only module that
talks to plugins; what it calls gets plain values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from attrs import define, field, frozen

from dsf import errors
from dsf.intent.flops import flops
from dsf.intent.ir import Intent
from dsf.intent.meaning import meaning
from dsf.intent.parse import parse
from dsf.intent.tape import Region, Site, Tape, Window
from dsf.isa.program import Program
from dsf.kernels.choose import Choice, Chooser
from dsf.kernels.target import Target
from dsf.ledger import Ledger
from dsf.machine.arena import Arena
from dsf.machine.functional import Bound, Functional, Unrolled
from dsf.machine.timing import KernelTime, Timing
from dsf.memory.place import Life, place
from dsf.memory.pool import Pool
from dsf.plugins import View
from dsf.reports import Report
from dsf.segments import Segment, cut

__all__ = ["FIDELITIES", "Session"]

FIDELITIES = ("isa", "operator", "timing")


@frozen(eq=False)
class Step:
    """One intent of a segment with what was decided: the choice, its predicted time, its matrix FLOPs. Regions name
    the segment's own buffers."""

    intent: Intent
    choice: Choice
    time: KernelTime | None
    flops: int


@frozen(eq=False)
class Plan:
    """A segment's steps in order."""

    steps: tuple[Step, ...]


@define(eq=False)
class Workspace:
    """Device memory that stays where it is while it is large enough, so that programs bound to it stay valid."""

    session: Session
    address: int = 0
    nbytes: int = 0

    def at_least(self, nbytes: int) -> int:
        """The workspace's address, after it has grown to *nbytes* where it was smaller."""
        if nbytes > self.nbytes:
            if self.nbytes:
                self.session.free(self.address)
                self.nbytes = 0
            self.address = self.session.allocate(nbytes, None)
            self.nbytes = nbytes
        return self.address


@define(eq=False)
class Session:
    """One emulated chip in use: its memory, its plans, its clock and its accounts."""

    view: View
    fidelity: str = "isa"
    strict: bool = False
    exact: bool = False
    target: Target = field(init=False)
    ledger: Ledger = field(init=False)
    _chooser: Chooser = field(init=False)
    _pool: Pool = field(init=False)
    _arena: Arena | None = field(init=False)
    _machine: Functional | None = field(init=False)
    _plans: dict[object, Plan] = field(factory=dict)
    _temporaries: Workspace = field(init=False)
    _scratch: Workspace = field(init=False)
    _unrolled: dict[int, Unrolled] = field(factory=dict)
    _bound: dict[tuple[int, tuple[int, ...]], Bound] = field(factory=dict)
    _bound_steps: int = 0

    def __attrs_post_init__(self) -> None:
        chip, isa = self.view.chip, self.view.isa()
        self.target = Target(chip, isa, Timing(chip, isa))
        self._chooser = Chooser.of(self.target, self.view.kernels(), self.strict)
        memory = chip.main_memory
        granule = max(memory.alignment, GRANULE)
        self._pool = Pool(memory.usable // granule * granule, granule)
        self._arena = Arena(memory.nbytes) if self.fidelity != "timing" else None
        self._machine = Functional(chip, isa, self._arena, self.exact) if self._arena else None
        self.ledger = Ledger(chip)
        self._temporaries, self._scratch = Workspace(self), Workspace(self)

    # what the device asks

    @property
    def chip(self):  # type: ignore[no-untyped-def]  # the device's protocol wants less than a Chip
        return self.view.chip

    @property
    def capacity(self) -> int:
        return self._pool.capacity

    @property
    def allocated(self) -> int:
        return self._pool.used

    @property
    def peak(self) -> int:
        return self._pool.peak

    def allocate(self, nbytes: int, site: Site | None) -> int:
        """Take device memory; an OutOfMemory says what was needed, what there is and what would fit."""
        address = self._pool.take(nbytes)
        if address is None:
            raise self._out_of_memory(nbytes, site)
        return address

    def _out_of_memory(self, nbytes: int, site: Site | None) -> errors.OutOfMemory:
        memory, free = self.view.chip.main_memory, self._pool.capacity - self._pool.used
        where = f", recorded at {site}" if site else ""
        return errors.OutOfMemory(
            "DSF-M001",
            f"{memory.name} of {self.view.chip.name}: needed {_mib(nbytes)}, available {_mib(free)} of "
            f"{_mib(self._pool.capacity)} (largest piece {_mib(self._pool.largest_hole)}){where}; "
            "use a smaller model, batch or context, a narrower dtype, or a chip with more memory (dsf-cli chips)",
        )

    def free(self, address: int) -> None:
        """Give device memory back, and its pages to the host."""
        size = self._pool.give(address)
        if self._arena is not None and size >= LARGE:
            self._arena.discard(address, size)

    def write(self, address: int, tensor: torch.Tensor) -> None:
        """The user's copy to the device."""
        self.ledger.copy(tensor.numel() * tensor.element_size())
        if self._arena is not None:
            self._arena.window(address, tensor.shape, tensor.stride(), tensor.dtype).copy_(tensor)

    def read(self, address: int, window: Window) -> torch.Tensor:
        """The user's copy from the device: waits for the device, then copies."""
        self.ledger.copy(window.numel * window.dtype.itemsize)
        return self.peek(address, window).clone()

    def peek(self, address: int, window: Window) -> torch.Tensor:
        """The bytes themselves; zeros where there are none (`timing`)."""
        if self._arena is None:
            return torch.zeros(window.shape, dtype=window.dtype)
        at = address + window.offset * window.dtype.itemsize
        return self._arena.window(at, window.shape, window.stride, window.dtype)

    def host_op(self, target: str, bytes_in: int, bytes_out: int, site: Site | None) -> None:
        """Price and count an operation that the device ran on the host on its own."""
        self._no_host_under_strict(target, "it cannot be recorded: its result's shape depends on values", site)
        self.ledger.fallback(target, bytes_in, bytes_out, "its result's shape depends on values, or it is random", 0)

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
        addresses = self._place(tape, segments, plans)
        for segment, plan in zip(segments, plans, strict=True):
            for step in plan.steps:
                self._execute(step, segment, addresses)
        return {n: addresses[n] for n, buffer in enumerate(tape.buffers) if buffer.live and buffer.address is None}

    # parse and choose

    def _plan(self, segment: Segment) -> Plan:
        """The plan of a segment, made once per structure."""
        plan = self._plans.get(segment.key)
        if plan is None:
            plan = self._plans[segment.key] = Plan(tuple(self._step(intent) for intent in parse(segment.tape)))
        return plan

    def _step(self, intent: Intent) -> Step:
        if intent.kind == "nothing":
            return Step(intent, Choice(None, None, ()), None, 0)
        choice = self._chooser(intent)
        if choice.kernel is None:
            self._no_host_under_strict(intent.kind, choice.reason, intent.site)
        time = self.target.timing(choice.program) if choice.program is not None else None
        return Step(intent, choice, time, flops(intent))

    def _no_host_under_strict(self, what: str, reason: str, site: Site | None) -> None:
        if self.strict:
            where = f" (recorded at {site})" if site else ""
            raise errors.KernelError(
                "DSF-K010",
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
            self._place_temporaries(tape, temporaries, first, last, addresses)
        except errors.OutOfMemory:
            for address in taken:
                self.free(address)
            raise
        return addresses

    def _place_temporaries(
        self, tape: Tape, temporaries: list[int], first: dict[int, int], last: dict[int, int], addresses: dict[int, int]
    ) -> None:
        lives = [Life(tape.buffers[n].nbytes, first[n], last[n]) for n in temporaries]
        placement = place(lives, self._pool.alignment)
        base = self._temporaries.at_least(placement.nbytes)
        for n, offset in zip(temporaries, placement.offsets, strict=True):
            addresses[n] = base + offset

    # run

    def _execute(self, step: Step, segment: Segment, addresses: dict[int, int]) -> None:
        intent, choice = step.intent, step.choice
        if intent.kind == "nothing":
            return
        regions = (*intent.inputs, *intent.outputs)
        places = tuple(addresses[segment.buffers[r.buffer]] + r.offset * r.dtype.itemsize for r in regions)
        if choice.kernel is None or choice.program is None or step.time is None:
            self._on_host(step, places)
            return
        self.ledger.launch(choice.kernel, intent.kind, step.time, step.flops, choice.reason, choice.program)
        if self.fidelity == "isa":
            self._launch(choice.program, places)
        elif self.fidelity == "operator":
            self._compute(intent, partial(choice.kernel.reference, intent), places)

    def _launch(self, program: Program, places: tuple[int, ...]) -> None:
        """Execute the program, bound once per set of addresses."""
        assert self._machine is not None
        workspaces = program.params[len(places) :]
        base = self._scratch.at_least(sum(self._pool.rounded(p.nbytes) for p in workspaces)) if workspaces else 0
        for param in workspaces:
            places = (*places, base)
            base += self._pool.rounded(param.nbytes)
        bound = self._bound.get((id(program), places))
        if bound is None:
            bound = self._bind(program, places)
        bound.run()

    def _bind(self, program: Program, places: tuple[int, ...]) -> Bound:
        """Bind *program* to addresses; what is bound is kept until too much is. (Programs live as long as the session,
        in its chooser, so their identity is a key.)"""
        assert self._machine is not None
        unrolled = self._unrolled.get(id(program))
        if unrolled is None:
            unrolled = self._unrolled[id(program)] = self._machine.unroll(program)
        bound = self._machine.bind(unrolled, places)
        self._bound_steps += len(bound.steps)
        if self._bound_steps > MOST_BOUND:
            self._bound.clear()
            self._bound_steps = len(bound.steps)
        self._bound[id(program), places] = bound
        return bound

    def _on_host(self, step: Step, places: tuple[int, ...]) -> None:
        """A fallback: the host computes the meaning; the price is two copies and the host's time."""
        intent = step.intent
        into = sum(r.numel * r.dtype.itemsize for r in intent.inputs)
        back = sum(r.numel * r.dtype.itemsize for r in intent.outputs)
        what = intent.attr("target") if intent.kind == "opaque" else intent.kind
        self.ledger.fallback(what, into, back, step.choice.reason, step.flops)
        if self._arena is not None:
            self._compute(intent, partial(meaning, intent), places)

    def _compute(
        self, intent: Intent, function: Callable[..., tuple[torch.Tensor, ...]], places: tuple[int, ...]
    ) -> None:
        """Whole-tensor torch from and to device memory."""
        regions = (*intent.inputs, *intent.outputs)
        windows = [self._window(region, place) for region, place in zip(regions, places, strict=True)]
        count = len(intent.inputs)
        for out, value in zip(windows[count:], function(*windows[:count]), strict=True):
            out.copy_(value)

    def _window(self, region: Region, address: int) -> torch.Tensor:
        assert self._arena is not None
        return self._arena.window(address, region.shape, region.stride, region.dtype)

    # report

    def report(self, reset: bool = False) -> Report:
        """Everything counted so far; with *reset*, counting begins anew (memory stays as it is)."""
        mode = "exact" if self.exact else "fast"
        report = self.ledger.report(self.view.plugin, self.fidelity, mode, self._pool.peak)
        if reset:
            self.ledger.reset()
        return report

    def close(self) -> None:
        """Forget plans and memory; the session cannot be used afterwards."""
        for kept in (self._plans, self._bound, self._unrolled):
            kept.clear()
        self._machine = None
        self._arena = None


GRANULE = (
    512  # bytes: blocks of main memory start on whole lines, so that programs find the alignment they were cut for
)
LARGE = 1 << 20
MOST_BOUND = 3_000_000  # bound instructions kept, 8 to 200 bytes each


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB"


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
            for region in (*step.intent.inputs, *step.intent.outputs):
                number = segment.buffers[region.buffer]
                if number not in first:
                    first[number], sites[number] = position, step.intent.site
                last[number] = position
            position += 1
    return first, last, sites
