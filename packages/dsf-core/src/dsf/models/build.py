"""A configuration made a model: at full size without memory for its weights, or tiny with seeded random ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsf import errors
from dsf.models.presets import Preset

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["EXAMPLE_SEED", "build", "folder_config", "gguf_config", "inputs_for", "on_meta", "tiny"]

EXAMPLE_SEED = 0
OWN = "unet_block"  # the model type of the one block that transformers does not have


def on_meta(preset: Preset, dtype: torch.dtype) -> nn.Module:
    """The model of *preset* at full size on torch's meta device: shapes without memory."""
    import torch

    with torch.device("meta"):
        return _part(build(preset.config, dtype), preset.part)


def tiny(preset: Preset, dtype: torch.dtype, seed: int = EXAMPLE_SEED) -> nn.Module:
    """The model of *preset* at its tiny size on the CPU, with random weights that *seed* decides."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _part(build(preset.tiny_config(), dtype), preset.part)
        with torch.no_grad():
            for weight in model.parameters():  # transformers starts norms at one and biases at zero, which hides them
                if weight.dim() < 2:
                    weight.add_(torch.randn_like(weight) / 8)
    return model


def build(config: dict[str, Any], dtype: torch.dtype) -> nn.Module:
    """The model that *config* describes, by its first architecture, in evaluation mode, on torch's default device."""
    if config.get("model_type") == OWN:
        from dsf.models.presets.unet import UNetBlock

        return UNetBlock(config).to(dtype).eval()
    transformers = _transformers()
    with _quiet():
        known = transformers.AutoConfig.for_model(config["model_type"], **_without(config, "model_type"))
    return _of_transformers(known, dtype)


def folder_config(folder: Path) -> Any:
    """The configuration in the `config.json` of a local folder, as transformers reads it."""
    transformers = _transformers()
    try:
        return transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, KeyError) as cause:
        raise errors.ModelError(
            "DSF-C012",
            f"{folder}: no model of Hugging Face's form ({_line(cause)}); expected a folder with config.json",
        ) from cause


def gguf_config(file: Path) -> Any:
    """The configuration that a GGUF file carries, as transformers reads it."""
    transformers = _transformers()
    try:
        return transformers.AutoConfig.from_pretrained(str(file.parent), gguf_file=file.name, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as cause:
        raise errors.ModelError(
            "DSF-C013", f"{file}: not a GGUF file that can be read ({_line(cause)}); expected one of a language model"
        ) from cause


def of_config(config: Any, dtype: torch.dtype | None) -> nn.Module:
    """The model of a transformers configuration on torch's meta device, in its own dtype unless *dtype* is given."""
    import torch

    with torch.device("meta"):
        return _of_transformers(config, dtype or getattr(config, "dtype", None) or torch.float32)


def _of_transformers(config: Any, dtype: torch.dtype) -> nn.Module:
    transformers = _transformers()
    named = next(iter(getattr(config, "architectures", None) or ()), None)
    if named is None:
        cls = transformers.AutoModelForCausalLM._model_mapping.get(type(config), None)
    else:
        cls = getattr(transformers, named, None)
    if cls is None:
        raise errors.ModelError(
            "DSF-C014", f"transformers {transformers.__version__} has no class '{named}', as the configuration has it; "
            "install the release that does, or name a module:function that makes the model"
        )  # fmt: skip
    with _quiet():
        model: nn.Module = cls._from_config(config, dtype=dtype, **_experts(cls))
    return model.eval()


def _experts(cls: Any) -> dict[str, Any]:
    """Experts as one grouped product where the model has a choice: a loop over them depends on values."""
    asks = getattr(cls, "_can_set_experts_implementation", lambda: False)
    return {"experts_implementation": "grouped_mm"} if asks() else {}


def inputs_for(model: nn.Module, batch: int, length: int) -> dict[str, torch.Tensor]:
    """Inputs of a forward on the CPU: *length* tokens for a language model, an image, a spectrum or a latent else."""
    import torch

    maker = torch.Generator().manual_seed(EXAMPLE_SEED)
    settings: Any = getattr(model, "settings", None)
    if settings is not None:
        side, context = settings["sample_size"], settings["context_length"]
        shapes = {
            "sample": (batch, settings["channels"], side, side),
            "time": (batch, settings["time_channels"]),
            "context": (batch, context, settings["cross_attention_dim"]),
        }
        return {name: torch.randn(shape, generator=maker) for name, shape in shapes.items()}
    config: Any = model.config
    main = getattr(model, "main_input_name", "input_ids")
    if main == "pixel_values":
        side = getattr(config, "image_size", None) or 224
        return {main: torch.randn((batch, config.num_channels, side, side), generator=maker)}
    if main == "input_features":
        return {main: torch.randn((batch, config.num_mel_bins, 2 * config.max_source_positions), generator=maker)}
    tokens = torch.randint(1, config.vocab_size, (batch, length), generator=maker)
    inputs = {"input_ids": tokens}
    if getattr(config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = torch.full((batch, 1), config.decoder_start_token_id)
    return inputs


def _part(model: nn.Module, path: str) -> nn.Module:
    return reduce(getattr, path.split("."), model) if path else model


def _without(config: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != key}


def _transformers() -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded
    try:
        import transformers
    except ModuleNotFoundError as cause:
        raise errors.ModelError(
            "DSF-C011",
            "models are built with transformers, which is not installed; "
            "run `python3 -m pip install 'dsf-core[models]'`",
        ) from cause
    return transformers


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' advice on how a model is better made."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _line(cause: BaseException) -> str:
    return f"{type(cause).__name__}: {' '.join(str(cause).split())[:200]}"
