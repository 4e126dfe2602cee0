"""What a model's step wants, without numbers and without a chip: the step is recorded, parsed, and never run.

Intents know no chip. So the recorder here is a session that has endless memory and no clock: tensors get addresses,
reads give zeros, and a tape that is flushed is cut and parsed as the pipeline does it, each structure once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from attrs import define, field, frozen

from dsf import device
from dsf.device.transfer import taken_as_uploaded
from dsf.intent.ir import Intent
from dsf.intent.parse import parse
from dsf.intent.tape import Site, Tape, Window
from dsf.models.build import inputs_for
from dsf.segments import Segment, cut

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Part", "Step", "capture", "recording"]

DEVICE = "npu"  # what torch calls the recorder, if no chip has given its own name yet
PAGE = 512


@frozen(eq=False)
class Part:
    """A segment of a recorded tape and its intents, whose regions and *ops* count the segment's own buffers and
    operations."""

    segment: Segment
    intents: tuple[Intent, ...]


@frozen(eq=False)
class Step:
    """One step of a model: its *parts* in order, and the number of tapes that they come from."""

    name: str
    parts: tuple[Part, ...]
    flushes: int

    @property
    def intents(self) -> tuple[Intent, ...]:
        return tuple(intent for part in self.parts for intent in part.intents)


@frozen
class _NoChip:
    name: str
    device: str


@define(eq=False)
class _Recorder:
    """A `device.Session` that parses what it is given. Addresses only ever grow; nothing lies behind them."""

    chip: _NoChip
    fidelity: str = "timing"
    capacity: int = 1 << 62
    allocated: int = 0
    peak: int = 0
    parts: list[Part] = field(factory=list)
    flushes: int = 0
    watch: Callable[[str], None] = lambda target: None
    _parsed: dict[Any, tuple[Intent, ...]] = field(factory=dict)

    def allocate(self, nbytes: int, site: Site | None) -> int:
        address = self.allocated
        self.allocated = self.peak = address + (nbytes + PAGE) // PAGE * PAGE
        return address

    def free(self, address: int) -> None:
        """Addresses are not used again."""

    def write(self, address: int, tensor: torch.Tensor) -> None:
        """Values are not kept."""

    def read(self, address: int, window: Window) -> torch.Tensor:
        return torch.zeros(window.shape, dtype=window.dtype)

    def peek(self, address: int, window: Window) -> torch.Tensor:
        return torch.zeros(window.shape, dtype=window.dtype)

    def run(self, tape: Tape) -> dict[int, int]:
        self.flushes += 1
        for segment in cut(tape):
            if segment.key not in self._parsed:
                self._parsed[segment.key] = parse(segment.tape)
            self.parts.append(Part(segment, self._parsed[segment.key]))
        taken = enumerate(tape.buffers)
        return {n: self.allocate(b.nbytes, None) for n, b in taken if b.live and b.address is None}

    def host_op(self, target: str, bytes_in: int, bytes_out: int, site: Site | None) -> None:
        self.watch(target)

    def synchronize(self) -> None:
        """There is nothing to wait for."""

    def now_fs(self) -> int:
        return 0

    def taken(self, name: str) -> Step:
        """What was recorded since the last call, as a step."""
        device.flush()
        step = Step(name, tuple(self.parts), self.flushes)
        self.parts, self.flushes = [], 0
        return step


@contextmanager
def recording() -> Iterator[_Recorder]:
    """A device that records and computes nothing; no chip may be enabled meanwhile."""
    taken = torch._C._get_privateuse1_backend_name()
    recorder = _Recorder(_NoChip("the recorder of intents", DEVICE if taken == "privateuseone" else taken))
    device.attach(recorder)
    try:
        yield recorder
    finally:
        device.detach()


def capture(
    model: nn.Module,
    inputs: dict[str, Any] | None = None,
    *,
    batch: int = 1,
    length: int = 128,
    decode: bool = False,
    watch: Callable[[str], None] = lambda stage: None,
) -> tuple[Step, ...]:
    """The steps of *model*, which moves to the recorder and is lost: a forward of *inputs* (by default *length*
    tokens), and with *decode* a second one of one token more, for a model that has a cache.

    A model on torch's meta device needs no memory. Values that the model itself reads are zero or true.
    """
    given = inputs_for(model, batch, length) if inputs is None else inputs
    with recording() as recorder, torch.no_grad():
        here = recorder.chip.device
        watch("weights")
        model = _moved(model, here)
        dtype = next((p.dtype for p in model.parameters()), torch.float32)
        arguments = {name: _placed(value, here, dtype) for name, value in given.items()}
        recorder.taken("upload")
        watch("prefill")
        generates = "input_ids" in arguments and getattr(model, "can_generate", lambda: False)()
        out = model(**arguments, **({"use_cache": True} if generates else {}))
        steps = [recorder.taken("prefill" if generates else "forward")]
        cache = _cache(out) if decode and generates else {}
        if cache:
            watch("decode")
            held = model(**_next(arguments, out), **cache, use_cache=True)
            steps.append(recorder.taken("decode"))
            del held
        del out
        return tuple(steps)


def _cache(out: Any) -> dict[str, Any]:
    """The cache in a model's output under the name that the model takes it by: transformers renames it."""
    name = next((n for n in ("cache", "past_key_values") if getattr(out, n, None) is not None), None)
    return {} if name is None else {name: getattr(out, name)}


def _next(arguments: dict[str, Any], out: Any) -> dict[str, Any]:
    """The arguments of the step after *arguments* gave *out*: one token more."""
    last = arguments.get("decoder_input_ids", arguments["input_ids"])
    token = torch.zeros_like(last[:, -1:])
    if "decoder_input_ids" not in arguments:
        return {"input_ids": token}
    return {"encoder_outputs": (out.encoder_last_hidden_state,), "decoder_input_ids": token}


def _moved(model: nn.Module, here: str) -> nn.Module:
    """*model* on the recorder; from the meta device there is nothing to copy, and its weights are weights all the
    same."""
    weights = [*model.parameters(), *model.buffers()]
    if not any(t.is_meta for t in weights):
        return model.to(here)
    model = model.to_empty(device=here)
    device.flush()
    for tensor in (*model.parameters(), *model.buffers()):
        taken_as_uploaded(tensor)
    return model


def _placed(value: Any, here: str, dtype: torch.dtype) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    value = torch.zeros(value.shape, dtype=value.dtype) if value.is_meta else value
    return value.to(here, dtype) if value.is_floating_point() else value.to(here)
