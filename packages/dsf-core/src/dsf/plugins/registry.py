"""Finding, loading and keeping vendors' plugins. One that fails is remembered with its cause; it takes nobody down."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

import pluggy
from attrs import define, field, frozen

from dsf import errors, hdl
from dsf.generic import plugin as generic
from dsf.hdl import Chip
from dsf.isa import Isa
from dsf.kernels.kernel import Kernel
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
    _manager: pluggy.PluginManager
    _others: tuple[object, ...]

    def isa(self) -> Isa:
        """The chip's instruction set."""
        return self.vendor.isa(self.chip)

    def kernels(self) -> tuple[Kernel, ...]:
        """All offers, the vendor's before generic's."""
        ask = self._manager.subset_hook_caller("dsf_kernels", self._others)
        return tuple(kernel for offers in ask(chip=self.chip) for kernel in offers)


@define(eq=False)
class Registry:
    """The installed plugins by vendor, loaded when a chip of theirs is asked for."""

    points: dict[str, EntryPoint] = field(factory=dict)
    failures: dict[str, Exception] = field(factory=dict)
    _manager: pluggy.PluginManager = field(factory=lambda: _manager())
    _vendors: dict[str, Vendor] = field(factory=dict)

    @classmethod
    def installed(cls) -> Registry:
        """Every plugin that an installed package names."""
        return cls({point.name: point for point in entry_points(group=GROUP)})

    def vendor(self, name: str) -> Vendor | None:
        """What the plugin for *name* declares; None where there is none. A PluginError says why one cannot be used."""
        if name not in self.points:
            return None
        if name in self.failures:
            raise self._failed(name)
        if name not in self._vendors:
            try:
                self._vendors[name] = self._register(name)
            except Exception as cause:  # whatever a stranger's module raises is kept and told, with this chip only
                self.failures[name] = cause
                raise self._failed(name) from cause
        return self._vendors[name]

    def _register(self, name: str) -> Vendor:
        module = self.points[name].load()
        self._manager.register(module, name)
        try:
            self._manager.check_pending()
            vendor: Vendor | None = self._manager.subset_hook_caller("dsf_vendor", self._all_but(name))()
            return _accepted(name, vendor)
        except Exception:
            self._manager.unregister(module)
            raise

    def _failed(self, name: str) -> errors.PluginError:
        cause = self.failures[name]
        text = cause.sentence if isinstance(cause, errors.DsfError) else f"{type(cause).__name__}: {cause}"
        return errors.PluginError(
            "DSF-P001",
            f"the plugin for vendor '{name}' ({self.points[name].value}) cannot be used: {text}; "
            "mend or uninstall it, and its chips run on the generic one",
        )

    def _all_but(self, name: str) -> tuple[object, ...]:
        return tuple(p for n, p in self._manager.list_name_plugin() if n != name and p is not None)

    def view(self, chip: Chip) -> View:
        """The plugins that answer for *chip*."""
        vendor = self.vendor(chip.vendor)
        if vendor is None:
            return View(chip, generic.NAME, generic.VENDOR, self._manager, self._strangers(generic.NAME))
        return View(chip, chip.vendor, vendor, self._manager, self._strangers(chip.vendor))

    def _strangers(self, name: str) -> tuple[object, ...]:
        keep = (name, generic.NAME)
        return tuple(p for n, p in self._manager.list_name_plugin() if n not in keep and p is not None)

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
            return hdl.load(name, self.hdl_folders())

    def default_chip(self) -> str:
        """The default chip of the only installed plugin; a UsageError that lists the choices where there is not one."""
        names = self.loadable()
        if len(names) == 1:
            return self._vendors[names[0]].default_chip
        raise errors.DeviceError(
            "DSF-D001",
            f"no chip named and {len(names)} plugins installed; name one, in dsf.enable(...) or DSF_CHIP: "
            + ", ".join(hdl.names(self.hdl_folders())),
        )


def _manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager("dsf")
    manager.add_hookspecs(spec)
    manager.register(generic, generic.NAME)
    return manager


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
