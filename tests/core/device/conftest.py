"""The emulated device on a session without a chip, so that a test needs nothing but torch.

`ReferenceSession` is the least that a session can be: memory is one array of bytes, and a tape is run operation by
operation with CPU kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from attrs import define, field, frozen

from dsf import device, errors
from dsf.intent.tape import Op, Region, Site, Tape, Window

PAGE = 512


@frozen
class ReferenceChip:
    name: str = "reference"
    device: str = "npu"


@define(eq=False)
class ReferenceSession:
    """*tapes* keeps what was run; *traffic* the bytes written to and read from the device by the user."""

    chip: ReferenceChip = field(factory=ReferenceChip)
    fidelity: str = "operator"
    capacity: int = 1 << 26
    allocated: int = 0
    peak: int = 0
    sizes: dict[int, int] = field(factory=dict)
    holes: list[tuple[int, int]] = field(factory=list)
    tapes: list[Tape] = field(factory=list)
    host_ops: list[str] = field(factory=list)
    traffic: list[tuple[str, int]] = field(factory=list)
    clock_fs: int = 0
    memory: torch.Tensor = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.memory = torch.zeros(self.capacity, dtype=torch.uint8)
        self.holes = [(0, self.capacity)]

    def allocate(self, nbytes: int, site: Site | None) -> int:
        size = max(PAGE, (nbytes + PAGE - 1) // PAGE * PAGE)
        for n, (start, room) in enumerate(self.holes):
            if room >= size:
                self.holes[n] = (start + size, room - size)
                self.sizes[start] = size
                self.allocated += size
                self.peak = max(self.peak, self.allocated)
                return start
        raise errors.OutOfMemory("DSF-M001", f"{site}: {nbytes} bytes needed, no hole is large enough")

    def free(self, address: int) -> None:
        size = self.sizes.pop(address)
        self.allocated -= size
        holes = sorted([*self.holes, (address, size)])
        merged = holes[:1]
        for start, room in holes[1:]:
            last, width = merged[-1]
            if last + width == start:
                merged[-1] = (last, width + room)
            else:
                merged.append((start, room))
        self.holes = [h for h in merged if h[1]]

    def write(self, address: int, tensor: torch.Tensor) -> None:
        self.traffic.append(("write", tensor.nbytes))
        self.peek(address, _window(tensor)).copy_(tensor)

    def read(self, address: int, window: Window) -> torch.Tensor:
        self.traffic.append(("read", window.numel * window.dtype.itemsize))
        if self.fidelity == "timing":
            return torch.zeros(window.shape, dtype=window.dtype)
        return self.peek(address, window).clone(memory_format=torch.contiguous_format)

    def peek(self, address: int, window: Window) -> torch.Tensor:
        if self.fidelity == "timing":
            return torch.zeros(window.shape, dtype=window.dtype)
        flat = self.memory[address:]
        typed = flat[: flat.numel() // window.dtype.itemsize * window.dtype.itemsize].view(window.dtype)
        return typed.as_strided(window.shape, window.stride, typed.storage_offset() + window.offset)

    def run(self, tape: Tape) -> dict[int, int]:
        self.tapes.append(tape)
        self.clock_fs += 1000 * len(tape.ops)
        new = {n: self.allocate(b.nbytes, _site_of(tape, n)) for n, b in enumerate(tape.buffers) if b.address is None}
        address = {n: new.get(n, b.address) for n, b in enumerate(tape.buffers)}
        if self.fidelity != "timing":
            for op in tape.ops:
                self._execute(op, address)
        for n, b in enumerate(tape.buffers):
            if n in new and not b.live:
                self.free(new.pop(n))
        return new

    def _execute(self, op: Op, address: dict[int, Any]) -> None:
        def tensor(value: Any) -> Any:
            if isinstance(value, Region):
                return self.peek(address[value.buffer], value.window)
            return [tensor(v) for v in value] if isinstance(value, tuple) else value

        packet, _, name = op.target.removeprefix("aten.").rpartition(".")
        function = getattr(getattr(torch.ops.aten, packet), name)
        with torch.no_grad():
            result = function(*map(tensor, op.args), **{k: tensor(v) for k, v in op.kwargs.items()})
        fresh = set(op.signature.writes)
        for region, value in zip(op.outs, _flat(result), strict=True):
            target = tensor(region)
            if fresh and target.data_ptr() != value.data_ptr():
                assert (target.dtype, target.shape) == (value.dtype, value.shape), op.target
                target.copy_(value)

    def host_op(self, target: str, bytes_in: int, bytes_out: int, site: Site | None) -> None:
        self.host_ops.append(target)

    def synchronize(self) -> None:
        self.clock_fs += 1

    def now_fs(self) -> int:
        return self.clock_fs


def _window(tensor: torch.Tensor) -> Window:
    return Window(tuple(tensor.shape), tensor.stride(), 0, tensor.dtype)


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value or () for t in _flat(v)]


def _site_of(tape: Tape, buffer: int) -> Site | None:
    return next((op.site for op in tape.ops if buffer in op.buffers), None)


@pytest.fixture
def make_session() -> Iterator[Callable[..., ReferenceSession]]:
    """Attach a session made with the given fields; whatever is attached at the end is detached."""

    def make(**fields: Any) -> ReferenceSession:
        device.detach()
        made = ReferenceSession(**fields)
        device.attach(made)
        return made

    torch.manual_seed(0)
    yield make
    device.detach()


@pytest.fixture
def session(make_session: Callable[..., ReferenceSession]) -> ReferenceSession:
    return make_session()


@pytest.fixture
def recorded(session: ReferenceSession) -> Callable[[], list[str]]:
    """Targets of everything run since the last call."""

    def take() -> list[str]:
        device.flush()
        targets = [op.target for tape in session.tapes for op in tape.ops]
        session.tapes.clear()
        return targets

    return take
