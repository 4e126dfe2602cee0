"""`.to("npu")`: an emulated accelerator for unmodified PyTorch code, and the lazy tape behind it.

`attach` gives torch a device whose operations are recorded; `flush` hands what is recorded to the session.
"""

from __future__ import annotations

from dsf import errors
from dsf.device import backend, blocks
from dsf.device.flushing import flush
from dsf.device.session import Session
from dsf.device.tape import lock, recorder

__all__ = ["Session", "attach", "current", "detach", "flush"]


def attach(session: Session) -> None:
    """From now on tensors of device `session.chip.device` live in *session*."""
    with lock:
        if recorder.session is session:
            return
        if recorder.session is not None:
            raise errors.DeviceError(
                "DSF-D006", f"{recorder.name}: another chip is enabled in this process; call dsf.disable() first"
            )
        backend.register(session.chip.device)
        backend.patch()
        recorder.session = session


def detach() -> None:
    """Run what is recorded and let go of the session; its tensors can no longer be read."""
    with lock:
        if recorder.session is None:
            return
        try:
            flush()
        finally:
            recorder.session = None
            recorder.log = []
            backend.unpatch()
            blocks.forget()


def current() -> Session | None:
    return recorder.session
