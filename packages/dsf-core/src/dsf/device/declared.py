"""Recording what a user declared: one operation of ours on the tape, whose target names the kind of intent it means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dsf.device.blocks import new
from dsf.device.flushing import flush
from dsf.device.handles import layout
from dsf.device.kernels import Call
from dsf.device.scopes import here, site
from dsf.device.tape import intern, lock, recorder, window
from dsf.intent.operators import DECLARED
from dsf.intent.tape import Slot

__all__ = ["is_ours", "name", "record"]


def name() -> str:
    """What torch calls the emulated device."""
    return recorder.name


def is_ours(value: Any) -> bool:
    """Whether *value* is a tensor of the emulated device."""
    return isinstance(value, torch.Tensor) and value.device.type == recorder.name


def record(
    kind: str, attrs: tuple[tuple[str, Any], ...], tensors: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Record one operation that means a *kind* of *tensors*; the answer is new tensors shaped as *results* (on any
    device, meta will do)."""
    with lock:
        recorder.needs()
        call = Call(indexing=False)
        call.describe(tensors)
        if len(recorder.log) >= recorder.cap:
            flush()
        layouts = [layout(tuple(t.shape), torch.empty_like(t, device="meta").stride(), t.dtype) for t in results]
        made = [new(each, recorder.epoch) for each in layouts]
        count = len(call.tensors)
        fresh = tuple(range(count, count + len(made)))
        windows = (*map(window, call.tensors), *(each.window for each in layouts))
        signature = intern(DECLARED + kind, tuple(map(Slot, range(count))), attrs, windows, fresh, fresh)
        recorder.log.append((signature, [*call.blocks, *(block for _, block in made)], here.scope, site()))
        return [tensor for tensor, _ in made]
