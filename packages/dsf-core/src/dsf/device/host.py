"""Operations that run on the host now: their results' shapes depend on values, or they draw random numbers.

The tape is run first, the CPU kernel works on the device's own bytes, and the session prices the two copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch._ops import OpOverload

from dsf.device import blocks, handles, rng, scopes, shapes, transfer
from dsf.device.blocks import storage_address, table
from dsf.device.flushing import flush, physical
from dsf.device.tape import recorder, window

__all__ = ["run"]

WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.int32: torch.float32}


def run(op: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run *op* with the CPU kernel on the bytes of its device arguments; its results are device tensors."""
    session = recorder.needs()
    transfer.index_of(kwargs.get("device"))
    flush()
    work = _HostCall(op, args, kwargs)
    answer = work.shapes_only() if session.fidelity == "timing" else work.compute()
    fresh = sum(t.nbytes for t in _flat(answer) if id(t) not in work.given)
    session.host_op(str(op), work.nbytes, fresh + work.mutate(), scopes.site())
    return answer


class _HostCall:
    """One call: *given* are its device tensors by id, *aliases* the CPU tensors over their bytes."""

    def __init__(self, op: OpOverload, args: Any, kwargs: dict[str, Any]) -> None:
        self.op, self.args, self.kwargs = op, args, kwargs
        names = shapes.mutable_names(op)
        self.outs = {n: v for n, v in kwargs.items() if n in names}
        self.written = [*_flat([a for n, a in enumerate(args) if n in names]), *_flat(self.outs.values())]
        self.given = {id(t): t for t in _flat((args, kwargs.values()))}
        self.nbytes = sum(t.nbytes for t in self.given.values() if all(t is not o for o in _flat(self.outs.values())))
        self.aliases: dict[int, torch.Tensor] = {}

    def alias(self, tensor: torch.Tensor) -> torch.Tensor:
        found = self.aliases.get(id(tensor))
        if found is None:
            block = table[storage_address(tensor)]
            found = recorder.needs().peek(physical(block, scopes.site()), window(tensor))
            self.aliases[id(tensor)] = found
        return found

    def compute(self) -> Any:
        args = shapes.substitute(self.args, self.alias)
        inputs = {n: v for n, v in self.kwargs.items() if n not in self.outs}
        kwargs = shapes.on_device(shapes.substitute(inputs, self.alias), "cpu")
        outs = shapes.substitute(self.outs, lambda t: torch.empty(0, dtype=t.dtype, device="cpu"))
        result = _call(self.op, args, {**kwargs, **outs})
        ours = {id(cpu): self.given[key] for key, cpu in self.aliases.items()}
        for name, out in self.outs.items():
            ours |= {id(cpu): transfer.assign(t, cpu) for t, cpu in zip(_flat([out]), _flat([outs[name]]), strict=True)}
        return _placed(result, ours)

    def shapes_only(self) -> Any:
        """The results without values, by their shapes if torch can tell, else from zeros."""
        plan = shapes.plan(self.op, self.args, self.kwargs, list(_flat((self.args, self.kwargs.values()))))
        if plan is None:
            return self.compute()
        fresh = [blocks.new(layout, recorder.epoch - 1)[0] for layout in plan.fresh]
        return shapes.answer(plan.returns, fresh, list(_flat((self.args, self.kwargs.values()))))

    def mutate(self) -> int:
        """Note what was written in place; the answer is its size in bytes."""
        for tensor in self.written:
            block = table[storage_address(tensor)]
            block.uploaded, block.written = False, recorder.epoch - 1
        return sum(t.nbytes for t in self.written)


def _call(op: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
    """The CPU kernel; a dtype that it lacks and accelerators have is computed in a wider one."""
    random = torch.Tag.nondeterministic_seeded in op.tags and kwargs.get("generator") is None
    with rng.drawing() if random else nullcontext():
        try:
            return op(*args, **kwargs)
        except (RuntimeError, NotImplementedError) as error:
            if "not implemented for" not in str(error) or shapes.mutable_names(op):
                raise
            return _in_wider(op, args, kwargs)


def _in_wider(op: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
    narrow = [t.dtype for t in _flat((args, kwargs.values())) if t.dtype in WIDER]
    widen = lambda t: t.to(WIDER.get(t.dtype, t.dtype))  # noqa: E731
    result = op(*shapes.substitute(args, widen), **shapes.substitute(kwargs, widen))
    narrowed = lambda t: t.to(narrow[0]) if narrow and t.dtype is WIDER[narrow[0]] else t  # noqa: E731
    return shapes.substitute(result, narrowed)


def _placed(result: Any, ours: dict[int, torch.Tensor]) -> Any:
    """*result* with device tensors for CPU tensors: the argument's own where it is one, else a new one."""
    return shapes.substitute(result, lambda t: ours[id(t)] if id(t) in ours else place(t))


def place(value: torch.Tensor) -> torch.Tensor:
    """A device tensor with the bytes of a CPU tensor, unpriced."""
    value = value.resolve_conj().resolve_neg()
    if value.is_sparse or value.layout is not torch.strided:
        raise NotImplementedError(
            f"{recorder.name}: a result has layout {value.layout}; only strided tensors exist here"
        )
    if not handles.is_dense(value):
        value = value.contiguous()
    shape, stride = tuple(value.shape), value.stride()
    tensor, block = blocks.new(handles.layout(shape, stride, value.dtype), recorder.epoch - 1)
    recorder.needs().peek(physical(block, scopes.site()), window(tensor)).copy_(value)
    return tensor


def _flat(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, list | tuple) or type(values) is type({}.values()):
        for value in values:
            yield from _flat(value)
