"""What a recorded step wants, before anybody decides how: tapes, intents, their meaning."""

from __future__ import annotations

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
