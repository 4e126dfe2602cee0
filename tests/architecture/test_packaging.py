"""What leaves this repository: a wheel built from the sdist carries every chip and needs no checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PACKAGES = ("dsf-core", "dsf-ascend")


@pytest.fixture(scope="module")
def wheels(root: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """checkout -> sdist -> wheel, for every package."""
    dist = tmp_path_factory.mktemp("dist")
    for name in PACKAGES:
        build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(root / "packages" / name)]
        done = subprocess.run(build, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return sorted(dist.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the unpacked wheels and nothing else of DSF's."""
    target = tmp_path_factory.mktemp("site")
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as file:
            file.extractall(target)
    return target


def test_a_wheel_from_the_sdist_carries_every_chip_as_a_plain_file(root: Path, wheels: list[Path]) -> None:
    core = next(wheel for wheel in wheels if wheel.name.startswith("dsf_core-"))
    with zipfile.ZipFile(core) as file:
        packed = {name: file.read(name) for name in file.namelist() if name.startswith("dsf/hdl/chips/")}
    for chip in root.glob("hdl/*.json"):
        assert packed[f"dsf/hdl/chips/{chip.name}"] == chip.read_bytes()


def test_each_wheel_has_types_and_a_license(wheels: list[Path]) -> None:
    for wheel in wheels:
        package, version = wheel.name.split("-")[:2]
        with zipfile.ZipFile(wheel) as file:
            names = set(file.namelist())
            assert b"Apache License" in file.read(f"{package}-{version}.dist-info/licenses/LICENSE")
        assert f"{'dsf' if package == 'dsf_core' else package}/py.typed" in names


def test_a_wheel_lists_its_chips_outside_the_checkout(root: Path, installed: Path, tmp_path: Path) -> None:
    script = "import dsf.cli as c; assert c.__file__.startswith(r'%s'), c.__file__; raise SystemExit(c.call(%r))"
    done = subprocess.run(
        [sys.executable, "-c", script % (installed, ["chips", "--json"])],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(installed)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    listed = {chip["name"] for chip in json.loads(done.stdout)["chips"]}
    assert listed >= {file.stem for file in root.glob("hdl/*.json")} >= {"ascend-910b2", "acme-x1"}
