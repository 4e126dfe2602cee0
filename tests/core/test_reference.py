"""docs/reference/python.md says what `import dsf` has: each name with its signature, each error with its status."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dsf
from dsf import errors

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs/reference/python.md").read_text("utf-8")


def _call(name: str) -> str:
    value = getattr(dsf, name)
    if not callable(value):
        return f"dsf.{name}"
    signature = inspect.signature(value)
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    if name == "intent":  # a package that is called to decorate a function
        return "@dsf.intent(kind, **attributes)"
    return f"dsf.{name}{signature.replace(parameters=bare, return_annotation=inspect.Signature.empty)}"


def test_every_public_name_is_documented_with_its_signature_and_no_other(page: str) -> None:
    assert set(re.findall(r"^## `(.*)`$", page, re.MULTILINE)) == {_call(name) for name in dsf.__all__}


def test_every_error_is_documented_with_its_exit_status(page: str) -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| (\d) \|$", page, re.MULTILINE))
    roots = {"DsfError", "UsageError", "ProgramError"}
    leaves = {name: str(getattr(errors, name).exit_status) for name in errors.__all__ if name not in roots}
    assert rows == leaves


def test_every_error_is_documented_with_the_class_it_also_is(page: str) -> None:
    for name, also in re.findall(r"^\| `(\w+Error|OutOfMemory)` \| `(\w+)` \|", page, re.MULTILINE):
        assert also in {base.__name__ for base in getattr(errors, name).__mro__}


def test_importing_dsf_imports_no_torch() -> None:
    script = "import sys, dsf; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
