"""A small recorder over CPU tensors: plain torch code in, a `Tape` out, with the values it began with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from attrs import define, field
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from dsf.intent import Buffer, Intent, Op, Region, Scope, Signature, Slot, Tape, Window, check, meaning, parse

aten = torch.ops.aten

COMPOSITES: dict[Any, Any] = {
    F.linear: aten.linear.default,
    F.scaled_dot_product_attention: aten.scaled_dot_product_attention.default,
    F.softmax: aten.softmax.int,
    F.layer_norm: aten.layer_norm.default,
    F.rms_norm: aten.rms_norm.default,
    **dict.fromkeys((torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__), aten.matmul.default),
    **dict.fromkeys((torch.softmax, torch.Tensor.softmax), aten.softmax.int),
}
"""Composite functions that the device records whole."""


@define(eq=False)
class Recording:
    """A tape, the bytes its buffers began with, and the tensors the function returned."""

    tape: Tape
    before: dict[int, torch.Tensor]
    results: list[torch.Tensor]
    numbers: dict[int, int] = field(factory=dict)

    def storages(self) -> dict[int, torch.Tensor]:
        """Fresh bytes for every buffer, as they were before the tape ran."""
        return {
            n: self.before[n].clone() if n in self.before else torch.zeros(b.nbytes, dtype=torch.uint8)
            for n, b in enumerate(self.tape.buffers)
        }

    def parsed(self) -> tuple[Intent, ...]:
        """The intents, checked."""
        intents = parse(self.tape)
        check(intents, self.tape)
        return intents

    def kinds(self) -> list[str]:
        return [intent.kind for intent in self.parsed()]

    def only(self, kind: str) -> Intent:
        found = [intent for intent in self.parsed() if intent.kind == kind]
        assert len(found) == 1, f"{len(found)} intents of kind {kind}: {list(map(str, self.parsed()))}"
        return found[0]

    def after(self, intents: Sequence[Intent] | None) -> list[torch.Tensor]:
        """What the live buffers hold once the tape (None) or the intents have run."""
        storages = self.storages()
        run_tape(self.tape, storages) if intents is None else run_intents(intents, storages)
        return [tensor(storages, Region(n, w)) for n, w in self.live_windows()]

    def live_windows(self) -> list[tuple[int, Window]]:
        windows = {}
        for op in self.tape.ops:
            for region in op.writes:
                if self.tape.buffers[region.buffer].live:
                    windows[region.buffer, region.window] = None
        return list(windows)

    def assert_same(self, rtol: float = 0.0, atol: float = 0.0) -> None:
        """The intents leave behind what the operations leave behind."""
        wanted, found = self.after(None), self.after(self.parsed())
        assert wanted
        for want, have in zip(wanted, found, strict=True):
            torch.testing.assert_close(have, want, rtol=rtol, atol=atol, equal_nan=True)


def tensor(storages: dict[int, torch.Tensor], region: Region) -> torch.Tensor:
    whole = storages[region.buffer]
    size = region.dtype.itemsize
    typed = whole[: whole.numel() // size * size].view(region.dtype)
    return typed.as_strided(region.shape, region.stride, region.offset)


def run_tape(tape: Tape, storages: dict[int, torch.Tensor]) -> None:
    for op in tape.ops:
        taken = set(_slots(op.signature.args)) | set(_slots([v for _, v in op.signature.kwargs]))

        def fill(value: Any, op: Op = op) -> Any:
            if isinstance(value, Slot):
                return tensor(storages, op.region(value.index))
            return [fill(v) for v in value] if isinstance(value, tuple) else value

        function = torch.ops
        for part in op.target.split("."):
            function = getattr(function, part)
        result = function(*map(fill, op.signature.args), **{k: fill(v) for k, v in op.signature.kwargs})
        for slot, value in zip(op.signature.outs, [t for t in tree_leaves(result) if t is not None], strict=True):
            if slot not in taken:
                tensor(storages, op.region(slot)).copy_(value)


def run_intents(intents: Sequence[Intent], storages: dict[int, torch.Tensor]) -> None:
    for intent in intents:
        outputs = meaning(intent, *(tensor(storages, r) for r in intent.inputs))
        for region, value in zip(intent.outputs, outputs, strict=True):
            assert value.shape == region.shape, str(intent)
            assert value.dtype == region.dtype, str(intent)
            tensor(storages, region).copy_(value)


def _slots(value: Any) -> list[int]:
    if isinstance(value, Slot):
        return [value.index]
    return [i for v in value for i in _slots(v)] if isinstance(value, (tuple, list)) else []


class _Functions(TorchFunctionMode):
    """Catches the composites before they fall apart."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {k: v for k, v in (kwargs or {}).items() if k != "_stacklevel"}
        if func not in COMPOSITES:
            return func(*args, **kwargs)
        op = COMPOSITES[func]
        if func is F.softmax and len(args) > 2:
            args = args[:2]
        with _disable_current_modes():
            return self.recorder.record(op, *_normal(op, args, kwargs))


def _normal(op: Any, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments as the schema has them: positional ones by position, without trailing defaults."""
    schema = op._schema.arguments
    named = dict(zip((a.name for a in schema), args, strict=False)) | kwargs
    positional = [a for a in schema if not a.kwarg_only]
    values = [named.get(a.name, a.default_value) for a in positional]
    while values and positional[len(values) - 1].name not in named:
        values.pop()
    return tuple(values), {a.name: named[a.name] for a in schema if a.kwarg_only and a.name in named}


class Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Op] = []
        self.numbers: dict[int, int] = {}
        self.keep: list[Any] = []
        self.nbytes: list[int] = []
        self.before: dict[int, torch.Tensor] = {}

    def number(self, value: torch.Tensor, *, fresh: bool) -> int:
        storage = value.untyped_storage()
        if storage._cdata not in self.numbers:
            self.numbers[storage._cdata] = len(self.keep)
            self.keep.append(storage)
            self.nbytes.append(storage.nbytes())
            if not fresh:
                self.before[len(self.keep) - 1] = torch.tensor([], dtype=torch.uint8).set_(storage).clone()
        return self.numbers[storage._cdata]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.record(func, args, kwargs or {})

    def record(self, op: Any, args: Any, kwargs: Any) -> Any:
        slots: list[torch.Tensor] = []
        buffers: list[int] = []

        def take(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                slots.append(value)
                buffers.append(self.number(value, fresh=False))
                return Slot(len(slots) - 1)
            return tuple(map(take, value)) if isinstance(value, (tuple, list)) else value

        template = tuple(map(take, args))
        named = tuple(sorted((k, take(v)) for k, v in kwargs.items()))
        writes = self._written(op, template, dict(named))
        windows = list(map(_window, slots))
        result = op(*args, **kwargs)
        outs = []
        results = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        for value in results:
            again = [w for w in writes if slots[w] is value]
            if again:
                outs.append(again[0])
                continue
            if not writes and value.untyped_storage()._cdata in self.numbers:
                return result  # a view makes no operation
            buffers.append(self.number(value, fresh=True))
            windows.append(_window(value))
            outs.append(len(windows) - 1)
        written = tuple(dict.fromkeys((*writes, *(o for o in outs if o >= len(slots)))))
        signature = Signature(0, str(op), template, named, tuple(windows), written, tuple(outs))
        self.ops.append(Op(signature, tuple(buffers), Scope(), None))
        return result

    def _written(self, op: Any, template: tuple[Any, ...], named: dict[str, Any]) -> tuple[int, ...]:
        given = dict(zip((a.name for a in op._schema.arguments), template, strict=False)) | named
        pairs = [(a, given.get(a.name)) for a in op._schema.arguments]
        return tuple(s for a, v in pairs if a.alias_info is not None and a.alias_info.is_write for s in _slots(v))


def _window(value: torch.Tensor) -> Window:
    return Window(tuple(value.shape), value.stride(), value.storage_offset(), value.dtype)


def record_step(function: Callable[..., Any], *inputs: Any) -> Recording:
    """Runs *function* and returns its tape; everything it was given and everything it returns stays live."""
    recorder = Recorder()
    with torch.no_grad(), _Functions(recorder), recorder:
        result = function(*inputs)
    results = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
    held = {recorder.numbers.get(t.untyped_storage()._cdata) for t in results}
    buffers = tuple(
        Buffer(nbytes, (n + 1) << 20 if n in recorder.before else None, n in held or n in recorder.before)
        for n, nbytes in enumerate(recorder.nbytes)
    )
    return Recording(Tape(tuple(recorder.ops), buffers), recorder.before, results)


@pytest.fixture(name="record")
def _record() -> Callable[..., Recording]:
    """`record(function, *inputs)`: what the function does, as a `Recording`."""
    return record_step


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
