"""Who answers for a chip: hook specifications, the registry of vendors' plugins, and a chip's own view of them."""

from __future__ import annotations

from dsf.plugins.registry import Registry, View, registry
from dsf.plugins.spec import API, Vendor, hookimpl, hookspec

__all__ = ["API", "Registry", "Vendor", "View", "hookimpl", "hookspec", "registry"]
