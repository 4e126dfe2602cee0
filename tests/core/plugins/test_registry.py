"""Plugins answer for their own chips, and a broken one is told where its chip is asked for and nowhere else."""

from __future__ import annotations

import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import field, frozen

from dsf import errors, hdl
from dsf.generic.isa import isa as generic_isa
from dsf.generic.kernels import kernels as generic_kernels
from dsf.hdl import Chip
from dsf.isa import Isa
from dsf.isa.program import Program
from dsf.kernels.kernel import Kernel
from dsf.machine.heat import Policy
from dsf.pipeline import Session
from dsf.plugins import API, Registry, Vendor, hookimpl
from dsf.plugins import registry as installed_registry
from dsf.survey import survey

Maker = Callable[..., Any]
MODULE = sys.modules["dsf.plugins.registry"]  # the package has a function of that name


@frozen(eq=False)
class Point:
    """An installed package's entry point, without the package."""

    name: str
    load: Callable[[], object]
    value: str = "toy.plugin"
    dist: Any = None


def kernel(library: str, kind: str = "linear") -> Kernel:
    return Kernel(f"{library}.{kind}", kind, library, lambda target, intent: Program("p", ()), lambda intent: ())


@frozen(eq=False)
class Plugin:
    """A plugin that does everything right, for vendor *name*."""

    name: str = "toy"
    folders: tuple[str, ...] = ()
    api: tuple[int, int] = API
    asked: list[str] = field(factory=list)

    @hookimpl
    def dsf_vendor(self) -> Vendor:
        self.asked.append("dsf_vendor")
        return Vendor(self.api, f"{self.name}-1", generic_isa, self.folders)

    @hookimpl
    def dsf_kernels(self, chip: Chip) -> Iterable[Kernel]:
        self.asked.append(chip.name)
        return (kernel(self.name),)


def registry(*points: Point) -> Registry:
    return Registry({point.name: point for point in points})  # type: ignore[misc]


def of(plugin: object, name: str = "toy") -> Registry:
    return registry(Point(name, lambda: plugin))


@pytest.fixture
def chip(described: Maker) -> Callable[[str], Chip]:
    """A chip of this vendor, called `<vendor>-1`."""
    return lambda vendor: hdl.load(described({"/vendor": vendor}, name=f"{vendor}-1"))


# Who answers


def test_a_vendors_offers_stand_before_generics(chip: Callable[[str], Chip]) -> None:
    view = of(Plugin()).view(chip("toy"))
    assert view.plugin == "toy"
    names = [k.name for k in view.kernels()]
    assert names[0] == "toy.linear"
    assert names[1:] == [k.name for k in generic_kernels(chip("toy"))]


def test_a_chip_without_a_plugin_runs_on_generic(chip: Callable[[str], Chip]) -> None:
    view = of(Plugin()).view(chip("nobody"))
    assert view.plugin == "generic"
    assert {k.library for k in view.kernels()} == {"generic", "compiled"}
    assert view.isa() is generic_isa(chip("nobody"))


def test_five_plugins_side_by_side_do_not_see_each_others_chips(chip: Callable[[str], Chip]) -> None:
    vendors = ("ant", "bee", "cat", "dog", "eel")
    plugins = {name: Plugin(name) for name in vendors}
    known = registry(*(Point(name, lambda plugin=plugin: plugin) for name, plugin in plugins.items()))
    views = {name: known.view(chip(name)) for name in vendors}
    views["nobody"] = known.view(chip("nobody"))
    for name, view in views.items():
        libraries = {k.library for k in view.kernels()} - {"generic", "compiled"}
        assert libraries == ({name} if name in vendors else set())
    assert {name: plugin.asked for name, plugin in plugins.items()} == {
        name: ["dsf_vendor", f"{name}-1"] for name in vendors
    }


def test_a_view_stays_blind_to_plugins_that_load_after_it(chip: Callable[[str], Chip]) -> None:
    known = registry(Point("ant", lambda: Plugin("ant")), Point("bee", lambda: Plugin("bee")))
    view = known.view(chip("ant"))
    known.view(chip("bee"))
    assert "bee" not in {k.library for k in view.kernels()}


def test_a_plugin_is_loaded_when_its_chip_is_asked_for_and_once(chip: Callable[[str], Chip]) -> None:
    loads: list[str] = []
    known = registry(
        *(Point(name, lambda name=name: loads.append(name) or Plugin(name)) for name in ("ant", "bee"))  # type: ignore[func-returns-value]
    )
    assert loads == []
    known.view(chip("ant"))
    known.view(chip("ant"))
    assert loads == ["ant"]


def test_a_plugin_may_leave_out_the_hooks_that_generic_answers(chip: Callable[[str], Chip]) -> None:
    class Bare:
        @hookimpl
        def dsf_vendor(self) -> Vendor:
            return Vendor((1, 0), "toy-1", generic_isa)

    view = of(Bare()).view(chip("toy"))
    assert view.plugin == "toy"
    assert [k.name for k in view.kernels()] == [k.name for k in generic_kernels(chip("toy"))]


def test_a_hook_names_only_the_arguments_it_needs(chip: Callable[[str], Chip]) -> None:
    class Brief(Plugin):
        @hookimpl
        def dsf_kernels(self) -> Iterable[Kernel]:
            return (kernel("brief"),)

    assert of(Brief()).view(chip("toy")).kernels()[0].library == "brief"


def test_the_installed_plugins_are_found_once_per_process() -> None:
    assert installed_registry() is installed_registry()


# Which chip


def test_the_only_plugin_says_which_chip_is_meant() -> None:
    assert of(Plugin()).default_chip() == "toy-1"


@pytest.mark.parametrize("count", [0, 2])
def test_without_one_only_plugin_the_choices_are_listed(count: int) -> None:
    known = registry(*(Point(f"v{n}", lambda n=n: Plugin(f"v{n}")) for n in range(count)))
    with pytest.raises(
        errors.DeviceError,
        match=rf"^DSF-D014: no chip named and {count} plugins installed; name one, in dsf.enable\(...\) or DSF_CHIP: "
        r"acme-x1, .*ascend-910b2",
    ):
        known.default_chip()


def test_a_broken_plugin_that_is_the_only_one_is_told_not_passed_over() -> None:
    known = registry(Point("toy", lambda: __import__("no_such_module")))
    with pytest.raises(errors.PluginError, match="ModuleNotFoundError: No module named 'no_such_module'"):
        known.default_chip()


def test_a_broken_plugin_does_not_make_another_one_the_only_one() -> None:
    known = registry(Point("ant", lambda: Plugin("ant")), Point("bad", lambda: __import__("no_such_module")))
    with pytest.raises(errors.DeviceError, match="no chip named and 2 plugins installed"):
        known.default_chip()


def test_a_plugin_brings_chips_of_its_own(described: Maker) -> None:
    path: Path = described({"/vendor": "toy"}, name="toy-9")
    known = of(Plugin(folders=(str(path.parent),)))
    assert known.chip("toy-9").name == "toy-9"
    assert known.view(known.chip("toy-9")).plugin == "toy"
    assert known.chip(str(path)).name == "toy-9"
    assert "toy-9" in [line.name for line in survey(known).lines]


def test_an_unknown_chip_is_answered_with_the_known_ones_and_what_may_be_missing() -> None:
    with pytest.raises(errors.HdlError, match=r"^DSF-H001: no chip named 'toy-9'.*acme-x1"):
        registry().chip("toy-9")
    known = registry(Point("toy", lambda: __import__("no_such_module")))
    with pytest.raises(
        errors.HdlError,
        match=r"^DSF-H001: no chip named 'toy-9'.*; the plugin for vendor 'toy' \(toy.plugin\) cannot be used: "
        "ModuleNotFoundError: No module named 'no_such_module'",
    ):
        known.chip("toy-9")


# What is broken


class WrongArguments(Plugin):
    @hookimpl
    def dsf_vendor(self, chips: object) -> Vendor:  # type: ignore[override]
        return Vendor(API, "toy-1", generic_isa)


class UnknownHook(Plugin):
    @hookimpl
    def dsf_kernelz(self) -> None:
        """A hook that nobody asks."""


class Nonsense(Plugin):
    @hookimpl
    def dsf_vendor(self) -> Vendor:
        return "Toy Inc."  # type: ignore[return-value]


class Failing(Plugin):
    @hookimpl
    def dsf_vendor(self) -> Vendor:
        raise ZeroDivisionError("toys")


def leaving() -> object:
    raise SystemExit("a toy does not run here")


BROKEN = [
    (lambda: __import__("no_such_module"), "ModuleNotFoundError: No module named 'no_such_module'"),
    (leaving, "SystemExit: a toy does not run here"),
    (WrongArguments, "PluginValidationError: .*dsf_vendor.*chips.*"),
    (UnknownHook, "PluginValidationError: unknown hook 'dsf_kernelz' .*"),
    (Nonsense, r"its hook dsf_vendor returned 'Toy Inc.'; expected a dsf.plugins.Vendor"),
    (lambda: types.SimpleNamespace(), r"its hook dsf_vendor returned None; expected a dsf.plugins.Vendor"),
    (Failing, "ZeroDivisionError: toys"),
    (
        lambda: Plugin(api=(2, 0)),
        "it was written for hook API 2.0; this DSF speaks 1.0 to 1.2; install versions of dsf-core and dsf-toy that go "
        "together",
    ),
    (lambda: Plugin(api=(1, 3)), "it was written for hook API 1.3; this DSF speaks 1.0 to 1.2; .*"),
    (lambda: Plugin(api=(0, 9)), "it was written for hook API 0.9; .*"),
    (lambda: Plugin(api=1), "TypeError: .*"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("load", "cause"), BROKEN, ids=[cause.split(";")[0][:40] for _, cause in BROKEN])
def test_a_broken_plugin_is_named_with_its_first_cause_whenever_its_chip_is_asked_for(
    load: Callable[[], object], cause: str, chip: Callable[[str], Chip]
) -> None:
    loads: list[int] = []

    def counted() -> object:
        loads.append(1)
        return load()

    known = registry(Point("toy", counted), Point("ant", lambda: Plugin("ant")))
    for _ in range(2):
        with pytest.raises(
            errors.PluginError,
            match=rf"(?s)^DSF-P001: the plugin for vendor 'toy' \(toy.plugin\) cannot be used: {cause}; mend or "
            "uninstall it, and its chips run on the generic one$",
        ) as caught:
            known.view(chip("toy"))
        assert caught.value.exit_status == 2
    assert loads == [1]
    assert known.loadable() == ("ant",)
    for vendor in ("ant", "nobody"):
        libraries = {k.library for k in known.view(chip(vendor)).kernels()}
        assert libraries == {"generic", "compiled"} | ({"ant"} if vendor == "ant" else set())


def test_a_plugin_of_an_earlier_minor_api_is_accepted(
    monkeypatch: pytest.MonkeyPatch, chip: Callable[[str], Chip]
) -> None:
    monkeypatch.setattr(MODULE, "API", (1, 3))
    assert of(Plugin(api=(1, 2))).view(chip("toy")).plugin == "toy"
    with pytest.raises(errors.PluginError, match=r"hook API 1.4; this DSF speaks 1.0 to 1.3"):
        of(Plugin(api=(1, 4))).view(chip("toy"))


def test_no_plugin_takes_the_place_of_generic(chip: Callable[[str], Chip]) -> None:
    known = of(Plugin("generic"), name="generic")
    with pytest.raises(
        errors.PluginError, match="the name 'generic' is DSF's own; an entry point is named by its vendor"
    ):
        known.view(chip("generic"))
    assert known.view(chip("nobody")).kernels()


def test_two_packages_for_one_vendor_are_told(monkeypatch: pytest.MonkeyPatch, chip: Callable[[str], Chip]) -> None:
    dist = [types.SimpleNamespace(name=name) for name in ("dsf-toy", "toy-fork")]
    points = [Point("toy", Plugin, "b.plugin", dist[1]), Point("toy", Plugin, "a.plugin", dist[0])]
    monkeypatch.setattr(MODULE, "entry_points", lambda group: points if group == "dsf.chips" else [])
    with pytest.raises(
        errors.PluginError,
        match=r"a.plugin \(of dsf-toy\) and b.plugin \(of toy-fork\) both answer for it; uninstall one",
    ):
        Registry.installed().view(chip("toy"))
    monkeypatch.setattr(MODULE, "entry_points", lambda group: [points[0], points[0]])
    assert Registry.installed().view(chip("toy")).plugin == "toy"


# The thermal policy

ICE = Policy("ice", lambda celsius, step, chip: 0 if celsius < 30 else 2)


@frozen(eq=False)
class Cooled(Plugin):
    """A plugin with no kernels but with a policy, which it also gives as *names*; the others it leaves to generic."""

    names: tuple[str, ...] = ("ice", "ladder")

    @hookimpl
    def dsf_kernels(self, chip: Chip) -> Iterable[Kernel]:
        return ()

    @hookimpl
    def dsf_thermal_policy(self, chip: Chip, name: str) -> Policy | None:
        self.asked.append(f"{chip.name}: {name}")
        return ICE if name in self.names else None


def test_a_vendors_policy_stands_before_generics(chip: Callable[[str], Chip]) -> None:
    view = of(Cooled()).view(chip("toy"))
    assert view.thermal_policy("ice") is view.thermal_policy("ladder") is ICE
    assert view.thermal_policy("threshold").name == "threshold"
    assert of(Plugin()).view(chip("toy")).thermal_policy("ladder").name == "ladder"


def test_a_policy_that_nobody_knows_is_answered_with_the_known_ones(chip: Callable[[str], Chip]) -> None:
    known = of(Cooled())
    with pytest.raises(
        errors.DeviceError,
        match=r"^DSF-D022: thermal policy 'laddr' is unknown; expected one of ladder, threshold, none$",
    ):
        known.view(chip("nobody")).thermal_policy("laddr")
    with pytest.raises(errors.DeviceError, match=r"none, or one that the plugin for vendor 'toy' documents$"):
        known.view(chip("toy")).thermal_policy("laddr")


def test_the_hook_is_asked_once_and_its_answer_changes_the_report(chip: Callable[[str], Chip], hand: Maker) -> None:
    """A plugin that runs at half clock above 30 °C, which the idle chip has: only the first second is at full clock."""
    plugin, reports = Cooled(), {}
    for known in (of(plugin), of(Cooled(names=()))):
        session = Session(known.view(chip("toy")), fidelity="timing")
        tape = hand(session)
        x = tape.put(torch.ones(512, 512))
        tape.op("linear.default", x, x, keep=True)
        tape.run()
        session.ledger.again(100_000)
        report = session.report()
        reports[report.heat.policy] = report
    assert plugin.asked.count("toy-1: ladder") == 1
    assert set(reports) == {"ice", "ladder"}
    assert (reports["ladder"].heat.throttled_share, reports["ladder"].heat.lowest_frequency_share) == (0, 1)
    assert reports["ice"].heat.throttled_share > 0.3
    assert reports["ice"].heat.lowest_frequency_share == 0.5
    assert reports["ice"].device_milliseconds > 1.2 * reports["ladder"].device_milliseconds
    assert reports["ice"].heat.peak_celsius < reports["ladder"].heat.peak_celsius


class FailsLater(Plugin):
    @hookimpl
    def dsf_kernels(self, chip: Chip) -> Iterable[Kernel]:
        raise KeyError("linear")


class OffersWords(Plugin):
    @hookimpl
    def dsf_kernels(self, chip: Chip) -> Iterable[Kernel]:
        return ("linear",)  # type: ignore[return-value]


class ThermalWords(Plugin):
    @hookimpl
    def dsf_thermal_policy(self, chip: Chip, name: str) -> Policy:
        return "ladder"  # type: ignore[return-value]


def wordy(chip: Chip) -> Isa:
    return "isa"  # type: ignore[return-value]


class NoIsa(Plugin):
    @hookimpl
    def dsf_vendor(self) -> Vendor:
        return Vendor(API, "toy-1", wordy)


@pytest.mark.parametrize(
    ("plugin", "question", "failure"),
    [
        (FailsLater(), "dsf_kernels", "KeyError: 'linear'"),
        (OffersWords(), "dsf_kernels", "TypeError: 'linear' is no dsf.kernels.kernel.Kernel"),
        (NoIsa(), "isa", "TypeError: 'isa' is no dsf.isa.table.Isa"),
        (ThermalWords(), "dsf_thermal_policy", "TypeError: 'ladder' is no dsf.machine.heat.Policy"),
    ],
)
def test_a_plugin_that_fails_when_it_is_asked_is_blamed(
    plugin: Plugin, question: str, failure: str, chip: Callable[[str], Chip]
) -> None:
    view = of(plugin).view(chip("toy"))
    sentence = (
        f"DSF-P004: the plugin for vendor 'toy' (toy.plugin), asked for {question} of toy-1, failed: {failure}; mend "
        "or uninstall it"
    )
    with pytest.raises(errors.PluginError, match=f"^{re.escape(sentence)}$"):
        {"isa": view.isa, "dsf_kernels": view.kernels}.get(question, lambda: view.thermal_policy("ladder"))()


def test_an_installed_package_is_found_and_a_broken_one_beside_it_does_no_harm(
    tmp_path: Path, described: Maker, run_python: Maker
) -> None:
    """Two throw-away packages on the path; the good one brings a chip and a kernel."""
    good = """
        from pathlib import Path
        from dsf.generic.isa import isa
        from dsf.generic.kernels import kernels
        from dsf.plugins import Vendor, hookimpl
        from attrs import evolve

        @hookimpl
        def dsf_vendor():
            return Vendor((1, 0), "toy-1", isa, (str(Path(__file__).parent / "hdl"),))

        @hookimpl
        def dsf_kernels(chip):
            return [evolve(k, name="toy.matmul", library="toy") for k in kernels(chip) if k.kind == "linear"]
        """
    for name, vendor, text in (("dsf_toy", "toy", good), ("dsf_bad", "bad", "raise ImportError('no driver here')")):
        package, info = tmp_path / name, tmp_path / f"{name}-1.0.dist-info"
        (package / "hdl").mkdir(parents=True)
        info.mkdir()
        (package / "plugin.py").write_text(textwrap.dedent(text), "utf-8")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", "utf-8")
        (info / "entry_points.txt").write_text(f"[dsf.chips]\n{vendor} = {name}.plugin\n", "utf-8")
    described({"/vendor": "toy", "/device": "toy"}, name="toy-1").rename(tmp_path / "dsf_toy/hdl/toy-1.json")
    bad = described({"/vendor": "bad", "/device": "toy"}, name="bad-1")
    said = run_python(
        f"""
        import torch, dsf
        from dsf import errors
        try:
            dsf.enable({str(bad)!r})
        except errors.PluginError as error:
            print(error)
        dsf.enable("toy-1")
        y = torch.nn.Linear(16, 16).to("toy")(torch.ones(2, 16, device="toy"))
        y.cpu()
        print(dsf.report().plugin, sorted({{k.library for k in dsf.report().kernels}}))
        """,
        PYTHONPATH=str(tmp_path),
    )
    assert said.splitlines() == [
        "DSF-P001: the plugin for vendor 'bad' (dsf_bad.plugin) cannot be used: ImportError: no driver here; mend or "
        "uninstall it, and its chips run on the generic one",
        "toy ['compiled', 'toy']",
    ]
