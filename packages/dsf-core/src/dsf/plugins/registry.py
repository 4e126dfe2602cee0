"""Finding, loading and keeping vendors' plugins. One that fails is remembered with its cause; it takes nobody down."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TypeVar

import pluggy
from attrs import define, field, frozen

from dsf import errors, hdl
from dsf.generic import plugin as generic
from dsf.generic.thermal import POLICIES
from dsf.hdl import Chip
from dsf.isa import Isa
from dsf.kernels.kernel import Kernel
from dsf.kernels.tree import Trees
from dsf.kernels.tree import load as load_trees
from dsf.machine.heat import Policy
from dsf.plugins import spec
from dsf.plugins.spec import API, Vendor

__all__ = ["GROUP", "Registry", "View", "registry"]

GROUP = "dsf.chips"


@frozen(eq=False)
class View:
    """A chip as its plugins see it: its own vendor's plugin first, then generic. *plugin* is the vendor's name, or
    `generic` where none is installed."""

    chip: Chip
    plugin: str
    vendor: Vendor
    _registry: Registry

    def isa(self) -> Isa:
        """The chip's instruction set."""
        with self._blamed("isa"):
            return _expected(Isa, self.vendor.isa(self.chip))

    def kernels(self) -> tuple[Kernel, ...]:
        """All offers, the vendor's before generic's."""
        ask = self._registry.hook_of(self.plugin, "dsf_kernels")
        with self._blamed("dsf_kernels"):
            return tuple(_expected(Kernel, kernel) for offers in ask(chip=self.chip) for kernel in offers)

    def packages(self) -> tuple[str, ...]:
        """The top-level packages that the chip's kernels come from."""
        point = self._registry.points.get(self.plugin)
        own = (point.value.partition(":")[0].partition(".")[0],) if point is not None else ()
        return ("dsf", *own)

    def trees(self) -> Trees:
        """The decision trees for the chip: the user's, in `DSF_TREE_PATH`, or those that come with its kernels."""
        own = [folder for folder in os.environ.get("DSF_TREE_PATH", "").split(os.pathsep) if folder]
        return load_trees(self.chip, map(Path, (*own, *self.vendor.tree_folders)))

    def thermal_policy(self, name: str) -> Policy:
        """The thermal policy called *name*, the vendor's if it has one; a DeviceError if nobody knows it."""
        ask = self._registry.hook_of(self.plugin, "dsf_thermal_policy")
        with self._blamed("dsf_thermal_policy"):
            policy = ask(chip=self.chip, name=name)
            if policy is not None:
                return _expected(Policy, policy)
        known = ", ".join(POLICIES)
        own = "" if self.plugin == generic.NAME else f", or one that the plugin for vendor '{self.plugin}' documents"
        raise errors.DeviceError("DSF-D022", f"thermal policy '{name}' is unknown; expected one of {known}{own}")

    @contextmanager
    def _blamed(self, question: str) -> Iterator[None]:
        """Whatever a stranger's code raises inside is told as its plugin's fault."""
        try:
            yield
        except Exception as cause:
            if isinstance(cause, errors.DsfError) or self.plugin == generic.NAME:
                raise
            raise errors.PluginError(
                "DSF-P004",
                f"the plugin for vendor '{self.plugin}' ({self._registry.points[self.plugin].value}), asked for "
                f"{question} of {self.chip.name}, failed: {_told(cause)}; mend or uninstall it",
            ) from cause


@define(eq=False)
class Registry:
    """The installed plugins by vendor, loaded when a chip of theirs is asked for."""

    points: dict[str, EntryPoint] = field(factory=dict)
    failures: dict[str, BaseException] = field(factory=dict)
    _manager: pluggy.PluginManager = field(factory=lambda: _manager())
    _vendors: dict[str, Vendor] = field(factory=dict)

    @classmethod
    def installed(cls) -> Registry:
        """Every plugin that an installed package names."""
        found: dict[str, list[EntryPoint]] = {}
        for point in sorted(entry_points(group=GROUP), key=lambda p: p.value):
            found.setdefault(point.name, []).append(point)
        known = cls({name: points[0] for name, points in found.items()})
        for name, points in found.items():
            if len({point.value for point in points}) > 1:
                known.failures[name] = errors.PluginError("DSF-P005", _rivals(points))
        return known

    def vendor(self, name: str) -> Vendor | None:
        """What the plugin for *name* declares; None where there is none. A PluginError says why one cannot be used."""
        if name not in self.points:
            return None
        if name in self.failures:
            raise self._failed(name)
        if name not in self._vendors:
            try:
                self._vendors[name] = self._register(name)
            except (Exception, SystemExit) as cause:  # what a stranger raises is kept and told, with its chips only
                self.failures[name] = cause
                raise self._failed(name) from cause
        return self._vendors[name]

    def _register(self, name: str) -> Vendor:
        module = self.points[name].load()
        if self._manager.has_plugin(name):
            raise errors.PluginError(
                "DSF-P006", f"the name '{name}' is DSF's own; an entry point is named by its vendor"
            )
        try:
            self._manager.register(module, name)
            self._manager.check_pending()
            vendor: Vendor | None = self.hook_of(name, "dsf_vendor")()
            return _accepted(name, vendor)
        except Exception:
            if self._manager.has_plugin(name):  # also one that pluggy took in by half
                self._manager.unregister(name=name)
            raise

    def _failed(self, name: str) -> errors.PluginError:
        return errors.PluginError(
            "DSF-P001",
            f"the plugin for vendor '{name}' ({self.points[name].value}) cannot be used: {_told(self.failures[name])}; "
            "mend or uninstall it, and its chips run on the generic one",
        )

    def hook_of(self, name: str, hook: str) -> pluggy.HookCaller:
        """*hook*, as only the plugin *name* and generic hear it."""
        asked = (name, generic.NAME)
        others = [p for n, p in self._manager.list_name_plugin() if n not in asked and p is not None]
        return self._manager.subset_hook_caller(hook, others)

    def view(self, chip: Chip) -> View:
        """The plugins that answer for *chip*."""
        vendor = self.vendor(chip.vendor)
        if vendor is None:
            return View(chip, generic.NAME, generic.VENDOR, self)
        return View(chip, chip.vendor, vendor, self)

    def loadable(self) -> tuple[str, ...]:
        """The vendors whose plugins load; the others are in `failures` afterwards."""
        good = []
        for name in self.points:
            try:
                self.vendor(name)
            except errors.PluginError:
                continue
            good.append(name)
        return tuple(good)

    def hdl_folders(self) -> tuple[str, ...]:
        """Folders of hardware descriptions that plugins bring."""
        return tuple(folder for name in self.loadable() for folder in self._vendors[name].hdl_folders)

    def chip(self, name: str) -> Chip:
        """The chip called *name*, described by DSF or by a plugin, or in the file of that name."""
        try:
            return hdl.load(name)
        except errors.HdlError as error:
            if error.code != "DSF-H001":
                raise
        try:
            return hdl.load(name, self.hdl_folders())
        except errors.HdlError as error:
            if error.code != "DSF-H001" or not self.failures:
                raise
            broken = "; ".join(self._failed(vendor).sentence for vendor in sorted(self.failures))
            raise errors.HdlError("DSF-H001", f"{error.sentence}; {broken}") from None

    def default_chip(self) -> str:
        """The default chip of the only installed plugin; a UsageError that lists the choices where there is not one."""
        if len(self.points) == 1:
            (only,) = self.points
            vendor = self.vendor(only)
            assert vendor is not None, "an installed plugin has answered or failed"
            return vendor.default_chip
        raise errors.DeviceError(
            "DSF-D014",
            f"no chip named and {len(self.points)} plugins installed; name one, in dsf.enable(...) or DSF_CHIP: "
            + ", ".join(hdl.names(self.hdl_folders())),
        )


def _manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager("dsf")
    manager.add_hookspecs(spec)
    manager.register(generic, generic.NAME)
    return manager


def _told(cause: BaseException) -> str:
    return cause.sentence if isinstance(cause, errors.DsfError) else f"{type(cause).__name__}: {cause}"


def _rivals(points: Iterable[EntryPoint]) -> str:
    claims = " and ".join(f"{p.value} (of {p.dist.name if p.dist else 'an unknown package'})" for p in points)
    return f"{claims} both answer for it; uninstall one"


T = TypeVar("T")


def _expected(kind: type[T], value: object) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is no {kind.__module__}.{kind.__name__}")
    return value


def _accepted(name: str, vendor: Vendor | None) -> Vendor:
    """The declaration, if it is one and of an API that this DSF speaks."""
    if not isinstance(vendor, Vendor):
        raise errors.PluginError("DSF-P002", f"its hook dsf_vendor returned {vendor!r}; expected a dsf.plugins.Vendor")
    (major, minor), (ours, least) = vendor.api, API
    if major != ours or minor > least:
        raise errors.PluginError(
            "DSF-P003",
            f"it was written for hook API {major}.{minor}; this DSF speaks {ours}.0 to {ours}.{least}; "
            f"install versions of dsf-core and dsf-{name} that go together",
        )
    return vendor


_registry: Registry | None = None


def registry() -> Registry:
    """The process's registry of installed plugins."""
    global _registry
    if _registry is None:
        _registry = Registry.installed()
    return _registry
