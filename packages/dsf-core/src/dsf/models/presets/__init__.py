"""Model configurations by name: Hugging Face's dictionaries at their true public values, one JSON file each.

A file has the *title*, the *source* of its numbers and the *licence* that they are published under, the *config* as
`config.json` has it, and where the rules of `tiny` do not do, what else a tiny model of the same structure has.
"""

from __future__ import annotations

import difflib
import json
from functools import cache
from pathlib import Path
from typing import Any

from attrs import field, frozen

from dsf import errors
from dsf.models.presets.shrink import shrink

__all__ = ["Preset", "names", "preset"]

FOLDER = Path(__file__).parent


@frozen(eq=False)
class Preset:
    """One configuration. *part* is the submodule that is meant where that is not the whole model."""

    name: str
    title: str
    source: str
    licence: str
    config: dict[str, Any]
    tiny: dict[str, Any] = field(factory=dict)
    part: str = ""

    def tiny_config(self) -> dict[str, Any]:
        """The same structure at a size that a test can compute: few layers, small widths, the same ratios of heads."""
        return {**shrink(self.config), **self.tiny}


def names() -> tuple[str, ...]:
    """Every preset, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


@cache
def preset(name: str) -> Preset:
    """The preset called *name*."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=3)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise errors.ModelError("DSF-C010", f"no preset named '{name}'; {hint}presets: {', '.join(names())}")
    return Preset(name, **json.loads((FOLDER / f"{name}.json").read_text("utf-8")))
