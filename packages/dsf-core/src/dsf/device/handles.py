"""Tensors of the emulated device: real dense PrivateUse1 tensors, made through DLPack, whose pointer is virtual.

A DLPack capsule is a C struct that describes a tensor. We write that struct ourselves, with the device type of external
devices (12), an address that no host memory backs and no deleter, and let torch read it. Torch copies what it reads, so
one struct serves all tensors. A weak reference to the storage object fires when its last view has died.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from attrs import frozen

from dsf.intent.tape import Window

__all__ = ["Layout", "is_dense", "layout", "make", "when_dead"]

EXTERNAL_DEVICE = 12  # kDLExtDev of dlpack.h, which torch reads as PrivateUse1
KIND = 2  # 64-bit words of DLManagedTensor: address, device, rank and dtype, sizes, strides, offset, context, deleter

_NAME = b"dltensor"
_api = ctypes.pythonapi
_new_capsule = _api.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_set_name = _api.PyCapsule_SetName
_set_name.argtypes = (ctypes.py_object, ctypes.c_char_p)
_get_pointer = _api.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_from_dlpack = torch._C._from_dlpack
_storage_of = torch._C.TensorBase.untyped_storage


@frozen(eq=False)
class Layout:
    """Shape, strides and dtype as DLPack wants them; *sizes* and *strides* point into *memory*."""

    kind: int
    sizes: int
    strides: int
    nbytes: int
    window: Window
    memory: ctypes.Array[ctypes.c_int64]


_memory = (ctypes.c_int64 * 8)(0, EXTERNAL_DEVICE)
_words = memoryview(_memory).cast("B").cast("q")
_capsule = _new_capsule(ctypes.addressof(_memory), _NAME, None)


@cache
def _code(dtype: torch.dtype) -> int:
    """Bits, lanes and type code of *dtype*: the upper half of a struct's third word, from a capsule of torch's own."""
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
    """The interned layout of a tensor with storage of its own; never freed, since torch reads it."""
    rank = len(shape)
    memory = (ctypes.c_int64 * (2 * rank + 1))(*shape, *stride)
    start = ctypes.addressof(memory)
    nbytes = span(shape, stride) * dtype.itemsize
    return Layout(_code(dtype) | rank, start, start + 8 * rank, nbytes, Window(shape, stride, 0, dtype), memory)


def make(layout: Layout, address: int) -> torch.Tensor:
    """A device tensor at a virtual address. The caller holds the recorder's lock."""
    _words[0], _words[2], _words[3], _words[4] = address, layout.kind, layout.sizes, layout.strides
    _set_name(_capsule, _NAME)
    return _from_dlpack(_capsule)


def when_dead(tensor: torch.Tensor, call: Callable[[Any], object]) -> weakref.ref[torch.UntypedStorage]:
    """Calls *call* when the last tensor over *tensor*'s storage has died, as long as the answer is kept."""
    return weakref.ref(_storage_of(tensor), call)
