"""What an operation gives before it has run: the windows of its results, and from them the plan to record it.

The hot operations have their own shape functions; the others ask torch's meta kernels, which cost 10-1000 us. Either
way the answer is kept per operation and argument signature, so that each is found once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import frozen
from torch._ops import OpOverload

from dsf.device.handles import Layout, layout
from dsf.device.tape import intern, window
from dsf.intent.tape import Signature, Slot

__all__ = ["META_FAILURES", "Plan", "metas", "outputs_of", "plan"]

# What a meta kernel raises when it cannot tell a shape, or when the call itself is wrong. Both end on the host, where
# the CPU kernel either answers or raises the error that the user expects.
META_FAILURES = (RuntimeError, TypeError, ValueError, IndexError, AssertionError)
HOST_ONLY = ("device", "pin_memory", "layout")

Spec = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


@frozen(eq=False)
class Plan:
    """How to record one operation on one argument signature.

    *fresh* are the layouts of new results, *mutated* the arguments that are written. *returns* says what the kernel
    answers: a number n >= 0 is fresh result n, ~n is argument n, a tuple is a list of them.
    """

    signature: Signature
    fresh: tuple[Layout, ...]
    mutated: tuple[int, ...]
    returns: Any
    simple: bool


def metas(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in tensors]


def substitute(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """*value* with every tensor changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return [substitute(v, change) for v in value]
    if isinstance(value, dict):
        return {k: substitute(v, change) for k, v in value.items()}
    return value


def mutable_names(op: OpOverload) -> frozenset[str | int]:
    """Names and positions of the arguments that *op* writes."""
    found: set[str | int] = set()
    for position, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found |= {argument.name, position}
    return frozenset(found)


def on_device(kwargs: dict[str, Any], device: str) -> dict[str, Any]:
    """*kwargs* with the device of a factory call replaced."""
    kept = {k: v for k, v in kwargs.items() if k not in HOST_ONLY}
    return kept if kwargs.get("device") is None else {**kept, "device": torch.device(device)}


def outputs_of(op: OpOverload, args: Any, kwargs: dict[str, Any], tensors: Sequence[torch.Tensor]) -> Any:
    """The results of *op* as meta tensors, arguments among them being the same objects as in the second answer."""
    stand_ins = metas(tensors)
    by_id = dict(zip(map(id, tensors), stand_ins, strict=True))
    change = lambda t: by_id[id(t)]  # noqa: E731
    run = META.get(op, op)
    return run(*substitute(args, change), **on_device(substitute(kwargs, change), "meta")), stand_ins


def plan(op: OpOverload, args: Any, kwargs: dict[str, Any], tensors: Sequence[torch.Tensor]) -> Plan | None:
    """The plan of *op* on these arguments, or None where only running it can tell."""
    own = OWN.get(op)
    specs = own(*args, **kwargs) if own is not None else None
    if specs is not None:
        return _plan(op, args, kwargs, tensors, [layout(*specs)], 0)
    try:
        result, stand_ins = outputs_of(op, args, kwargs, tensors)
    except META_FAILURES:
        return None
    fresh: list[Layout] = []
    returns = _returns(result, stand_ins, fresh)
    if returns is NotImplemented:
        return None
    for tensor, stand_in in zip(tensors, stand_ins, strict=True):
        if tensor.shape != stand_in.shape:
            raise Resize(tensor, tuple(stand_in.shape))
    return _plan(op, args, kwargs, tensors, fresh, returns)


def _returns(result: Any, stand_ins: Sequence[torch.Tensor], fresh: list[Layout]) -> Any:
    """The template of what the kernel answers; results that are neither arguments nor new tensors need the host."""
    if result is None:
        return None
    if isinstance(result, list | tuple):
        parts = tuple(_returns(r, stand_ins, fresh) for r in result)
        return NotImplemented if NotImplemented in parts else parts
    if not isinstance(result, torch.Tensor):
        return NotImplemented
    for number, stand_in in enumerate(stand_ins):
        if result is stand_in:
            return ~number
    fresh.append(layout(tuple(result.shape), result.stride(), result.dtype))
    return len(fresh) - 1


class Resize(Exception):
    """An `out=` argument must first get the shape *shape*."""

    def __init__(self, argument: torch.Tensor, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.argument, self.shape = argument, shape


def _plan(
    op: OpOverload,
    args: Any,
    kwargs: dict[str, Any],
    tensors: Sequence[torch.Tensor],
    fresh: list[Layout],
    returns: Any,
) -> Plan:
    template = _Template()
    names = mutable_names(op)
    mutated: list[int] = []
    frozen_args = []
    for position, value in enumerate(args):
        frozen_args.append(template(value, mutated if position in names else None))
    frozen_kwargs = [(k, template(v, mutated if k in names else None)) for k, v in kwargs.items() if k not in HOST_ONLY]
    count = len(tensors)
    windows = (*map(window, tensors), *(f.window for f in fresh))
    new = tuple(range(count, count + len(fresh)))
    outs = tuple(_slots(returns, count))
    signature = intern(str(op), tuple(frozen_args), tuple(frozen_kwargs), windows, (*new, *mutated), outs)
    return Plan(signature, tuple(fresh), tuple(mutated), returns, returns == 0 and isinstance(returns, int))


def answer(returns: Any, fresh: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> Any:
    """What a kernel answers, from the template of a plan."""
    if returns is None:
        return None
    if isinstance(returns, tuple):
        return [answer(part, fresh, tensors) for part in returns]
    return fresh[returns] if returns >= 0 else tensors[~returns]


class _Template:
    """Arguments with a `Slot` for every tensor, numbered in the order in which they occur."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, value: Any, written: list[int] | None) -> Any:
        if isinstance(value, torch.Tensor):
            self.count += 1
            if written is not None:
                written.append(self.count - 1)
            return Slot(self.count - 1)
        if isinstance(value, list | tuple):
            return tuple(self(v, written) for v in value)
        return value


def _slots(returns: Any, count: int) -> Any:
    if isinstance(returns, tuple):
        for part in returns:
            yield from _slots(part, count)
    elif returns is not None:
        yield count + returns if returns >= 0 else ~returns


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Spec | None:
    """(batch, heads, length, dim), laid out with the heads inside a token, as torch's own fused kernels do."""
    if not (q.dim() == k.dim() == v.dim() == 4) or not (q.dtype is k.dtype is v.dtype):
        return None
    batch, heads, length, width = q.shape
    grouped = heads == k.shape[1] or (enable_gqa and heads % max(k.shape[1], 1) == 0)
    if not grouped or k.shape[:3] != v.shape[:3] or k.shape[0] != batch or k.shape[3] != width:
        return None
    if mask is not None and (mask.dim() > 4 or mask.shape[-2:] != (length, k.shape[2])):
        return None
    out = v.shape[3]
    return (batch, heads, length, out), (length * heads * out, out, heads * out, 1), q.dtype


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Spec | None:
    if x.dim() < 2 or weight.dim() != 2 or x.dtype is not weight.dtype or x.shape[-1] != weight.shape[1]:
        return None
    if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype is not x.dtype):
        return None
    shape = (*x.shape[:-1], weight.shape[0])
    return shape, _contiguous(shape), x.dtype


def _grouped_mm(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor | None = None, *options: Any) -> Spec | None:
    """By experts in float32, which torch's meta kernel refuses and its CPU kernel does, into rows of whole 16 bytes."""
    if x.dim() != 2 or w.dim() != 3 or ends is None or any(o is not None for o in options):
        return None
    if not x.dtype is w.dtype is torch.float32 or x.shape[1] != w.shape[1] or ends.shape != w.shape[:1]:
        return None
    if x.stride(1) != 1 or x.stride(0) % 4 or 1 not in w.stride()[1:] or max(w.stride()[1:]) % 4:
        return None
    rows, columns = x.shape[0], w.shape[2]
    return (rows, columns), (-(-columns // 4) * 4, 1), x.dtype


def _cat(tensors: Sequence[torch.Tensor], dim: int = 0) -> Spec | None:
    parts = [t for t in tensors if t.shape != (0,)]
    if not parts:
        return None
    first = parts[0]
    rank = first.dim()
    if not -rank <= dim < rank or any(t.dim() != rank or t.dtype is not first.dtype for t in tensors if t.numel()):
        return None
    if any(t.dtype is not first.dtype for t in tensors) or _is_channels_last(first):
        return None
    dim %= rank
    others = {(*t.shape[:dim], *t.shape[dim + 1 :]) for t in parts}
    if len(others) != 1:
        return None
    shape = (*first.shape[:dim], sum(t.shape[dim] for t in parts), *first.shape[dim + 1 :])
    return shape, _contiguous(shape), first.dtype


def _is_channels_last(tensor: torch.Tensor) -> bool:
    return tensor.dim() in (4, 5) and tensor.stride(1) == 1 and tensor.shape[1] != 1


def _same(x: torch.Tensor, *numbers: Any) -> Spec | None:
    """An operation on a contiguous floating tensor and numbers that keeps its shape and dtype."""
    if not x.is_contiguous() or not x.dtype.is_floating_point:
        return None
    if any(type(n) is not float and type(n) is not int for n in numbers):
        return None
    return tuple(x.shape), _contiguous(x.shape), x.dtype


def _pair(x: Any, y: Any, **options: Any) -> Spec | None:
    """Arithmetic on two contiguous tensors of one shape and dtype, or on such a tensor and a number."""
    if options or not isinstance(x, torch.Tensor):
        return None
    if not isinstance(y, torch.Tensor):
        return _same(x, y)
    if x.shape != y.shape or x.dtype is not y.dtype or not y.is_contiguous():
        return None
    return _same(x)


def _batch_norm(x: torch.Tensor, *parameters: Any) -> list[torch.Tensor]:
    """In evaluation the CPU kernel saves no statistics, torch's meta kernel says that it does."""
    training = parameters[4]
    saved = x.shape[1] if training else 0
    return [torch.empty_like(x), x.new_empty(saved), x.new_empty(saved)]


def _batch_norm_backward(grad: torch.Tensor, x: torch.Tensor, *parameters: Any) -> list[torch.Tensor | None]:
    """The CPU kernel gives only the gradients of its mask, torch's meta kernel gives all."""
    wanted = parameters[-1]
    per_channel = x.shape[1]
    made = (torch.empty_like(x), x.new_empty(per_channel), x.new_empty(per_channel))
    return [gradient if wants else None for gradient, wants in zip(made, wanted, strict=True)]


_aten = torch.ops.aten

META: dict[OpOverload, Callable[..., Any]] = {
    _aten.native_batch_norm.default: _batch_norm,
    _aten._native_batch_norm_legit.default: _batch_norm,
    _aten.native_batch_norm_backward.default: _batch_norm_backward,
}

OWN: dict[OpOverload, Callable[..., Spec | None]] = {
    _aten.scaled_dot_product_attention.default: _attention,
    _aten.linear.default: _linear,
    _aten._grouped_mm.default: _grouped_mm,
    _aten.cat.default: _cat,
    **dict.fromkeys((_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor), _pair),
    **dict.fromkeys(
        (
            _aten.neg.default, _aten.silu.default, _aten.exp.default, _aten.rsqrt.default, _aten.sqrt.default,
            _aten.sigmoid.default, _aten.tanh.default, _aten.relu.default, _aten.cos.default, _aten.sin.default,
            _aten.pow.Tensor_Scalar,
        ),
        _same,
    ),
}  # fmt: skip
