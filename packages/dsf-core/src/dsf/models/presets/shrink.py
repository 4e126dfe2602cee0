"""A configuration made small: what sets a model's structure stays, what sets its size becomes a few."""

from __future__ import annotations

from typing import Any

__all__ = ["shrink"]

HEAD = 16  # width of a tiny head
AT_MOST = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    "vocab_size": 128,
    **dict.fromkeys(("num_experts", "num_local_experts"), 8), "num_experts_per_tok": 2,
    **dict.fromkeys(("moe_intermediate_size", "kv_lora_rank", "q_lora_rank"), 32),
    "shared_expert_intermediate_size": 48, "qk_rope_head_dim": 8, "qk_nope_head_dim": HEAD, "v_head_dim": HEAD,
}  # fmt: skip
"""The largest a size becomes, by its name in the configuration."""

HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads")
WIDTHS = ("hidden_size", "n_embd", "d_model")
INNER = ("intermediate_size", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim")
LONG = ("max_position_embeddings", "n_positions", "max_seq_len")


def shrink(config: dict[str, Any]) -> dict[str, Any]:
    """*config* at a tiny size: heads in the same ratio to keys' heads, widths a multiple of the heads."""
    small = {key: min(value, AT_MOST[key]) if key in AT_MOST else value for key, value in config.items()}
    heads = _heads(config, small)
    for key in WIDTHS:
        if key in config and heads:
            small[key] = heads * HEAD if "head_dim" not in config else _odd_width(config, key, heads)
    for key in INNER:
        if key in config:
            small[key] = 96
    for key in LONG:
        if key in config:
            small[key] = min(config[key], 512)
    for key in ("head_dim", "d_kv", "query_pre_attn_scalar"):
        if key in config:
            small[key] = HEAD
    return small


def _heads(config: dict[str, Any], small: dict[str, Any]) -> int:
    """Writes the tiny heads into *small*: four, or so many that two (else one) of keys keep their ratio."""
    wide = next((config[key] for key in HEADS if key in config), 0)
    keys = config.get("num_key_value_heads", wide)
    ratio = wide // keys if keys else 0
    heads = ratio * min(keys, 2) if ratio > 1 else min(wide, 4)
    for key in HEADS:
        if key in config:
            small[key] = heads
    if "num_key_value_heads" in config:
        small["num_key_value_heads"] = heads // ratio
    return heads


def _odd_width(config: dict[str, Any], key: str, heads: int) -> int:
    """Where heads have a width of their own, the model's differs from their sum if it did so before."""
    wide = next(config[name] for name in HEADS if name in config)
    return heads * HEAD if config[key] == wide * config["head_dim"] else heads * HEAD + HEAD
