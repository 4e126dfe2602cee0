"""A block of Stable Diffusion's UNet, written here in plain torch after diffusers' ResnetBlock2D and Transformer2DModel
[Rombach et al. 2022, arXiv 2112.10752]: transformers has no diffusion models. It computes what theirs computes and is
not their code."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

__all__ = ["UNetBlock"]


class ResnetBlock(nn.Module):
    """GroupNorm, SiLU, convolution, twice, the time embedding between them, and the input added."""

    def __init__(self, channels: int, time_channels: int, groups: int, eps: float) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, channels, eps)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.time_emb_proj = nn.Linear(time_channels, channels)
        self.norm2 = nn.GroupNorm(groups, channels, eps)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time_emb_proj(F.silu(time))[:, :, None, None]
        return x + self.conv2(F.silu(self.norm2(h)))


class Attention(nn.Module):
    """Multi-head attention over itself or, given one, over a context of another width."""

    def __init__(self, width: int, heads: int, context_width: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_k = nn.Linear(context_width, width, bias=False)
        self.to_v = nn.Linear(context_width, width, bias=False)
        self.to_out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, context: torch.Tensor | None = None) -> torch.Tensor:
        context = x if context is None else context
        q, k, v = (
            layer(source).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, source in ((self.to_q, x), (self.to_k, context), (self.to_v, context))
        )
        return self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class GatedFeedForward(nn.Module):
    """GEGLU: one projection to twice the inner width, half of it the gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, 8 * width)
        self.out = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        up, gate = self.proj(x).chunk(2, dim=-1)
        return self.out(up * F.gelu(gate))


class TransformerBlock(nn.Module):
    """Self-attention, cross-attention and a gated feed-forward, each after a LayerNorm and added to its input."""

    def __init__(self, width: int, heads: int, context_width: int) -> None:
        super().__init__()
        self.norm1, self.attn1 = nn.LayerNorm(width), Attention(width, heads, width)
        self.norm2, self.attn2 = nn.LayerNorm(width), Attention(width, heads, context_width)
        self.norm3, self.ff = nn.LayerNorm(width), GatedFeedForward(width)

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        x = x + self.attn1(self.norm1(x))
        x = x + self.attn2(self.norm2(x), context)
        return x + self.ff(self.norm3(x))


class SpatialTransformer(nn.Module):
    """A transformer block over the pixels of an image, between two 1x1 convolutions."""

    def __init__(self, channels: int, heads: int, context_width: int, groups: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels, 1e-6)
        self.proj_in = nn.Conv2d(channels, channels, 1)
        self.block = TransformerBlock(channels, heads, context_width)
        self.proj_out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = x.shape
        h = self.proj_in(self.norm(x)).permute(0, 2, 3, 1).reshape(batch, height * width, channels)
        h = self.block(h, context).reshape(batch, height, width, channels).permute(0, 3, 1, 2)
        return x + self.proj_out(h)


class UNetBlock(nn.Module):
    """One residual block and one spatial transformer at the UNet's first width, as a CrossAttnDownBlock2D has them.

    forward(sample [B, C, H, W], time [B, T], context [B, L, D]) -> [B, C, H, W].
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.settings = config
        channels, groups = config["channels"], config["norm_num_groups"]
        self.resnet = ResnetBlock(channels, config["time_channels"], groups, config["norm_eps"])
        heads, context = config["num_attention_heads"], config["cross_attention_dim"]
        self.transformer = SpatialTransformer(channels, heads, context, groups)

    def forward(self, sample: torch.Tensor, time: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        return self.transformer(self.resnet(sample, time), context)
