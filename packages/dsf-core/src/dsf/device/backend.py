"""The device in torch: the name, the kernels, and every patch of torch that an accelerator in pure Python needs.

PrivateUse1 can be named once per process and kernels cannot be taken back, so `register` happens once; without a
session the kernels answer with a sentence. Patches of Python objects are in one list and `unpatch` undoes them all.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.library import Library, fallthrough_kernel
from torch.utils import backend_registration

from dsf import errors
from dsf.device import autocast, composed, handles, kernels, recurrent, rng, scopes, selftest, torch_module, transfer
from dsf.device.blocks import storage_address
from dsf.device.tape import recorder

__all__ = ["patch", "register", "unpatch"]

_libraries: list[Library] = []  # kernels live as long as their library


def register(name: str) -> None:
    """Make *name* a device of torch, if it is not one already."""
    if recorder.name == name and _libraries:
        return
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in ("privateuseone", name) or hasattr(torch, name):
        raise errors.DeviceError(
            "DSF-D002",
            f"{name}: this process already has the device {taken!r}, and torch allows one extra device name per "
            "process; use a chip of that device, or start another process",
        )
    selftest.check(selftest.BEFORE)
    backend_registration._setup_privateuseone_for_python_backend(name, torch_module.device_module(name), _Hooks())
    recorder.name = name
    selftest.check(selftest.WITH_DEVICE)
    _register_kernels()
    _register_autocast()


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return recorder.session is not None

    def has_primary_context(self, device_index: int) -> bool:
        return recorder.session is not None

    def is_built(self) -> bool:
        return True


def _register_kernels() -> None:
    library = Library("aten", "IMPL")
    _libraries.append(library)
    special = _special()
    for name, op, kind in kernels.operations():
        if name not in special:
            library.impl(name, _MAKERS[kind](op), "PrivateUse1")
    for name in kernels.COMPOSITES:
        op = kernels.overload(name)
        kernel = kernels.recorded(op)
        if name == "scaled_dot_product_attention":
            kernel = kernels.attention(kernel)
        library.impl(name, kernel, "PrivateUse1")
        library.impl(name, kernels.composite(op, kernel), "AutogradPrivateUse1")
    for name, kernel in special.items():
        library.impl(name, kernel, "PrivateUse1")
    for name, kernel in recurrent.CELLS.items():
        library.impl(name, kernel, "PrivateUse1")
        library.impl(name, kernel, "AutogradPrivateUse1")
    _register_pinning(library)


_MAKERS: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "record": kernels.recorded,
    "host": kernels.handed_to_host,
    "view": kernels.viewed,
}


def _special() -> dict[str, Callable[..., Any]]:
    """The kernels that are not made from their operation's schema."""
    recorded = {n: kernels.recorded(kernels.overload(n)) for n in ("copy_", "_to_copy")}
    copy = transfer.copier(recorded["copy_"])
    views = ("set_.source_Storage", "set_.source_Storage_storage_offset", "set_.source_Tensor", "is_set_to")
    return {
        "empty.memory_format": transfer.empty,
        "empty_strided": transfer.empty_strided,
        "copy_": copy,
        "_to_copy": transfer.to_copier(recorded["_to_copy"], copy),
        "_local_scalar_dense": transfer.item,
        "resize_": transfer.resize,
        "set_": transfer.unset,
        **{name: kernels.viewed(kernels.overload(name)) for name in views},
        "_has_compatible_shallow_copy_type": lambda tensor, other: True,
        "_fused_sdp_choice": lambda *args, **kwargs: 0,  # the composed form: what autograd can differentiate
        "is_pinned": lambda tensor, device=None: False,
        "record_stream": lambda tensor, stream: None,  # one queue: memory is never given back too early
        **{n: composed.composed(n, kernels.recorded(kernels.overload(n))) for n in composed.COMPOSED},
    }


def _register_pinning(library: Library) -> None:
    """Pinned memory is plain host memory that remembers being asked for."""
    pinned: dict[int, object] = {}  # by storage, each with the reference that takes it out when the storage dies

    def pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        copy = tensor.clone()
        key = storage_address(copy)
        pinned[key] = handles.when_dead(copy, lambda _: pinned.pop(key, None))
        return copy

    def is_pinned(tensor: torch.Tensor, device: Any = None) -> bool:
        return storage_address(tensor) in pinned

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl("_pin_memory", pin_memory, "CPU")
        library.impl("is_pinned", is_pinned, "CPU")


def _register_autocast() -> None:
    fallback = Library("_", "IMPL")
    fallback.fallback(fallthrough_kernel, "AutocastPrivateUse1")
    library = Library("aten", "IMPL")
    for name, make in autocast.rules():
        library.impl(name, make(kernels.overload(name)), "AutocastPrivateUse1")
    _libraries.extend((fallback, library))


# --------------------------------------------------------------------------------------------- patches, reversible

_undo: list[Callable[[], None]] = []


def _replace(holder: Any, name: str, value: Any) -> None:
    before = holder.__dict__.get(name, _undo)
    setattr(holder, name, value)
    _undo.append(lambda: delattr(holder, name) if before is _undo else setattr(holder, name, before))


def patch() -> None:
    """Change the Python objects of torch that know no third device; `unpatch` puts them back."""
    _undo.extend(handle.remove for handle in scopes.hook_modules())
    _replace(torch, "Generator", rng.Generator)
    _replace(torch.accelerator, "synchronize", torch_module.synchronize)
    _patch_storage()
    _patch_print()


def unpatch() -> None:
    while _undo:
        _undo.pop()()


def _patch_storage() -> None:
    """`UntypedStorage(n, device="npu")` would call an allocator that only C++ can provide."""
    plain = torch.UntypedStorage.__new__

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is None or torch.device(device).type != recorder.name:
            return plain(cls, *args, **kwargs)
        nbytes = args[0] if args else kwargs.get("size", 0)
        return transfer.empty((nbytes,), dtype=torch.uint8).untyped_storage()

    def to_device(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
        if self.device.type == recorder.name:
            return self
        return torch.UntypedStorage(self.nbytes(), device=recorder.name).copy_(self, non_blocking)

    _replace(torch.UntypedStorage, "__new__", new)
    _replace(torch.UntypedStorage, recorder.name, to_device)
    _replace(torch.UntypedStorage, f"is_{recorder.name}", property(lambda self: self.device.type == recorder.name))


def _patch_print() -> None:
    """Printing copies the tensor once, where torch would run a dozen small operations on the device."""
    module = torch._tensor_str
    plain = module._tensor_str

    def tensor_str(self: torch.Tensor, indent: int) -> str:
        return plain(self.detach().cpu() if self.device.type == recorder.name else self, indent)

    _replace(module, "_tensor_str", tensor_str)
