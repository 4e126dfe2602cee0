"""What becomes of a number on a chip? Formats here; rounding and accumulation beside them."""

from __future__ import annotations

from dsf.numerics.formats import FORMATS, Format, by_dtype, by_name

__all__ = ["FORMATS", "Format", "by_dtype", "by_name"]
