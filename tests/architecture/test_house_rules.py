"""What holds for every module: it says what it is, and it never runs what a file or a user hands it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "os.system", "os.popen", "subprocess.getoutput", "yaml.load"}
MODELS = {"accelerate", "gguf", "safetensors", "transformers"}
TUNE = {"scikit_learn"}
MODULES = {"sklearn": "scikit_learn"}  # packages whose module has another name


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def test_every_module_says_what_it_is(sources: list[Path]) -> None:
    silent = [str(path) for path in sources if path.read_text("utf-8").strip() and not ast.get_docstring(_tree(path))]
    assert silent == []


def test_every_module_with_public_names_lists_them(sources: list[Path]) -> None:
    unlisted = [str(path) for path in sources if _defines_public_names(_tree(path)) and not _has_all(_tree(path))]
    assert unlisted == []


def _defines_public_names(tree: ast.Module) -> bool:
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return any(isinstance(node, definitions) and not node.name.startswith("_") for node in tree.body)


def _has_all(tree: ast.Module) -> bool:
    names = (target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets)
    return any(isinstance(name, ast.Name) and name.id == "__all__" for name in names)


def dangers(path: Path) -> Iterator[str]:
    """Every place of *path* that could run input as code: unpickling, evaluating, a shell."""
    for node in ast.walk(_tree(path)):
        where = f"{path.name}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (f"{where}: imports {name}" for name in names if name.split(".")[0] in FORBIDDEN_MODULES)
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in FORBIDDEN_CALLS:
                yield f"{where}: calls {called}"
            if any(key.arg == "shell" for key in node.keywords):
                yield f"{where}: uses a shell"
            if called == "torch.load" and not any(key.arg == "weights_only" for key in node.keywords):
                yield f"{where}: torch.load without weights_only"


def test_no_module_runs_its_input_as_code(sources: list[Path]) -> None:
    assert [danger for path in sources for danger in dangers(path)] == []


def test_each_way_to_run_input_as_code_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text(
        "import pickle\nfrom dill import loads\neval('1')\nsubprocess.run('ls', shell=True)\ntorch.load('x')\n"
    )
    assert list(dangers(path)) == [
        "bad.py:1: imports pickle",
        "bad.py:2: imports dill",
        "bad.py:3: calls eval",
        "bad.py:4: uses a shell",
        "bad.py:5: torch.load without weights_only",
    ]


def _imported(folder: Path) -> set[str]:
    names = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.add((node.module or "").split(".")[0])
    return names - set(sys.stdlib_module_names)


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w-]", requirement)[0].replace("-", "_") for requirement in requirements}


def test_the_core_declares_exactly_what_it_imports(root: Path) -> None:
    """safetensors is what transformers stores weights in: asked for, not imported here."""
    project = tomllib.loads((root / "packages/dsf-core/pyproject.toml").read_text("utf-8"))["project"]
    extras = {name: _names(wanted) for name, wanted in project["optional-dependencies"].items()}
    assert extras == {"models": MODELS, "tune": TUNE}
    imported = {MODULES.get(name, name) for name in _imported(root / "packages/dsf-core/src")}
    assert imported - {"dsf"} - MODELS - TUNE == _names(project["dependencies"])


def test_a_vendor_package_asks_for_the_core_alone(root: Path) -> None:
    core = tomllib.loads((root / "packages/dsf-core/pyproject.toml").read_text("utf-8"))["project"]
    for file in root.glob("packages/*/pyproject.toml"):
        project = tomllib.loads(file.read_text("utf-8"))["project"]
        if project["name"] == "dsf-core":
            continue
        assert _names(project["dependencies"]) == {"dsf_core"}
        own = project["name"].replace("-", "_")
        assert _imported(file.parent / "src") <= _names(core["dependencies"]) | {"dsf", own}


def test_the_tested_torch_is_one_release_and_inside_the_declared_range(root: Path) -> None:
    pins = (root / "constraints.txt").read_text("utf-8").splitlines()
    assert [pin for pin in pins if pin.startswith("torch==")] == ["torch==2.13.0"]
    project = tomllib.loads((root / "packages/dsf-core/pyproject.toml").read_text("utf-8"))["project"]
    assert "torch>=2.13,<2.14" in project["dependencies"]


def test_every_requirement_of_the_repository_is_pinned(root: Path) -> None:
    pinned = _names((root / "constraints.txt").read_text("utf-8").splitlines())
    project = tomllib.loads((root / "packages/dsf-core/pyproject.toml").read_text("utf-8"))["project"]
    groups = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    tools = [line for group in groups.values() for line in group if isinstance(line, str)]
    wanted = _names(sum(project["optional-dependencies"].values(), project["dependencies"] + tools))
    assert wanted - pinned == set()


def test_ci_runs_the_test_command_of_the_readme(root: Path) -> None:
    command = "python3 -m pip install nox && python3 -m nox"
    assert command in (root / ".ci/run").read_text("utf-8")
    assert f"\n    {command}\n" in (root / "README.md").read_text("utf-8")


def test_every_package_carries_the_license_of_the_repository(root: Path) -> None:
    """As a copy: an sdist stores a linked file as a link that points out of it."""
    text = (root / "LICENSE").read_bytes()
    assert [file for file in root.glob("packages/*/LICENSE") if file.read_bytes() != text or file.is_symlink()] == []
    assert len(list(root.glob("packages/*/LICENSE"))) == len(list(root.glob("packages/*/pyproject.toml")))
