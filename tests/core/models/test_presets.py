"""Presets are the public models: their parameter counts are the published ones, and tiny ones keep the structure."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dsf import errors
from dsf.models.build import inputs_for, on_meta, tiny
from dsf.models.presets import names, preset
from dsf.models.presets.shrink import shrink

PUBLISHED = {
    "all-minilm-l6-v2": 22_713_216, "bert-base": 109_482_240, "bloom-7b1": 7_069_016_064,
    "deepseek-r1": 671_026_404_352, "deepseek-v3": 671_026_404_352, "gemma-2b": 2_506_172_416,
    "gemma2-9b": 9_241_705_984, "gemma3-1b": 999_885_952, "gpt-neox-20b": 20_554_567_680, "gpt2": 124_439_808,
    "llama3-70b": 70_553_706_496, "llama3-8b": 8_030_261_248, "mixtral-8x7b": 46_702_792_704, "mpt-7b": 6_649_286_656,
    "qwen2-57b-a14b": 57_408_658_944, "qwen2-7b": 7_615_616_512, "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512, "qwen3-30b-a3b": 30_532_122_624, "qwen3-8b": 8_190_735_360, "resnet-50": 25_557_032,
    "smollm2": 134_515_008, "t5-base": 222_903_552, "t5-small": 60_506_624, "vit-base": 86_567_656,
    "whisper-small": 88_154_112,
}  # fmt: skip
"""Parameters as the models' cards count them (of Whisper small the encoder), tied ones once."""


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_preset_has_the_published_number_of_parameters(name: str) -> None:
    model = on_meta(preset(name), torch.bfloat16)
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert sum(p.numel() for p in model.parameters()) == PUBLISHED[name]
    wide = sum(p.numel() for p in model.parameters() if p.dtype != torch.bfloat16)
    assert wide < PUBLISHED[name] / 1000  # transformers keeps DeepSeek's routers in float32


def test_the_unet_block_is_the_first_width_of_stable_diffusion() -> None:
    """320 channels: two 3x3 convolutions, the time projection from 1280, cross attention over 768."""
    model = on_meta(preset("sd15-unet-block"), torch.float16)
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert [c.weight.shape for c in convolutions] == [(320, 320, 3, 3)] * 2 + [(320, 320, 1, 1)] * 2
    assert set(names()) == {*PUBLISHED, "sd15-unet-block"}


@pytest.mark.parametrize("name", names())
def test_every_preset_says_where_its_numbers_are_from_and_under_what_licence(name: str) -> None:
    found = preset(name)
    assert found.source.startswith("https://huggingface.co/")
    assert found.source.endswith("config.json")
    assert found.title
    assert found.licence


@pytest.mark.parametrize("name", names())
def test_a_tiny_one_has_the_modules_of_the_whole_and_finite_numbers(name: str) -> None:
    found = preset(name)
    model = tiny(found, torch.float32)
    large = on_meta(found, torch.float32)
    assert {type(m) for m in model.modules()} == {type(m) for m in large.modules()}
    assert sum(p.numel() for p in model.parameters()) < 1_000_000
    with torch.no_grad():
        out = model(**inputs_for(model, 2, 7))
    result = out if isinstance(out, torch.Tensor) else out[0]
    assert result.isfinite().all()
    assert result.std() > 0.05


@pytest.mark.parametrize("name", ["llama3-8b", "llama3-70b", "qwen2-7b", "gemma2-9b", "gemma-2b", "smollm2"])
def test_a_tiny_one_keeps_the_ratio_of_heads(name: str) -> None:
    config = preset(name).config
    small = preset(name).tiny_config()
    assert small["num_attention_heads"] * config["num_key_value_heads"] == (
        config["num_attention_heads"] * small["num_key_value_heads"]
    )
    assert small["num_key_value_heads"] == min(config["num_key_value_heads"], 2)


def test_a_tiny_width_differs_from_its_heads_where_the_true_one_does() -> None:
    """Gemma 2: 3584 wide, 16 heads of 256; Gemma: 2048 wide, 8 heads of 256."""
    odd, even = shrink(preset("gemma2-9b").config), shrink(preset("gemma-2b").config)
    assert odd["hidden_size"] != odd["num_attention_heads"] * odd["head_dim"]
    assert even["hidden_size"] == even["num_attention_heads"] * even["head_dim"]


def test_tiny_weights_follow_from_the_seed_and_leave_the_users_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    one, same, other = (tiny(preset("gpt2"), torch.float32, seed) for seed in (0, 0, 1))
    assert torch.rand(1) == expected
    weights = [m.transformer.h[0].attn.c_attn.weight for m in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_no_weight_of_a_tiny_model_hides_what_it_multiplies() -> None:
    """A norm's weight of ones and a bias of zeros would let a kernel forget them."""
    for weight in tiny(preset("bert-base"), torch.float32).parameters():
        if weight.dim() == 1:
            assert weight.std() > 0.05


def test_an_unknown_preset_is_answered_with_near_ones() -> None:
    with pytest.raises(errors.ModelError, match=r"^DSF-C010: no preset named 'llama3-8'; did you mean llama3-8b "):
        preset("llama3-8")
