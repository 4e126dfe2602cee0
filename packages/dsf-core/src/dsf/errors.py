"""What can go wrong, as one tree. Every error is a sentence for the person who will fix it, with a stable code.

DsfError
├── UsageError                      the caller asked for what cannot be (exit status 2)
│   ├── HdlError            DSF-H0xx  a hardware description is malformed, or no chip has that name
│   ├── PluginError         DSF-P0xx  a vendor's plugin is missing, broken or of another API
│   ├── DeviceError         DSF-D0xx  the torch device is used before `enable`, twice, or by a wrong torch
│   ├── ModelError          DSF-C0xx  no such model, or a model file that cannot be read
│   ├── DtypeError          DSF-N0xx  a number format the chip cannot compute
│   ├── MeaningError        DSF-T0xx  a function declared to mean an intent (`dsf.intent`) that it does not mean
│   ├── FallbackError       DSF-F0xx  `strict`, and something would run on the host
│   ├── RowError            DSF-X030  an index in the data that is no row of its table (also an IndexError)
│   └── OutOfMemory         DSF-M0xx  a tensor does not fit its tier (the device's is a torch.OutOfMemoryError too)
└── ProgramError                    a program breaks a rule of its chip (a fault of the kernel's author)
    ├── IsaError            DSF-I0xx  an unknown instruction, a wrong operand
    │   └── ListingError    DSF-I02x  a malformed listing or binary (also a UsageError: exit status 2)
    ├── MachineError        DSF-X0xx  out of bounds, misaligned, unordered, unset or unwaited flag
    └── KernelError         DSF-K0xx  no kernel serves an intent, or a kernel's own limit is broken
"""

from __future__ import annotations

__all__ = [
    "DeviceError", "DsfError", "DtypeError", "FallbackError", "HdlError", "IsaError", "KernelError", "ListingError",
    "MachineError", "MeaningError", "ModelError", "OutOfMemory", "PluginError", "ProgramError", "RowError",
    "UsageError",
]  # fmt: skip


class DsfError(Exception):
    """Any error that DSF raises on purpose: `code` is stable (`DSF-H001`), `str()` is the code and the sentence."""

    exit_status = 3

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(f"{code}: {sentence}")
        self.code, self.sentence = code, sentence

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.code, self.sentence)


class UsageError(DsfError):
    """The call cannot be answered as it stands; the sentence says what would be."""

    exit_status = 2


class HdlError(UsageError):
    """A hardware description that is malformed, unreadable or unknown."""


class PluginError(UsageError):
    """A vendor's plugin that is missing, failed to load or speaks another API."""


class DeviceError(UsageError, RuntimeError):
    """The emulated torch device used in a way it cannot be."""


class ModelError(UsageError):
    """A model that is unknown or cannot be read."""


class DtypeError(UsageError, TypeError):
    """A number format that the chip cannot compute."""


class MeaningError(UsageError, ValueError):
    """A function that is declared to mean an intent and cannot, or does not."""


class FallbackError(UsageError, RuntimeError):
    """Work that only the host could do, where `strict` forbids that."""


class OutOfMemory(UsageError, MemoryError):
    """A tensor that does not fit its memory: tier, needed, available, what would fit, who asked."""


class RowError(UsageError, IndexError):
    """An index in the data that is no row of its table."""


class ProgramError(DsfError):
    """A program that breaks a rule of its chip."""


class IntentError(ProgramError):
    """Recorded steps that cannot be what they are taken for."""


class IsaError(ProgramError):
    """An unknown instruction, or an operand of the wrong kind."""


class ListingError(IsaError, UsageError):
    """A listing or a binary that is no program: the line or the byte, what was found, what was expected."""


class MachineError(ProgramError):
    """A rule of the machine broken while a program is bound or run."""


class KernelError(ProgramError):
    """No kernel serves an intent, or a kernel was asked for what its limits exclude."""
