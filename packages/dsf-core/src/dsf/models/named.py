"""What a person may call a model: a preset, a folder of Hugging Face's form, a GGUF file, a function of their own."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from dsf import errors
from dsf.models import presets
from dsf.models.build import folder_config, gguf_config, of_config, on_meta

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["Named", "named"]


@frozen(eq=False)
class Named:
    """A model, what it is called, where its configuration comes from, and its own *inputs* if its maker gave some."""

    title: str
    source: str
    model: nn.Module
    inputs: dict[str, Any] | None = None


def named(name: str, dtype: torch.dtype | None = None) -> Named:
    """The model called *name*, without memory for weights wherever DSF makes it itself. Raises ModelError."""
    if name in presets.names():
        known = presets.preset(name)
        return Named(known.title, known.source, on_meta(known, dtype or _own_dtype(known.config)))
    path = Path(name).expanduser()
    if path.suffix == ".gguf" and path.is_file():
        return Named(path.stem, str(path), of_config(gguf_config(path), dtype))
    if path.is_dir():
        return Named(path.name, str(path), of_config(folder_config(path), dtype))
    if ":" in name:
        return _made(name)
    raise errors.ModelError(
        "DSF-C015",
        f"'{name}' is no preset ({', '.join(presets.names())}), no folder with a config.json, no .gguf file "
        "and no module:function that returns a model",
    )


def _own_dtype(config: dict[str, Any]) -> torch.dtype:
    import torch

    dtype: torch.dtype = getattr(torch, config.get("torch_dtype", "float32"))
    return dtype


def _made(name: str) -> Named:
    """The model that the user's function makes: the module, or a pair of it and its inputs, by name or in order."""
    from torch import nn

    make = _function(name)
    try:
        made = make()
    except Exception as cause:
        raise errors.ModelError("DSF-C023", f"{name} fails ({type(cause).__name__}: {cause})") from cause
    model, given = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module):
        raise errors.ModelError(
            "DSF-C017", f"{name} returned a {type(model).__name__}; expected a torch.nn.Module, or a pair of one and "
            "its inputs, which are a dict by the names of forward's arguments or a tuple in their order"
        )  # fmt: skip
    if given is None and not hasattr(model, "config"):
        raise errors.ModelError(
            "DSF-C018", f"{name} returned a {type(model).__name__} without inputs, and DSF knows those of "
            "transformers' models alone; return a pair of the module and its inputs"
        )  # fmt: skip
    return Named(type(model).__name__, name, model.eval(), _by_name(model, given))


def _function(name: str) -> Any:
    """The user's function, imported with the current folder on the path, as `python -m` has it."""
    module, _, function = name.partition(":")
    here = os.getcwd()
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), function, None)
    except Exception as cause:  # whatever the user's module does when it is imported
        raise errors.ModelError(
            "DSF-C016", f"{name}: module '{module}' cannot be imported ({type(cause).__name__}: {cause}); expected an "
            "importable module with a function that returns a model"
        ) from cause  # fmt: skip
    finally:
        if added:
            sys.path.remove(here)
    if not callable(found):
        raise errors.ModelError("DSF-C016", f"{name}: module '{module}' has no function '{function}'")
    return found


def _by_name(model: nn.Module, given: Any) -> dict[str, Any] | None:
    if given is None or isinstance(given, dict):
        return given
    import inspect

    return dict(zip(inspect.signature(model.forward).parameters, given, strict=False))
