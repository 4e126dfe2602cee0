"""Tensors of the emulated device: real dense PrivateUse1 tensors, made through DLPack, whose pointer is virtual.

A DLPack capsule is a C struct that describes a tensor. We write that struct ourselves, with the device type of external
devices (12) and an address that no host memory backs, and let torch read it. When the last view of a storage dies torch
calls the struct's deleter, which tells the owner. Structs and capsules are used again, which makes a handle cost 2 us.
"""

from __future__ import annotations

import atexit
import ctypes
from functools import cache
from typing import Protocol

import torch
from attrs import frozen

from dsf.intent.tape import Window

__all__ = ["Layout", "Owner", "is_dense", "layout", "make"]

EXTERNAL_DEVICE = 12  # kDLExtDev of dlpack.h, which torch reads as PrivateUse1
DATA, DEVICE, KIND, SHAPE, STRIDES, DELETER = 0, 1, 2, 3, 4, 7  # 64-bit words of DLManagedTensor

_NAME = b"dltensor"
_api = ctypes.pythonapi
_new_capsule = _api.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_set_name = _api.PyCapsule_SetName
_set_name.argtypes = (ctypes.py_object, ctypes.c_char_p)
_get_pointer = _api.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_from_dlpack = torch._C._from_dlpack


class Owner(Protocol):
    """Who is told when the last tensor of a storage has died."""

    address: int

    def die(self) -> None: ...


@frozen(eq=False)
class Layout:
    """Shape, strides and dtype as DLPack wants them; *sizes* and *strides* point into *memory*."""

    kind: int
    sizes: int
    strides: int
    nbytes: int
    window: Window
    memory: ctypes.Array[ctypes.c_int64]


class _Slot:
    """One struct with its capsule; *owner* is whose storage it describes at the moment."""

    __slots__ = ("capsule", "memory", "owner", "words")

    def __init__(self) -> None:
        self.memory = (ctypes.c_int64 * 8)()
        self.words = memoryview(self.memory).cast("B").cast("q")
        self.words[DEVICE], self.words[DELETER] = EXTERNAL_DEVICE, _DELETER
        pointer = ctypes.addressof(self.memory)
        self.capsule = _new_capsule(pointer, _NAME, None)
        self.owner: Owner | None = None
        _slots[pointer] = self


_slots: dict[int, _Slot] = {}
_pool: list[_Slot] = []


def _release(pointer: int, slots: dict[int, _Slot] = _slots, pool: list[_Slot] = _pool) -> None:
    slot = slots[pointer]
    owner, slot.owner = slot.owner, None
    pool.append(slot)
    if owner is not None:
        owner.die()


_deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_release)
_DELETER = ctypes.cast(_deleter, ctypes.c_void_p).value or 0


@atexit.register
def _forget_deleters() -> None:
    """Tensors that outlive the interpreter must not call back into it: torch skips a deleter that is null."""
    for slot in _slots.values():
        slot.words[DELETER] = 0


@cache
def _code(dtype: torch.dtype) -> int:
    """Bits, lanes and type code of *dtype* as the upper half of a struct's third word, read from torch's own capsule."""
    capsule = torch._C._to_dlpack(torch.empty(1, dtype=dtype, device="cpu"))
    words = (ctypes.c_int64 * 8).from_address(_get_pointer(capsule, _NAME))
    return words[KIND] >> 32 << 32


def span(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Elements from the first to the last one that a window touches."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether every element has a place of its own and no gap lies between them."""
    if tensor.is_contiguous():
        return True
    axes = sorted((step, size) for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1)
    expected = 1
    for step, size in axes:
        if step != expected:
            return False
        expected *= size
    return True


@cache
def layout(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Layout:
    """The interned layout of a tensor with storage of its own; it is never freed, since torch may read it at any time."""
    rank = len(shape)
    memory = (ctypes.c_int64 * (2 * rank + 1))(*shape, *stride)
    start = ctypes.addressof(memory)
    nbytes = span(shape, stride) * dtype.itemsize
    return Layout(_code(dtype) | rank, start, start + 8 * rank, nbytes, Window(shape, stride, 0, dtype), memory)


def make(layout: Layout, owner: Owner) -> torch.Tensor:
    """A device tensor at *owner*'s virtual address; `owner.die()` is called when its storage dies."""
    slot = _pool.pop() if _pool else _Slot()
    words = slot.words
    words[0], words[2], words[3], words[4] = owner.address, layout.kind, layout.sizes, layout.strides
    slot.owner = owner
    _set_name(slot.capsule, _NAME)
    return _from_dlpack(slot.capsule)
