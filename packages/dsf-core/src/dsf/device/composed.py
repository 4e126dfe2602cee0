"""Operations that are several: recorded as what they consist of, so that each part finds a kernel.

One operation of the tape is one intent. Gradients of norms and losses, deviations, padding and triangles are several;
they are written here in plain torch, below autograd, in float32 where torch computes 16-bit floats so. A form that is
not written here is left to torch's own operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["COMPOSED", "composed"]

Tensor = torch.Tensor
Kernel = Callable[..., Any]


def composed(name: str, whole: Kernel) -> Kernel:
    """The kernel of operation *name*: composed, or *whole* for forms that are not."""
    formula = COMPOSED[name]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        result = formula(*args, **kwargs)
        return whole(*args, **kwargs) if result is NotImplemented else result

    return kernel


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


# Softmax and losses


def _safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    """Softmax whose rows that see nothing are zero."""
    hidden = (x == -torch.inf).all(dim, keepdim=True)
    return torch.softmax(x, dim, dtype=dtype).masked_fill(hidden, 0.0)


def _softmax_backward(grad: Tensor, y: Tensor, dim: int, dtype: torch.dtype) -> Any:
    grad, y = _wide(grad), _wide(y)
    weighted = grad * y
    return (weighted - y * weighted.sum(dim, keepdim=True)).to(dtype)


def _log_softmax_backward(grad: Tensor, y: Tensor, dim: int, dtype: torch.dtype) -> Any:
    grad, y = _wide(grad), _wide(y)
    return (grad - torch.exp(y) * grad.sum(dim, keepdim=True)).to(dtype)


_MEAN, _SUM = 1, 2  # torch's numbers for the reduction of a loss


def _nll_loss(x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int) -> Any:
    """Minus the log-probability of each target that counts: their mean or sum, and how many they are."""
    if weight is not None or x.dim() != 2 or reduction not in (_MEAN, _SUM):
        return NotImplemented
    counts = target != ignored
    found = x.gather(1, torch.where(counts, target, 0).unsqueeze(1)).squeeze(1)
    number = counts.sum().to(x.dtype)
    total = torch.where(counts, -_wide(found), 0.0).sum()
    return (total / number if reduction == _MEAN else total).to(x.dtype), number


def _nll_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int, number: Tensor
) -> Any:
    if weight is not None or x.dim() != 2 or reduction not in (_MEAN, _SUM):
        return NotImplemented
    counts = target != ignored
    each = -(grad / number if reduction == _MEAN else grad)
    source = torch.where(counts, each, torch.zeros_like(each)).to(x.dtype)
    return torch.zeros_like(x).scatter(1, torch.where(counts, target, 0).unsqueeze(1), source.unsqueeze(1))


# Products


def _product_and_sum(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """beta * x + (alpha * a) @ b: scaled before, so that no sum of 16-bit scores overflows."""
    if beta == 0 or not a.is_floating_point():
        return NotImplemented
    return torch.bmm(a if alpha == 1 else a * alpha, b) + (x if beta == 1 else x * beta)


# Norms, deviations


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Any:  # fmt: skip
    """The norm, and what its gradient needs: mean and reciprocal deviation, in float32 for 16-bit floats."""
    if not x.numel():
        return NotImplemented
    inner, wide = tuple(range(-len(shape), 0)), _wide(x)
    mean = wide.mean(inner, keepdim=True)
    away = wide - mean
    rstd = torch.rsqrt((away * away).mean(inner, keepdim=True) + eps)
    return torch.layer_norm(x, shape, weight, bias, eps), mean, rstd


def _layer_norm_backward(
    grad: Tensor, x: Tensor, shape: Sequence[int], mean: Tensor, rstd: Tensor, weight: Tensor | None,
    bias: Tensor | None, mask: Sequence[bool],
) -> Any:  # fmt: skip
    """With n = (x - mean) * rstd: dx = (g - mean(g) - n * mean(g * n)) * rstd, g = grad * weight."""
    inner, outer = tuple(range(-len(shape), 0)), tuple(range(x.dim() - len(shape)))
    dtype, grad = x.dtype, _wide(grad)
    normed = (_wide(x) - mean) * rstd
    scaled = grad if weight is None else grad * _wide(weight)
    found: list[Tensor | None] = [None, None, None]
    if mask[0]:
        drift = scaled.mean(inner, keepdim=True) + normed * (scaled * normed).mean(inner, keepdim=True)
        found[0] = ((scaled - drift) * rstd).to(dtype)
    if mask[1]:
        found[1] = ((grad * normed).sum(outer) if outer else grad * normed).to(dtype)
    if mask[2]:
        found[2] = (grad.sum(outer) if outer else grad).to(dtype)
    return tuple(found)


def _variance(x: Tensor, dim: Any, correction: float | None, keepdim: bool) -> tuple[Tensor, Tensor] | None:
    """Variance and mean, in the precision they are computed in; None where torch's own is asked."""
    if not x.is_floating_point() or not x.dim() or not x.numel():
        return None
    dims = tuple(range(x.dim())) if dim is None or not len(dim) else tuple(dim)
    wide = _wide(x)
    mean = wide.mean(dims, keepdim=True)
    count = x.numel() // mean.numel()
    away = wide - mean
    least = max(count - (1 if correction is None else correction), 0)
    variance = (away * away).sum(dims, keepdim=keepdim) / least
    return variance, mean if keepdim else mean.reshape(variance.shape)


def _var(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    found = _variance(x, dim, correction, keepdim)
    return NotImplemented if found is None else found[0].to(x.dtype)


def _std(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    found = _variance(x, dim, correction, keepdim)
    return NotImplemented if found is None else found[0].sqrt().to(x.dtype)


def _var_mean(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    found = _variance(x, dim, correction, keepdim)
    return NotImplemented if found is None else tuple(t.to(x.dtype) for t in found)


def _vector_norm(
    x: Tensor, order: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    if order not in (1, 2) or not x.is_floating_point() or not x.dim() or not x.numel():
        return NotImplemented
    dims = tuple(range(x.dim())) if dim is None or not len(dim) else tuple(dim)
    wide = _wide(x) if dtype is None else x.to(dtype)
    total = (wide * wide if order == 2 else wide.abs()).sum(dims, keepdim=keepdim)
    return (total.sqrt() if order == 2 else total).to(dtype or x.dtype)


# Movement


def _pad(x: Tensor, pad: Sequence[int], value: Any = 0) -> Any:
    """*pad* says how much goes before and after each dimension, the last one first; less than 0 cuts off."""
    pairs = [(0, 0)] * x.dim()
    for i in range(len(pad) // 2):
        pairs[x.dim() - 1 - i] = pad[2 * i], pad[2 * i + 1]
    sizes = [n + before + after for n, (before, after) in zip(x.shape, pairs, strict=True)]
    if min(sizes, default=0) <= 0 or x.is_complex():
        return NotImplemented
    y = x.new_full(sizes, value)
    target = y
    for dim, (before, after) in enumerate(pairs):
        x = x.narrow(dim, max(-before, 0), x.shape[dim] - max(-before, 0) - max(-after, 0))
        target = target.narrow(dim, max(before, 0), x.shape[dim])
    target.copy_(x)
    return y


def _slice_backward(grad: Tensor, sizes: Sequence[int], dim: int, start: int, end: int, step: int) -> Any:
    y = grad.new_zeros(sizes)
    torch.ops.aten.slice.Tensor(y, dim, start, end, step).copy_(grad)
    return y


def _select_backward(grad: Tensor, sizes: Sequence[int], dim: int, index: int) -> Any:
    y = grad.new_zeros(sizes)
    y.select(dim, index).copy_(grad)
    return y


def _embedding_backward(grad: Tensor, ids: Tensor, rows: int, padding: int, by_frequency: bool) -> Any:
    if by_frequency:
        return NotImplemented
    flat, parts = ids.reshape(-1), grad.reshape(-1, grad.shape[-1])
    if padding >= 0:
        parts = parts.masked_fill((flat == padding).unsqueeze(1), 0.0)
    return grad.new_zeros((rows, grad.shape[-1])).index_add(0, flat, parts)


def _triangle(lower: bool) -> Kernel:
    def triangle(x: Tensor, diagonal: int = 0) -> Any:
        """Column j of row i stays if j - i <= diagonal (>= for the upper one)."""
        if x.dim() < 2 or x.is_complex():
            return NotImplemented
        rows = torch.arange(x.shape[-2], device=x.device).unsqueeze(1) + diagonal
        columns = torch.arange(x.shape[-1], device=x.device)
        return torch.where(columns <= rows if lower else columns >= rows, x, torch.zeros_like(x))

    return triangle


def _flip(x: Tensor, dims: Sequence[int]) -> Any:
    if not len(dims) or x.is_complex():
        return NotImplemented
    for dim in dims:
        size = x.shape[dim]
        x = x.index_select(dim, size - 1 - torch.arange(size, device=x.device))
    return x


COMPOSED: dict[str, Kernel] = {
    "_safe_softmax": _safe_softmax, "_softmax_backward_data": _softmax_backward,
    "_log_softmax_backward_data": _log_softmax_backward, "nll_loss_forward": _nll_loss,
    "nll_loss_backward": _nll_loss_backward, "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward, "var.correction": _var, "std.correction": _std,
    "var_mean.correction": _var_mean, "linalg_vector_norm": _vector_norm,
    "constant_pad_nd": _pad, "slice_backward": _slice_backward,
    "select_backward": _select_backward, "embedding_dense_backward": _embedding_backward,
    "baddbmm": _product_and_sum, "tril": _triangle(True), "triu": _triangle(False), "flip": _flip,
}  # fmt: skip
"""By operation. Each is below autograd: torch's own formula for its gradient stays."""
