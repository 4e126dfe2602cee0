"""Automatic mixed precision: which operations run narrow, wide or at their widest input under `torch.autocast`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._ops import OpOverload

from dsf.device import shapes

__all__ = ["rules"]

NARROW = (
    "convolution", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d.input",
    "conv_transpose3d.input", "addmm", "addmv", "addr", "matmul", "mm", "mv", "bmm", "baddbmm", "addbmm", "linear",
    "linalg_vecdot", "linalg_multi_dot", "chain_matmul", "prelu", "scaled_dot_product_attention",
)  # fmt: skip
WIDE = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm",
    "group_norm", "rms_norm", "norm.Scalar", "norm.ScalarOpt_dim", "cosine_similarity", "cosine_embedding_loss",
    "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss",
    "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss",
    "binary_cross_entropy_with_logits", "nll_loss", "nll_loss2d", "cdist", "renorm", "logsumexp", "prod",
    "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "sum", "sum.dim_IntList", "dist", "pdist",
    "cross_entropy_loss",
)  # fmt: skip
WIDEST = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
    "scatter_add", "cat", "stack",
)  # fmt: skip

FLOATING = (torch.float16, torch.bfloat16, torch.float32)


def rules() -> Iterator[tuple[str, Callable[[OpOverload], Callable[..., Any]]]]:
    """Every operation with a rule, and what makes its kernel."""
    for names, choose in ((NARROW, _narrow), (WIDE, _wide), (WIDEST, _widest)):
        for name in names:
            yield name, _kernel_of(choose)


def _device() -> str:
    return torch._C._get_privateuse1_backend_name()


def _narrow(tensors: list[torch.Tensor]) -> torch.dtype:
    return torch.get_autocast_dtype(_device())


def _wide(tensors: list[torch.Tensor]) -> torch.dtype:
    return torch.float32


def _widest(tensors: list[torch.Tensor]) -> torch.dtype:
    dtypes = {t.dtype for t in tensors if t.dtype in FLOATING}
    return dtypes.pop() if len(dtypes) == 1 else torch.float32


def _kernel_of(choose: Callable[[list[torch.Tensor]], torch.dtype]) -> Callable[[OpOverload], Callable[..., Any]]:
    def make(op: OpOverload) -> Callable[..., Any]:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            found: list[torch.Tensor] = []
            shapes.substitute((args, kwargs), found.append)
            dtype = choose(found)
            cast = lambda t: t.to(dtype) if t.dtype in FLOATING and t.device.type == _device() else t  # noqa: E731
            with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
                return op(*shapes.substitute(args, cast), **shapes.substitute(kwargs, cast))

        return kernel

    return make


_AUTOCAST = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("AutocastPrivateUse1"))
