"""Which models have a name here, how they are loaded, and one question asked of one of them on an emulated chip."""

from __future__ import annotations

from dsf.models.ask import Answer, ask
from dsf.models.load import Loaded, load
from dsf.models.shelf import ENCODERS, SHELF, Source, find, locate

__all__ = ["ENCODERS", "SHELF", "Answer", "Loaded", "Source", "ask", "find", "load", "locate"]
