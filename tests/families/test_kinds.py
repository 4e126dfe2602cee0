"""What each family is made of: so many attentions, norms, gated blocks and experts as its public configuration has."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.families.conftest import recorded, unread

from dsf.models.capture import Step


def counts(name: str) -> Counter[str]:
    """Intents by kind in the first step of *name* at full size, and its groups under `group:kind`."""
    step = recorded(name)[0]
    return Counter(intent.kind for intent in step.intents) + groups(step)


def groups(step: Step) -> Counter[str]:
    found: Counter[str] = Counter()
    for part in step.parts:
        found.update(f"group:{kind}" for kind, _ in {(i.group.kind, i.group.anchor) for i in part.intents if i.group})
    return found


LAYERS = {
    "llama3-8b": 32, "llama3-70b": 80, "smollm2": 30, "qwen2-7b": 28, "qwen2.5-0.5b": 24, "qwen2.5-7b": 28,
    "qwen3-8b": 36, "qwen3-30b-a3b": 48, "qwen2-57b-a14b": 28, "deepseek-v3": 61, "deepseek-r1": 61, "mixtral-8x7b": 32,
    "gemma-2b": 18, "gemma2-9b": 42, "gemma3-1b": 26, "gpt2": 12, "gpt-neox-20b": 44, "bloom-7b1": 30, "mpt-7b": 32,
    "bert-base": 12, "all-minilm-l6-v2": 6, "vit-base": 12, "whisper-small": 12, "t5-small": 18, "t5-base": 36,
}  # fmt: skip
"""Attentions: one a layer; T5's decoder has two."""


@pytest.mark.parametrize("name", unread(LAYERS, "mpt-7b"))
def test_every_layer_has_its_attention(name: str) -> None:
    assert counts(name)["attention"] == LAYERS[name]


RMS = {
    "llama3-8b": 65, "llama3-70b": 161, "smollm2": 61, "qwen2-7b": 57, "qwen3-8b": 36 * 4 + 1,
    "qwen3-30b-a3b": 48 * 4 + 1, "qwen2-57b-a14b": 57, "deepseek-v3": 61 * 4 + 1, "mixtral-8x7b": 65, "gemma-2b": 37,
    "gemma2-9b": 42 * 4 + 1, "gemma3-1b": 26 * 6 + 1, "t5-small": 6 * 2 + 6 * 3 + 2,
}  # fmt: skip
"""Two a layer and one at the end; Qwen3 and Gemma 3 norm queries and keys too, DeepSeek its latents, Gemma 2 and 3 what
comes out of a block; T5's encoder has two and its decoder three."""


@pytest.mark.parametrize("name", RMS)
def test_every_root_mean_square_norm_is_one(name: str) -> None:
    found = counts(name)
    assert found["rms_norm"] + found["add_rms_norm"] == RMS[name]


LAYER_NORMS = {"gpt2": 25, "gpt-neox-20b": 89, "bloom-7b1": 62, "mpt-7b": 65, "bert-base": 25, "vit-base": 25}


@pytest.mark.parametrize("name", LAYER_NORMS)
def test_every_layer_norm_is_one(name: str) -> None:
    found = counts(name)
    assert found["layer_norm"] + found["add_layer_norm"] == LAYER_NORMS[name]


ROTARY = ["llama3-8b", "qwen2-7b", "qwen3-8b", "qwen3-30b-a3b", "mixtral-8x7b", "gemma-2b", "gemma2-9b", "gemma3-1b",
          "gpt-neox-20b", "smollm2"]  # fmt: skip


@pytest.mark.parametrize("name", ROTARY)
def test_queries_and_keys_are_turned_in_every_layer(name: str) -> None:
    assert counts(name)["rotary"] == 2 * LAYERS[name]


GATED = ["llama3-8b", "qwen2-7b", "qwen3-8b", "gemma-2b", "gemma2-9b", "gemma3-1b", "smollm2"]


@pytest.mark.parametrize("name", GATED)
def test_every_gated_block_is_one_group(name: str) -> None:
    assert counts(name)["group:gated_ffn"] == LAYERS[name]


EXPERTS = {"mixtral-8x7b": 32, "qwen3-30b-a3b": 48, "qwen2-57b-a14b": 28, "deepseek-v3": 58}
"""Layers with experts: all, but the first three of DeepSeek."""


@pytest.mark.parametrize("name", EXPERTS)
def test_experts_are_two_grouped_products_a_layer(name: str) -> None:
    found = counts(name)
    assert found["grouped_linear"] == 2 * EXPERTS[name]
    assert found["gated_activation"] >= EXPERTS[name]


def test_a_residual_network_is_its_convolutions() -> None:
    found = counts("resnet-50")
    assert (found["convolution"], found["pool"]) == (53, 1)


def test_a_unet_block_is_convolutions_group_norms_and_two_attentions() -> None:
    found = counts("sd15-unet-block")
    assert (found["convolution"], found["group_norm"], found["attention"]) == (4, 3, 2)
    assert found["layer_norm"] + found["add_layer_norm"] == 3
    assert found["gated_activation"] == 1


def attention_of(name: str) -> dict[str, object]:
    return dict(next(i for i in recorded(name)[0].intents if i.kind == "attention").attrs)


def test_attention_says_how_heads_are_shared_and_what_is_seen() -> None:
    assert attention_of("llama3-8b")["groups"] == 4
    assert attention_of("gemma-2b")["groups"] == 8
    assert attention_of("llama3-8b")["causal"] is True
    assert attention_of("bert-base")["causal"] is False
