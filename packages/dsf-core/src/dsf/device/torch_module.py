"""`torch.npu`: what scripts and libraries ask of a device module, answered from the session."""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from dsf.device import rng, transfer
from dsf.device.flushing import flush, reap
from dsf.device.tape import recorder

__all__ = ["Event", "Stream", "device_module"]

FS_PER_MS = 10**12


def _now_fs() -> int:
    """Emulated time when everything recorded so far has run."""
    flush()
    return recorder.needs().now_fs()


class Event:
    """A moment of emulated time."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._time_fs: int | None = None

    def record(self, stream: Stream | None = None) -> None:
        self._time_fs = _now_fs()

    def wait(self, stream: Stream | None = None) -> None:
        """One queue keeps program order: nothing to wait for."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        flush()

    def elapsed_time(self, end: Event) -> float:
        """Emulated milliseconds from this event to *end*."""
        if self._time_fs is None or end._time_fs is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end._time_fs - self._time_fs) / FS_PER_MS


class Stream(torch.Stream):
    """A queue of operations. The emulated device has one; all streams are that one."""

    def __new__(cls, device: Any = None, priority: int = 0) -> Stream:
        made: Stream = super().__new__(cls, device=torch.device(recorder.name, 0))
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream)

    def __hash__(self) -> int:
        return hash(Stream)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exception: object) -> None:
        """Leaving changes nothing: there is one stream."""

    def synchronize(self) -> None:
        flush()

    def query(self) -> bool:
        return True

    def wait_event(self, event: Any) -> None:
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        """One queue keeps program order: nothing to wait for."""

    def record_event(self, event: Any = None) -> Any:
        event = event or Event()
        event.record(self)
        return event


def is_available() -> bool:
    return recorder.session is not None


def device_count() -> int:
    return 1 if recorder.session is not None else 0


def current_device() -> int:
    return 0


def set_device(device: Any) -> None:
    """Choose the device; there is one."""
    index = device if isinstance(device, int) else torch.device(device).index
    transfer.index_of(torch.device(recorder.name, index or 0))


@contextmanager
def device(device: Any) -> Iterator[None]:
    """Inside, *device* is current."""
    set_device(device)
    yield


def synchronize(device: Any = None) -> None:
    flush()
    recorder.needs().synchronize()


def get_device_name(device: Any = None) -> str:
    return recorder.needs().chip.name


def get_device_properties(device: Any = None) -> types.SimpleNamespace:
    session = recorder.needs()
    return types.SimpleNamespace(name=session.chip.name, total_memory=session.capacity)


def get_device_capability(device: Any = None) -> tuple[int, int]:
    return (0, 0)


def memory_allocated(device: Any = None) -> int:
    """Bytes that living tensors hold, after everything recorded so far has run."""
    flush()
    return recorder.needs().allocated


def max_memory_allocated(device: Any = None) -> int:
    flush()
    return recorder.needs().peak


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free and total bytes."""
    used = memory_allocated()
    return recorder.needs().capacity - used, recorder.needs().capacity


def memory_stats(device: Any = None) -> dict[str, int]:
    return {"allocated_bytes.all.current": memory_allocated(), "allocated_bytes.all.peak": max_memory_allocated()}


def empty_cache() -> None:
    reap()


def manual_seed_all(seed: int) -> None:
    rng.default.manual_seed(int(seed))


def initial_seed() -> int:
    return rng.default.initial_seed()


def get_rng_state(device: Any = None) -> torch.Tensor:
    return rng.default.get_state()


def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
    rng.default.set_state(state)


@contextmanager
def stream(stream: Stream | None) -> Iterator[None]:
    yield


def current_stream(device: Any = None) -> Stream:
    return Stream()


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Every dtype can be used: what the chip cannot compute is cast or runs on the host."""
    return True


def _autocast(enabled: bool = True, dtype: torch.dtype | None = None, cache_enabled: bool = True) -> torch.autocast:
    return torch.autocast(recorder.name, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


def _grad_scaler(**options: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler(recorder.name, **options)


def _never() -> bool:
    return False


def device_module(name: str) -> types.ModuleType:
    """The module to register as `torch.<name>`."""
    module = types.ModuleType(f"torch.{name}")
    module.__doc__ = __doc__
    public = (
        Event, Stream, current_device, current_stream, device, device_count, empty_cache, get_device_capability,
        get_device_name, get_device_properties, get_rng_state, initial_seed, is_available, is_bf16_supported,
        manual_seed_all, max_memory_allocated, mem_get_info, memory_allocated, memory_stats, set_device, set_rng_state,
        stream, synchronize,
    )  # fmt: skip
    for thing in public:
        setattr(module, thing.__name__, thing)
    aliases: dict[str, Any] = {
        "manual_seed": manual_seed_all, "default_stream": current_stream, "memory_reserved": memory_allocated,
        "max_memory_reserved": max_memory_allocated, "is_initialized": is_available, "seed": initial_seed,
        "_is_in_bad_fork": _never, "_lazy_init": reap, "init": reap, "is_current_stream_capturing": _never,
    }  # fmt: skip
    for alias, thing in aliases.items():
        setattr(module, alias, thing)
    module.amp = types.SimpleNamespace(  # type: ignore[attr-defined]  # a module
        autocast=_autocast,
        GradScaler=_grad_scaler,
        get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16, torch.float32],
    )
    module.get_amp_supported_dtype = module.amp.get_amp_supported_dtype  # type: ignore[attr-defined]  # a module
    return module
