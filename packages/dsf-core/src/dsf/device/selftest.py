"""What we assume of torch's private parts, each checked by name while the device is registered."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dsf import errors
from dsf.device import handles
from dsf.device.blocks import storage_address

__all__ = ["BEFORE", "WITH_DEVICE", "check"]

ADDRESS = 0x5000_0000_0000


def _python_backend() -> bool:
    return hasattr(torch._C, "_acc") and hasattr(
        torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"
    )


def _probe() -> torch.Tensor:
    return handles.make(handles.layout((2, 3), (3, 1), torch.float16), ADDRESS)


def _dlpack_makes_device_tensors() -> bool:
    tensor = _probe()
    right = tensor.device.type == torch._C._get_privateuse1_backend_name() and tensor.data_ptr() == ADDRESS
    return right and tensor.shape == (2, 3) and tensor.untyped_storage().nbytes() == 12


def _a_storage_tells_when_it_dies() -> bool:
    tensor = _probe()
    told: list[object] = []
    kept = handles.when_dead(tensor, told.append)
    view = tensor.detach()
    del tensor
    early = list(told)
    del view
    return told == [kept] and not early


def _storage_address_names_the_storage() -> bool:
    tensor = torch.empty(4, device="cpu")
    same = storage_address(tensor) == storage_address(tensor[1:])
    return bool(same and storage_address(torch.empty(4, device="cpu")) != storage_address(tensor))


def _cpu_kernels_make_views() -> bool:
    tensor = _probe()
    cpu = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    view = torch.ops.aten.as_strided.default.redispatch(cpu, tensor, [3], [1], 3)
    return view.data_ptr() == ADDRESS + 6 and storage_address(view) == storage_address(tensor)


def _wrapped_numbers_are_told_apart() -> bool:
    probe = torch.zeros((), dtype=torch.float16, device="cpu")
    return torch.result_type(probe, torch.tensor(1.0, dtype=torch.float64, device="cpu")) is torch.float64


def _operations_are_listed() -> bool:
    names = torch._C._dispatch_get_all_op_names()
    return "aten::add.Tensor" in names and torch._C._dispatch_has_kernel_for_dispatch_key("aten::mm", "CPU")


Assumptions = dict[str, Callable[[], bool]]

BEFORE: Assumptions = {
    "a device can be written in Python": _python_backend,
    "a storage has one address": _storage_address_names_the_storage,
    "Python numbers are told from tensors": _wrapped_numbers_are_told_apart,
    "operations are listed with their kernels": _operations_are_listed,
}
WITH_DEVICE: Assumptions = {
    "DLPack makes device tensors": _dlpack_makes_device_tensors,
    "a storage tells when it dies": _a_storage_tells_when_it_dies,
    "CPU kernels make views of device tensors": _cpu_kernels_make_views,
}


def check(assumptions: Assumptions) -> None:
    """Raise DSF-D001 naming every assumption that this torch does not keep."""
    broken = [name for name, holds in assumptions.items() if not _holds(holds)]
    if broken:
        raise errors.DeviceError(
            "DSF-D001",
            f"torch {torch.__version__}: the emulated device cannot work with it, since it does not keep: "
            f"{'; '.join(broken)}; install torch>=2.13,<2.14",
        )


def _holds(assumption: Callable[[], bool]) -> bool:
    try:
        return assumption()
    except (AttributeError, RuntimeError, TypeError, ValueError, BufferError, SystemError):
        return False
