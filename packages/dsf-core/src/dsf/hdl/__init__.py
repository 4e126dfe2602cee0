"""What is this chip? One JSON file per chip, read into frozen values; `load("ascend-910b2")` gives a `Chip`."""

from __future__ import annotations

from dsf.hdl.catalogue import Entry, catalogue, load, names
from dsf.hdl.frozen import FrozenDict
from dsf.hdl.model import (
    Chip,
    Control,
    Core,
    Engine,
    Host,
    Interconnect,
    Kubernetes,
    Link,
    Measurement,
    Memory,
    Metrics,
    Node,
    Numerics,
    Origin,
    Path,
    Power,
    Rule,
    Sync,
    Template,
    Thermal,
    ThrottleStep,
    Variant,
)
from dsf.units import weakest

__all__ = [
    "Chip", "Control", "Core", "Engine", "Entry", "FrozenDict", "Host", "Interconnect", "Kubernetes", "Link",
    "Measurement", "Memory", "Metrics", "Node", "Numerics", "Origin", "Path", "Power", "Rule", "Sync", "Template",
    "Thermal", "ThrottleStep", "Variant", "catalogue", "load", "names", "weakest",
]  # fmt: skip
