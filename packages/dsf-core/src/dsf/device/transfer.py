"""Copies between host and device, scalars that cross over, and tensors whose storage is made or replaced."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from dsf import errors
from dsf.device import blocks, handles, scopes
from dsf.device.blocks import Block, poisoned, storage_address, table
from dsf.device.flushing import flush, physical, settle
from dsf.device.tape import lock, recorder, window

__all__ = [
    "adopt",
    "assign",
    "copier",
    "empty",
    "empty_strided",
    "index_of",
    "item",
    "read",
    "resize",
    "taken_as_uploaded",
    "to_copier",
    "unset",
]

aten = torch.ops.aten
CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

_NUMBERS = {  # dtypes that a Python number becomes, each with a tensor whose dtype a number would not widen
    torch.float64: torch.zeros((), dtype=torch.float16, device="cpu"),
    torch.int64: torch.zeros((), dtype=torch.int8, device="cpu"),
    torch.complex128: torch.zeros((), dtype=torch.complex64, device="cpu"),
}


def is_ours(tensor: torch.Tensor) -> bool:
    return tensor.device.type == recorder.name


def is_number(tensor: torch.Tensor) -> bool:
    """Whether a CPU tensor is a Python number that torch wrapped on its way into an operation."""
    probe = _NUMBERS.get(tensor.dtype)
    if probe is None:
        return tensor.dtype is torch.bool
    return torch.result_type(probe, tensor) is probe.dtype


def adopt(value: torch.Tensor, indexing: bool) -> Any:
    """What stands in an operation for a tensor without a block: a number, or its copy on the device."""
    if is_ours(value):
        if storage_address(value) not in table:
            raise _lost(value)
        return resolved(value)
    if value.device.type == "cpu":
        recorder.needs()
        if value.dim() == 0 and is_number(value):
            return value.item()
        if value.dim() == 0 or indexing:
            return upload(value)
    raise RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{recorder.name}:0 and {value.device}!"
    )


def _lost(tensor: torch.Tensor) -> BaseException:
    """Why a device tensor has no value: the error that destroyed it, or the end of its session."""
    block = poisoned.get(storage_address(tensor))
    if block is not None and block.error is not None:
        return blocks.stripped(block.error)
    if recorder.session is None:
        recorder.needs()
    return errors.DeviceError(
        "DSF-D004",
        f"{recorder.name}: a tensor of shape {tuple(tensor.shape)} was made before the chip was disabled, its memory "
        "is gone; make tensors again after dsf.enable(...)",
    )


def block_of(tensor: torch.Tensor) -> Block:
    """The block of a device tensor, or the reason why it has none."""
    found = table.get(storage_address(tensor)) or blocks.at(tensor.untyped_storage().data_ptr())
    if found is None:
        raise _lost(tensor)
    return found


def resolved(tensor: torch.Tensor) -> torch.Tensor:
    """*tensor* with torch's lazy conjugation and negation carried out."""
    if tensor.is_conj():
        return resolved(aten._conj_physical.default(tensor.conj()))
    return aten.neg.default(torch._neg_view(tensor)) if tensor.is_neg() else tensor


# ------------------------------------------------------------------------------------------------ host and device


def upload(value: torch.Tensor) -> torch.Tensor:
    """A new device tensor with the value of a CPU tensor."""
    value = value.detach().contiguous()
    tensor, _ = blocks.new(handles.layout(tuple(value.shape), value.stride(), value.dtype), 0)
    write(tensor, value)
    return tensor


def write(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Put a CPU tensor of the same shape, strides and dtype over a dense device tensor."""
    block = _any_block(tensor)
    if recorder.log and (block.physical is not None or recorder.is_pending(block)):
        flush()
    itemsize = tensor.dtype.itemsize
    start = physical(block, scopes.site()) + int(tensor.storage_offset()) * itemsize
    if tensor.numel():
        recorder.needs().write(start, value.as_strided((tensor.numel(),), (1,)))
    if tensor.nbytes == block.nbytes:
        blocks.heal(block)
    block.uploaded, block.written = True, recorder.epoch - 1


def taken_as_uploaded(tensor: torch.Tensor) -> None:
    """Treat *tensor*, which nobody wrote, as one that came from the host: a weight without numbers."""
    block = block_of(tensor)
    physical(block, scopes.site())
    block.uploaded = True


def _any_block(tensor: torch.Tensor) -> Block:
    """The block of *tensor*, also of one that an error left without a value."""
    return poisoned.get(storage_address(tensor)) or block_of(tensor)


def read(tensor: torch.Tensor) -> torch.Tensor:
    """The value of a device tensor as a fresh CPU tensor."""
    block = block_of(tensor)
    settle(block)
    value = recorder.needs().read(physical(block, scopes.site()), window(tensor))
    value = value.conj() if tensor.is_conj() else value
    return (torch._neg_view(value) if tensor.is_neg() else value).resolve_conj().resolve_neg()


def item(tensor: torch.Tensor) -> Any:
    """The Python number in a tensor of one element; without values everything is true and zero."""
    with lock:
        value = read(tensor).reshape(()).item()
        if recorder.needs().fidelity == "timing":
            return True if tensor.dtype is torch.bool else type(value)(0)
        return value


def copier(on_device: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """`aten::copy_` in every direction; *on_device* records it between device tensors."""

    def copy_(dst: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        with lock:
            if not is_ours(dst):
                return dst.copy_(read(src))
            recorder.needs()
            if dst.is_conj():
                copy_(dst.conj(), src.conj())
            elif dst.is_neg():
                copy_(torch._neg_view(dst), torch._neg_view(src))
            elif is_ours(src):
                on_device(dst, src)
            else:
                _from_host(dst, src, on_device)
            return dst

    return copy_


def _from_host(dst: torch.Tensor, src: torch.Tensor, on_device: Callable[..., Any]) -> None:
    if src.device.type != "cpu":
        raise NotImplementedError(f"Cannot copy a tensor from {src.device} to {dst.device}; copy it to the cpu first")
    if src.dtype is not dst.dtype or src.shape != dst.shape or src.stride() != dst.stride():
        staged = torch.empty_strided(dst.shape, _dense(dst), dtype=dst.dtype, device="cpu")
        src = staged.copy_(src.detach())
    if handles.is_dense(dst):
        write(dst, src.detach().resolve_conj().resolve_neg())
    else:
        on_device(dst, upload(src))


def _dense(tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides of *tensor* if it is dense, else those of a contiguous one."""
    if handles.is_dense(tensor):
        return tensor.stride()
    return torch.empty(tensor.shape, device="meta").stride()


def to_copier(on_device: Callable[..., Any], copy_: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """`aten::_to_copy` to or from the device; *on_device* records a change of dtype."""

    def to_copy(
        tensor: torch.Tensor,
        *,
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,
        device: torch.device | None = None,
        pin_memory: bool | None = None,
        non_blocking: bool = False,
        memory_format: torch.memory_format | None = None,
    ) -> torch.Tensor:
        with lock:
            kwargs: dict[str, Any] = {"dtype": dtype or tensor.dtype}
            if memory_format is not None:
                kwargs["memory_format"] = memory_format
            here = device is None or device.type == recorder.name
            if here and is_ours(tensor):
                if device is not None:
                    index_of(device)
                return on_device(tensor, **kwargs)
            like = torch.empty_strided(tensor.shape, _dense(tensor), dtype=tensor.dtype, device="meta")
            like = torch.empty_like(like, **kwargs)
            if here:
                result = empty_strided(like.shape, like.stride(), dtype=like.dtype, device=device)
                return copy_(result, tensor)
            result = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=device)
            return result if result.is_meta else result.copy_(read(tensor))

    return to_copy


# ------------------------------------------------------------------------------------------------- making storage


def index_of(device: torch.device | None) -> int:
    """The number of a device of this process; there is one."""
    index = 0 if device is None or device.index is None else device.index
    if index != 0:
        raise errors.DeviceError(
            "DSF-D005", f"{recorder.name}:{index}: no such device; this process has one, {recorder.name}:0"
        )
    return index


def empty(
    size: Any,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    stride = _strides(tuple(size), memory_format)
    return empty_strided(size, stride, dtype=dtype, device=device)


@cache
def _strides(size: tuple[int, ...], memory_format: torch.memory_format | None) -> tuple[int, ...]:
    return torch.empty(size, device="meta", memory_format=memory_format).stride()


def empty_strided(
    size: Any,
    stride: Any,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """A new tensor without a value; it takes memory when something is written to it."""
    with lock:
        recorder.needs()
        index_of(device)
        return blocks.new(handles.layout(tuple(size), tuple(stride), dtype or torch.get_default_dtype()), 0)[0]


def resize(tensor: torch.Tensor, size: Any, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    """`resize_`: other sizes over the same storage, or over a larger one that begins with the same bytes."""
    with lock:
        like = torch.empty(size, dtype=tensor.dtype, device="meta", memory_format=memory_format)
        storage, offset = tensor.untyped_storage(), int(tensor.storage_offset())
        wanted = (offset + like.numel()) * tensor.dtype.itemsize
        if wanted > storage.nbytes():
            storage = _grown(tensor, wanted).untyped_storage()
        set_storage(tensor, storage, offset, like.shape, like.stride())
        return tensor


def _grown(tensor: torch.Tensor, nbytes: int) -> torch.Tensor:
    old = tensor.untyped_storage()
    larger = empty((nbytes,), dtype=torch.uint8)
    if old.nbytes():
        flat = empty((0,), dtype=torch.uint8)
        set_storage(flat, old, 0, (old.nbytes(),), (1,))
        aten.copy_.default(larger[: old.nbytes()], flat)
    return larger


def set_storage(tensor: torch.Tensor, storage: Any, offset: int, size: Any, stride: Any) -> None:
    aten.set_.source_Storage_storage_offset.redispatch(CPU, tensor, storage, offset, list(size), list(stride))


def unset(tensor: torch.Tensor) -> torch.Tensor:
    """`set_()`: an empty storage."""
    set_storage(tensor, empty((0,), dtype=torch.uint8).untyped_storage(), 0, (0,), (1,))
    return tensor


def assign(tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """*tensor*, an `out=` argument, with the shape and the value of a CPU tensor, unpriced."""
    if tensor.shape != value.shape:
        resize(tensor, value.shape)
    block = block_of(tensor)
    recorder.needs().peek(physical(block, scopes.site()), window(tensor)).copy_(value)
    return tensor
