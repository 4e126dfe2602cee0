"""What tests of kernels share: a bench on which a kernel runs alone, and listings that are kept for review.

    run = bench.run("rms_norm", [x, weight], [bench.out(x.shape, x.dtype)], eps=1e-6, compute=torch.float32, ...)

lays the tensors out in an emulated main memory as they lie in their own storages (strides, offsets, aliases), lets the
first kernel that accepts the intent write its program, executes it, and checks that nothing but the outputs changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import define, field, frozen

from dsf import hdl
from dsf.generic.isa import isa as generic_isa
from dsf.generic.kernels import kernels as generic_kernels
from dsf.hdl import Chip
from dsf.intent.ir import Intent, attributes
from dsf.intent.tape import Region, Window
from dsf.isa import Isa, Program
from dsf.kernels.choose import Chooser
from dsf.kernels.kernel import Kernel
from dsf.kernels.target import Target
from dsf.machine.arena import Arena
from dsf.machine.functional import Functional
from dsf.machine.oracle import Oracle
from dsf.machine.timing import KernelTime, Timing

os.environ["DSF_KERNEL_CACHE_SIZE"] = "0"  # what a test sees was made in it; tests of the cache ask for one

Tensors = Sequence[torch.Tensor]
GOLDEN = Path(__file__).parent / "golden"
GUARD = 4096  # bytes around every tensor, which no program may touch
POISON = 0x5B  # what an output holds before it is written
ARENA = 1 << 30


@frozen(eq=False, repr=False)
class Run:
    """What came of one execution: the *outputs*, what the kernel's *reference* says, the program, its time."""

    bench: Bench
    kernel: Kernel
    intent: Intent
    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]
    reference: tuple[torch.Tensor, ...]
    program: Program
    time: KernelTime

    @property
    def output(self) -> torch.Tensor:
        """The only output."""
        (output,) = self.outputs
        return output

    def agrees(self) -> None:
        """Program and reference differ by no more than the kernel states."""
        for result, wanted in zip(self.outputs, self.reference, strict=True):
            assert result.shape == wanted.shape
            excess = self.kernel.rounding.excess(result, wanted)
            assert excess is None, f"{self.kernel.name}, {self.intent}: {excess}"

    def within(self, wanted: torch.Tensor, bound: torch.Tensor | float = 0.0) -> None:
        """The output is *wanted* (float64) to within *bound*, element by element; NaN and infinities are equal."""
        result = self.output.double()
        special = ~wanted.isfinite()
        assert torch.equal(result[special], wanted[special]) or torch.allclose(
            result[special], wanted[special], 0, 0, equal_nan=True
        )
        excess = ((result - wanted).abs() - bound)[~special]
        worst = excess.max().item() if excess.numel() else 0.0
        assert worst <= 0, f"{self.kernel.name}, {self.intent}: {worst} beyond the bound"

    def ulps(self, wanted: torch.Tensor) -> float:
        """The largest distance from *wanted* in units of the output's last place, where |wanted| >= its mean."""
        size = wanted.abs()
        large = size >= size.mean()
        unit = torch.exp2(torch.floor(torch.log2(size[large]))) * torch.finfo(self.output.dtype).eps
        return ((self.output.double() - wanted)[large].abs() / unit).max().item()

    def equals(self, wanted: torch.Tensor) -> None:
        """The output is *wanted*, bit by bit but for the payload of NaNs."""
        assert self.output.dtype == wanted.dtype
        assert self.output.shape == wanted.shape
        assert same(self.output, wanted), f"{self.kernel.name}, {self.intent}: {self.output} != {wanted}"


@define(eq=False, repr=False)
class Bench:
    """One chip's kernels, each to be run alone on tensors of the test's choice."""

    chip: Chip
    isa: Isa
    kernels: tuple[Kernel, ...]
    target: Target = field(init=False)
    timing: Timing = field(init=False)
    arena: Arena = field(factory=lambda: Arena(ARENA))
    _machines: dict[bool, Functional] = field(factory=dict)
    _choose: Chooser = field(init=False)

    def __repr__(self) -> str:
        return f"Bench({self.chip.name}, {self.isa.name})"

    def __attrs_post_init__(self) -> None:
        self.timing = Timing(self.chip, self.isa)
        self.target = Target(self.chip, self.isa, self.timing)
        self._choose = Chooser.of(self.target, self.kernels)

    def kernel(self, name: str) -> Kernel:
        """The kernel called *name*."""
        (kernel,) = [k for k in self.kernels if k.name == name]
        return kernel

    def out(self, shape: Sequence[int], dtype: torch.dtype, stride: Sequence[int] | None = None) -> torch.Tensor:
        """A place for a result, full of poison."""
        if stride is None:
            tensor = torch.empty(tuple(shape), dtype=dtype)
        else:
            tensor = torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype)
        if tensor.untyped_storage().nbytes():
            tensor.untyped_storage().fill_(POISON)
        return tensor

    def intent(self, kind: str, inputs: Tensors, outputs: Tensors, **attrs: Any) -> Intent:
        """The intent of *kind* on tensors as they lie; tensors of one storage are one buffer."""
        buffers: dict[int, int] = {}
        regions = [
            Region(
                buffers.setdefault(storage(t), len(buffers)),
                Window(tuple(t.shape), t.stride(), t.storage_offset(), t.dtype),
            )
            for t in (*inputs, *outputs)
        ]
        return Intent(kind, tuple(regions[: len(inputs)]), tuple(regions[len(inputs) :]), attributes(**attrs))

    def chosen(self, intent: Intent) -> tuple[Kernel, Program]:
        """Who serves *intent*, and the program."""
        choice = self._choose(intent)
        assert choice.kernel is not None, f"{intent}: {choice.reason}"
        assert choice.program is not None
        return choice.kernel, choice.program

    def refusal(self, kind: str, inputs: Tensors, outputs: Tensors, **attrs: Any) -> str:
        """Why nobody serves the intent."""
        choice = self._choose(self.intent(kind, inputs, outputs, **attrs))
        assert choice.kernel is None
        return choice.reason

    def run(
        self,
        kind: str,
        inputs: Tensors,
        outputs: Tensors,
        *,
        kernel: Kernel | tuple[int, ...] | None = None,
        exact: bool = False,
        **attrs: Any,
    ) -> Run:
        """Execute the intent's program, by *kernel* or by who is chosen. A tuple is what a pool's attribute is."""
        if isinstance(kernel, tuple):
            attrs["kernel"], kernel = kernel, None
        intent = self.intent(kind, inputs, outputs, **attrs)
        if kernel is None:
            kernel, program = self.chosen(intent)
        else:
            program = kernel.emit(self.target, intent)
        reference = tuple(t.clone() for t in kernel.reference(intent, *(t.clone() for t in inputs)))
        results = self.execute(program, inputs, outputs, exact)
        return Run(self, kernel, intent, tuple(inputs), results, reference, program, self.timing(program))

    def execute(
        self, program: Program, inputs: Tensors, outputs: Tensors, exact: bool = False
    ) -> tuple[torch.Tensor, ...]:
        """What *program* leaves in the outputs' places; nothing else has changed."""
        layout = Layout.of(self.arena, program, inputs, outputs)
        machine = self._machines.get(exact)
        if machine is None:
            machine = self._machines[exact] = Functional(self.chip, self.isa, self.arena, exact)
        machine.bind(machine.unroll(program), layout.addresses).run()
        layout.untouched_but(len(inputs))
        return layout.results(len(inputs))

    def oracle(self, kind: str, inputs: Tensors, outputs: Tensors, *, exact: bool = False, **attrs: Any) -> Run:
        """As `run`, and both planes agree with the oracle: bits equal, cycles equal."""
        run = self.run(kind, inputs, outputs, exact=exact, **attrs)
        layout = Layout.of(self.arena, run.program, inputs, outputs)
        memory = self.arena.bytes[: layout.end]
        cycles = Oracle(self.chip, self.isa, memory, exact).run(run.program, layout.addresses)
        for fast, slow in zip(run.outputs, layout.results(len(inputs)), strict=True):
            assert torch.equal(as_bytes(fast), as_bytes(slow)), f"{run.intent}: planes differ"
        assert cycles == tuple(phase.cycles for phase in run.time.phases)
        return run


@frozen(eq=False)
class Layout:
    """Tensors in an arena: storages side by side with guards between them, then the program's workspaces."""

    arena: Arena
    tensors: tuple[torch.Tensor, ...]
    bases: dict[int, int]
    addresses: tuple[int, ...]
    end: int
    before: torch.Tensor

    @classmethod
    def of(cls, arena: Arena, program: Program, inputs: Tensors, outputs: Tensors) -> Layout:
        tensors = (*inputs, *outputs)
        bases: dict[int, int] = {}
        end = GUARD
        for tensor in tensors:
            if storage(tensor) not in bases:
                bases[storage(tensor)] = end
                end = aligned(end + tensor.untyped_storage().nbytes()) + GUARD
        data = end
        places = [bases[storage(t)] + t.storage_offset() * t.itemsize for t in tensors]
        for param in program.params[len(tensors) :]:
            assert param.role == "workspace"
            places.append(end)
            end = aligned(end + param.nbytes)
        arena.bytes[:data] = 0
        for tensor in tensors:
            raw = tensor.untyped_storage()
            if raw.nbytes():
                base = bases[storage(tensor)]
                arena.bytes[base : base + raw.nbytes()] = torch.empty(0, dtype=torch.uint8).set_(raw)
        return cls(arena, tensors, bases, tuple(places), end, arena.bytes[:data].clone())

    def window(self, tensor: torch.Tensor, base: int) -> torch.Tensor:
        address = base + tensor.storage_offset() * tensor.itemsize
        return self.arena.window(address, tuple(tensor.shape), tensor.stride(), tensor.dtype)

    def results(self, first: int) -> tuple[torch.Tensor, ...]:
        """The tensors from number *first* on, as the arena has them now."""
        return tuple(self.window(t, self.bases[storage(t)]).clone() for t in self.tensors[first:])

    def untouched_but(self, first: int) -> None:
        """No byte has changed outside the tensors from number *first* on."""
        after = self.arena.bytes[: self.before.numel()].clone()
        for tensor in self.tensors[first:]:
            if tensor.numel():
                address = self.bases[storage(tensor)] + tensor.storage_offset() * tensor.itemsize
                for memory in (after, self.before):
                    flat = memory[: memory.numel() // tensor.itemsize * tensor.itemsize].view(tensor.dtype)
                    flat.as_strided(tuple(tensor.shape), tensor.stride(), address // tensor.itemsize).zero_()
        changed = (after != self.before).nonzero()
        assert changed.numel() == 0, (
            f"{changed.numel()} bytes written outside the outputs, first at {changed[0].item()}"
        )


def storage(tensor: torch.Tensor) -> int:
    """What tells storages apart; empty ones have no address."""
    raw = tensor.untyped_storage()
    return raw.data_ptr() if raw.nbytes() else -id(tensor)


def aligned(address: int) -> int:
    return -(-address // 512) * 512


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bits, where every NaN is one."""
    if not a.is_floating_point():
        return torch.equal(a, b)
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(
        as_bytes(a.nan_to_num(0, torch.inf, -torch.inf)), as_bytes(b.nan_to_num(0, torch.inf, -torch.inf))
    )


@cache
def bench_of(name: str, plugin: str) -> Bench:
    """The bench of a chip under its vendor's plugin, or under generic's alone."""
    chip = hdl.load(name)
    if plugin == "generic":
        return Bench(chip, generic_isa(chip), generic_kernels(chip))
    from dsf_ascend.isa import ISA
    from dsf_ascend.kernels import KERNELS

    return Bench(chip, ISA, (*KERNELS, *generic_kernels(chip)))


CHIPS = [("acme-x1", "generic"), *([("ascend-910b2", "ascend")] if find_spec("dsf_ascend") else [])]


@pytest.fixture(params=CHIPS, ids=[name for name, _ in CHIPS])
def bench(request: pytest.FixtureRequest, benches: Callable[[str, str], Bench]) -> Bench:
    """Each chip with the kernels that its installed plugins offer."""
    return benches(*request.param)


@pytest.fixture
def benches() -> Callable[[str, str], Bench]:
    """The bench of any chip, under its vendor's plugin or under generic's. Random operands are the same every time."""
    torch.manual_seed(0)
    return bench_of


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the listings of tests/golden anew, to be reviewed"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Iterator[Callable[[str, str], None]]:
    """Compares a text with the file of that name in tests/golden; with --update-golden it is written instead."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            path.write_text(text + "\n", "utf-8")
        assert path.read_text("utf-8") == text + "\n", f"{path.name} differs; review it after pytest --update-golden"

    return check
