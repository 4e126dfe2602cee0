"""One request, in order. If you read one module of DSF, read this one.

    tape -cut-> segments -parse-> intents -choose-> kernels and programs -place-> addresses -run-> numbers, time, report

A segment (the operations of one decoder layer, say) is planned once: its plan is kept under its structure, so equal
layers and equal steps share one. Addresses are settled per step, when the tape is flushed. This is the only module that
talks to plugins; what it calls gets plain values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from attrs import define, field, frozen

from dsf import errors
from dsf.intent.flops import flops
from dsf.intent.ir import Intent
from dsf.intent.meaning import meaning
from dsf.intent.parse import parse
from dsf.intent.tape import Region, Site, Tape, Window
from dsf.isa.program import Param, Program
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
    """Device memory that stays where it is while it is large enough, so that programs bound to it stay valid. Between
    steps it gives way to whoever needs the room."""

    session: Session
    address: int = 0
    nbytes: int = 0
    in_use: bool = False

    def at_least(self, nbytes: int, site: Site | None) -> int:
        """The workspace's address, after it has grown to *nbytes* where it was smaller, for who recorded *site*."""
        if nbytes > self.nbytes:
            self.give_back()
            self.address = self.session.allocate(nbytes, site)
            self.nbytes = nbytes
        self.in_use = True
        return self.address

    def give_back(self) -> None:
        """Return the memory; the next step takes it again."""
        if self.nbytes:
            self.session.free(self.address)
            self.nbytes = 0


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
        for workspace in (self._temporaries, self._scratch):
            if address is None and not workspace.in_use:
                workspace.give_back()
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
        try:
            return self._run(tape, segments, plans)
        finally:
            self._temporaries.in_use = self._scratch.in_use = False

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
            self._no_host_under_strict(_called(intent), choice.reason, intent.site)
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
            lives = [Life(tape.buffers[n].nbytes, first[n], last[n]) for n in temporaries]
            offsets = self._place_temporaries(lives, [sites[n] for n in temporaries])
            self._place_scratch(segments, plans)
        except errors.OutOfMemory:
            self._free_all(taken)
            raise
        return addresses | dict(zip(temporaries, offsets, strict=True))

    def _place_temporaries(self, lives: list[Life], sites: list[Site | None]) -> list[int]:
        """An address for each temporary. If they do not fit, the one that reaches furthest is named."""
        placement = place(lives, self._pool.alignment)
        ends = [offset + life.nbytes for offset, life in zip(placement.offsets, lives, strict=True)]
        base = self._temporaries.at_least(placement.nbytes, sites[ends.index(max(ends))] if ends else None)
        return [base + offset for offset in placement.offsets]

    def _place_scratch(self, segments: tuple[Segment, ...], plans: list[Plan]) -> None:
        """Room for the workspaces of the most demanding program."""
        for segment, plan in zip(segments, plans, strict=True):
            for step in plan.steps:
                nbytes = sum(self._pool.rounded(p.nbytes) for p in _workspaces(step))
                self._scratch.at_least(nbytes, _site(segment, step))

    def _free_all(self, addresses: Iterable[int]) -> None:
        for address in addresses:
            self.free(address)

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
            self._launch(choice.program, places, _workspaces(step))
        elif self.fidelity == "operator":
            self._compute(intent, partial(choice.kernel.reference, intent), places)

    def _launch(self, program: Program, places: tuple[int, ...], workspaces: tuple[Param, ...]) -> None:
        """Execute the program, bound once per set of addresses."""
        base = self._scratch.address
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
        self.ledger.fallback(_called(intent), into, back, step.choice.reason, step.flops)
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


def _called(intent: Intent) -> str:
    """What a fallback is listed as: torch's operator where the intent is just that, else the intent's kind."""
    return str(intent.attr("target")) if intent.kind == "opaque" else intent.kind


def _site(segment: Segment, step: Step) -> Site | None:
    """Who recorded *step* this time; the plan's own intents remember who did so first."""
    return segment.tape.ops[step.intent.ops[-1]].site


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
            for region in (*step.intent.inputs, *step.intent.outputs):
                number = segment.buffers[region.buffer]
                if number not in first:
                    first[number], sites[number] = position, _site(segment, step)
                last[number] = position
            position += 1
    return first, last, sites
