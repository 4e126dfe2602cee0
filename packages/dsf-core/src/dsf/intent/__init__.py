"""What a recorded step wants, before anybody decides how: tapes, intents, their meaning.

The package itself is the decorator with which a user declares what a function means: see `dsf.declare`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from dsf.intent.flops import flops
from dsf.intent.ir import KINDS, Group, Intent, Kind, key
from dsf.intent.meaning import meaning
from dsf.intent.parse import parse
from dsf.intent.patterns import PATTERNS, Pattern
from dsf.intent.spec import check
from dsf.intent.tape import Buffer, Op, Region, Scope, Signature, Site, Slot, Tape, Window

__all__ = [
    "KINDS", "PATTERNS", "Buffer", "Group", "Intent", "Kind", "Op", "Pattern", "Region", "Scope", "Signature", "Site",
    "Slot", "Tape", "Window", "check", "flops", "key", "meaning", "parse",
]  # fmt: skip


class _Package(ModuleType):
    """This package, callable."""

    def __call__(self, *given: Any, **attrs: Any) -> Any:
        from dsf.declare import declared

        return declared(*given, **attrs)


sys.modules[__name__].__class__ = _Package
