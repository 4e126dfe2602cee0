"""From a weight file to a tokenizer and a model in host memory, with transformers and without a network."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile, ZipFile

from attrs import frozen

from dsf import errors
from dsf.models.shelf import Source, locate

if TYPE_CHECKING:
    import torch

__all__ = ["Loaded", "Watch", "load", "move"]

Watch = Callable[[str, int, int], None]
"""Called as `watch(stage, done, total)` while something long goes on."""


@frozen
class Loaded:
    """A model ready to move to a device, and the tokenizer that speaks its language."""

    source: Source
    tokenizer: Any
    model: Any


def load(source: Source, dtype: torch.dtype, watch: Watch) -> Loaded:
    """Read *source* into host memory as *dtype*."""
    path = locate(source)
    watch("tokenizer", 0, 1)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before transformers is imported: the weights are already here
    _require_transformers()
    try:
        with _one_reading(watch):
            read = _read_folder if path.suffix == ".zip" else _read
            return read(source, path, dtype, watch)
    except (OSError, ValueError, KeyError, BadZipFile) as cause:
        raise errors.ModelError(
            "DSF-C004",
            f"model '{source.name}': {path.name} cannot be read ({type(cause).__name__}: {cause}); "
            f"expected the weights of {source.title}; run `{source.install} --force-reinstall`",
        ) from cause


def move(model: Any, device: str, watch: Watch) -> None:
    """Put *model* on *device* in place, module by module, so that a person sees how far it is."""
    parts = [module for module in model.modules() if not any(True for _ in module.children())]
    for done, part in enumerate(parts, start=1):
        part.to(device)
        watch("to the device", done, len(parts))
    model.to(device)  # what hangs on modules that have children


def _require_transformers() -> None:
    try:
        import accelerate  # noqa: F401  # transformers loads GGUF weights through it
        import gguf  # noqa: F401
        import transformers  # noqa: F401
    except ModuleNotFoundError as cause:
        raise errors.ModelError(
            "DSF-C003",
            f"models are loaded with transformers, accelerate and gguf, and '{cause.name}' is not installed; "
            "run `python3 -m pip install 'dsf-core[models]'`",
        ) from cause


def _read(source: Source, path: Path, dtype: torch.dtype, watch: Watch) -> Loaded:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    watch("tokenizer", 1, 1)
    plain = GgufConfig(gguf_file=path.name, dequantize=True)  # dense weights: the chip's formats are DSF's subject
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=dtype, quantization_config=plain)
    return Loaded(source, tokenizer, model.eval())


def _read_folder(source: Source, path: Path, dtype: torch.dtype, watch: Watch) -> Loaded:
    """A zipped folder of Hugging Face's form; unpacked only while it is read."""
    from transformers import AutoModel, AutoTokenizer

    with TemporaryDirectory() as folder, ZipFile(path) as packed:
        packed.extractall(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        watch("tokenizer", 1, 1)
        model = AutoModel.from_pretrained(folder, dtype=dtype, use_safetensors=True)
        return Loaded(source, tokenizer, model.eval())


@contextmanager
def _one_reading(watch: Watch) -> Iterator[None]:
    """Let transformers parse a GGUF file once and count tensors to *watch* instead of drawing bars of its own.

    It parses the file for the configuration, the tokenizer and the weights, and a name map per module: half a minute
    for a vocabulary of 49,000, against five seconds when each is remembered.
    """
    import gguf
    from transformers import modeling_gguf_pytorch_utils as loader
    from transformers.utils import logging

    def counted(tensors: Iterable[Any], **_: Any) -> Iterator[Any]:
        everything = list(tensors)
        for done, tensor in enumerate(everything, start=1):
            yield tensor
            watch("weights", done, len(everything))

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    replaced = (
        (gguf, "GGUFReader", functools.cache(_plain_reader())),
        (gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map)),
        (loader, "tqdm", counted),
    )
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    for owner, name, value in replaced:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
        if bars:
            logging.enable_progress_bar()


def _plain_reader() -> type:
    """A GGUFReader on a plain array: slicing a `numpy.memmap` half a million times costs seven times as much."""
    import gguf
    import numpy as np

    class PlainReader(gguf.GGUFReader):
        @property
        def data(self) -> Any:
            return self._plain

        @data.setter
        def data(self, mapped: Any) -> None:
            self._plain = mapped.view(np.ndarray)

    return PlainReader
