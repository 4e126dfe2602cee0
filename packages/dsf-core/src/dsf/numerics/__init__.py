"""What becomes of a number on a chip? Formats, and how a number becomes one of theirs."""

from __future__ import annotations

from dsf.numerics.formats import FORMATS, Format, by_dtype, by_name
from dsf.numerics.quantise import ROUNDINGS, quantise

__all__ = ["FORMATS", "ROUNDINGS", "Format", "by_dtype", "by_name", "quantise"]
