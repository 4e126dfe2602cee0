"""What the tests of model families share: a device that runs every tape twice, by torch's operations and by the meaning
of its intents, and tiny models with the inputs that they take."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import define, field
from tests.core.intent.conftest import run_intents, run_tape, tensor
from torch import nn

import dsf
from dsf import device, hdl
from dsf.intent import Intent, Region, Tape, Window, check, parse
from dsf.models import build
from dsf.models.capture import Step, capture
from dsf.models.presets import preset
from dsf.segments import cut

pytest.importorskip("transformers")

ARENA = 1 << 28
PAGE = 512

GENERATING = (
    "llama3-8b", "smollm2", "qwen2-7b", "qwen3-8b", "qwen3-30b-a3b", "qwen2-57b-a14b", "deepseek-v3", "mixtral-8x7b",
    "gemma-2b", "gemma2-9b", "gemma3-1b", "gpt2", "gpt-neox-20b", "bloom-7b1", "mpt-7b", "t5-small",
)  # fmt: skip
ENCODING = ("bert-base", "vit-base", "resnet-50", "whisper-small", "sd15-unet-block")
FAMILIES = (*GENERATING, *ENCODING)
"""One preset of every structure; the other presets differ from one of these in size alone."""

UNREAD = {
    "mpt-7b": "attention with ALiBi in float32 beside 16-bit scores [modeling_mpt.py] is not yet read as one intent",
}
"""Families of which something is still in pieces, and what."""


def unread(names: Iterable[str], *which: str) -> list[Any]:
    """Parameters of *names*; those of *which* are expected to fail until the pattern is there."""
    marks = {name: pytest.mark.xfail(strict=True, reason=UNREAD[name]) for name in which}
    return [pytest.param(name, marks=marks.get(name, ())) for name in names]


@contextmanager
def _as_accelerators_do() -> Iterator[None]:
    """Lets the CPU count whole numbers, which transformers' experts ask of accelerators alone [integrations/moe.py],
    keep the order of equal ones when it sorts, and give the largest in their order even where nobody asks for it: torch
    leaves both open, the kinds `sort` and `top_k` promise them."""
    library = torch.library.Library("aten", "IMPL")

    def sort(x: torch.Tensor, dim: int = -1, descending: bool = False) -> Any:
        return torch.ops.aten.sort.stable(x, stable=True, dim=dim, descending=descending)

    def topk(x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
        values, indices = torch.sort(x, dim=dim, descending=largest, stable=True)
        return values.narrow(dim, 0, k).clone(), indices.narrow(dim, 0, k).clone()

    def histc(x: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> torch.Tensor:
        if x.is_floating_point():
            raise NotImplementedError("floats are counted by torch itself")
        lowest, highest = int(min), int(max)
        assert bins == highest - lowest + 1
        return torch.bincount(x.long().clamp(lowest, highest) - lowest, minlength=bins).to(x.dtype)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl("histc", histc, "CPU")
        library.impl("sort", sort, "CPU")
        library.impl("topk", topk, "CPU")
        try:
            yield
        finally:
            library._destroy()


@define
class _Chip:
    name: str = "both readings"
    device: str = "npu"


@define(eq=False)
class Readings:
    """A `device.Session` that runs each segment by torch's operations, then, from the same bytes, by the meaning of its
    intents, and compares whatever outlives the segment. The operations' result is what goes on."""

    rtol: float = 1e-5
    atol: float = 1e-5
    chip: _Chip = field(factory=_Chip)
    fidelity: str = "operator"
    capacity: int = ARENA
    allocated: int = 0
    peak: int = 0
    memory: torch.Tensor = field(factory=lambda: torch.zeros(ARENA, dtype=torch.uint8))
    intents: list[Intent] = field(factory=list)
    hosted: list[str] = field(factory=list)
    compared: int = 0

    def allocate(self, nbytes: int, site: Any) -> int:
        address = self.allocated
        self.allocated = self.peak = address + (nbytes + PAGE) // PAGE * PAGE
        assert self.allocated <= ARENA
        return address

    def free(self, address: int) -> None: ...

    def peek(self, address: int, window: Window) -> torch.Tensor:
        typed = self.memory[address : address + (ARENA - address) // 8 * 8].view(window.dtype)
        return typed.as_strided(window.shape, window.stride, typed.storage_offset() + window.offset)

    def write(self, address: int, value: torch.Tensor) -> None:
        self.peek(address, Window(tuple(value.shape), value.stride(), 0, value.dtype)).copy_(value)

    def read(self, address: int, window: Window) -> torch.Tensor:
        return self.peek(address, window).clone()

    def host_op(self, target: str, bytes_in: int, bytes_out: int, site: Any) -> None:
        self.hosted.append(target)

    def synchronize(self) -> None: ...

    def now_fs(self) -> int:
        return 0

    def run(self, tape: Tape) -> dict[int, int]:
        addresses = {n: b.address for n, b in enumerate(tape.buffers) if b.address is not None}
        made = {n: self.allocate(b.nbytes, None) for n, b in enumerate(tape.buffers) if n not in addresses}
        whole = {n: self.memory[a : a + tape.buffers[n].nbytes] for n, a in {**addresses, **made}.items()}
        for segment in cut(tape):
            self._both(segment.tape, {own: whole[n] for own, n in enumerate(segment.buffers)})
        return {n: address for n, address in made.items() if tape.buffers[n].live}

    def _both(self, tape: Tape, storages: dict[int, torch.Tensor]) -> None:
        intents = parse(tape)
        check(intents, tape)
        self.intents += intents
        given, again = ({n: storage.clone() for n, storage in storages.items()} for _ in range(2))
        with _as_accelerators_do():
            run_tape(tape, given)
        run_intents(intents, again)
        for region in {region for op in tape.ops for region in op.writes if tape.buffers[region.buffer].live}:
            self.compare(tensor(given, region), tensor(again, region), region, tape)
        for n, storage in storages.items():
            storage.copy_(given[n])

    def compare(self, wanted: torch.Tensor, found: torch.Tensor, region: Region, tape: Tape) -> None:
        """Equal where whole numbers are; floats within the tolerance of one rounding more or less."""
        where = next((op.scope.path for op in tape.ops if region in op.writes), "")
        self.compared += 1
        torch.testing.assert_close(
            found, wanted, rtol=self.rtol, atol=self.atol, equal_nan=True, msg=lambda text: f"{where}: {text}"
        )


@pytest.fixture
def readings() -> Iterator[Callable[..., Readings]]:
    """`readings(**fields)`: the device in use until the test ends."""

    def attached(**fields: Any) -> Readings:
        dsf.disable()
        device.detach()
        session = Readings(**fields)
        device.attach(session)
        return session

    yield attached
    device.detach()


@pytest.fixture
def chips(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """`chips(name, fidelity)`: that chip enabled, under the one device name that this process may have; its name."""

    def enabled(name: str, fidelity: str) -> str:
        document = json.loads(Path(hdl.load(name).path).read_text("utf-8"))
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({**document, "device": "npu"}), "utf-8")
        dsf.disable()
        device.detach()
        dsf.enable(name if document["device"] == "npu" else str(path), fidelity=fidelity)
        return "npu"

    yield enabled
    dsf.disable()


@cache
def recorded(name: str) -> tuple[Step, ...]:
    """The prefill of 128 tokens and the decode step of *name* at full size, or its forward."""
    return capture(build.on_meta(preset(name), torch.bfloat16), length=128, decode=True)


def tiny(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    return build.tiny(preset(name), dtype)


def inputs(model: nn.Module, batch: int = 2, length: int = 7) -> dict[str, torch.Tensor]:
    return build.inputs_for(model, batch, length)


def placed(arguments: dict[str, torch.Tensor], where: str) -> dict[str, torch.Tensor]:
    return {name: value.to(where) for name, value in arguments.items()}


def answer(out: Any) -> torch.Tensor:
    """The tensor that a model's output is about."""
    found = out if isinstance(out, torch.Tensor) else out[0]
    assert isinstance(found, torch.Tensor)
    return found


def greedy(model: nn.Module, arguments: dict[str, torch.Tensor], steps: int) -> tuple[list[torch.Tensor], list[Any]]:
    """The logits of each of *steps* steps with the cache, on the CPU, and the tokens that they choose."""
    logits, tokens = [], []
    with torch.no_grad():
        out = model(**arguments, use_cache=True)
        for _ in range(steps):
            logits.append(out.logits[:, -1].cpu())
            token = out.logits[:, -1:].argmax(-1)
            tokens.append(token.cpu().tolist())
            name = "cache" if getattr(out, "cache", None) is not None else "past_key_values"
            more: dict[str, Any] = {name: getattr(out, name), "use_cache": True}
            if "decoder_input_ids" in arguments:
                more |= {"encoder_outputs": (out.encoder_last_hidden_state,), "decoder_input_ids": token}
            else:
                more["input_ids"] = token
            out = model(**more)
    return logits, tokens
