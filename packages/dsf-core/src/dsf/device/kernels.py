"""One kernel for almost every ATen operation: it records, and does nothing else.

An operation whose results cannot be told before it runs, or that draws random numbers, runs on the host instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import _get_current_dispatch_mode

from dsf.device import host, scopes, shapes, transfer
from dsf.device.blocks import Block, new, storage_address, table
from dsf.device.flushing import flush
from dsf.device.tape import lock, recorder

__all__ = ["Call", "attention", "composite", "handed_to_host", "operations", "overload", "recorded", "viewed"]

PLAIN = frozenset({int, bool, str, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout})
Tensor, Parameter = torch.Tensor, torch.nn.Parameter
block_at = table.get
INDEXING = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"})

Key = list[Any]


class Call:
    """One call as the recorder sees it: its *key*, its tensors in order with their blocks, and what was *replaced*."""

    __slots__ = ("blocks", "indexing", "key", "replaced", "tensors")

    def __init__(self, indexing: bool) -> None:
        self.indexing = indexing
        self.key: Key = []
        self.tensors: list[torch.Tensor] = []
        self.blocks: list[Block] = []
        self.replaced: dict[int, Any] = {}

    def describe(self, values: Any) -> None:
        """Append to the key everything that the operation's signature depends on."""
        key = self.key
        for value in values:
            kind = value.__class__
            if kind is Tensor or kind is Parameter:
                block = block_at(storage_address(value))
                if block is None or value.is_conj() or value.is_neg():
                    self.foreign(value)
                    continue
                self.tensors.append(value)
                self.blocks.append(block)
                key.append((value.shape, value.stride(), value.storage_offset(), value.dtype))
            elif kind in PLAIN:
                key.append(kind)
                key.append(value)
            elif kind is float:
                key.append(kind)
                key.append(value if value and value == value else repr(value))
            elif kind is list or kind is tuple:
                key.append(len(value))
                self.describe(value)
            elif isinstance(value, Tensor):
                self.describe((value.as_subclass(Tensor),))
            else:
                key.append(kind)
                key.append(repr(value))

    def foreign(self, value: torch.Tensor) -> None:
        """An argument without a block: a number in disguise, a small CPU tensor, or a mistake."""
        stand_in = transfer.adopt(value, self.indexing)
        self.replaced[id(value)] = stand_in
        self.describe((stand_in,))

    def normal(self, value: Any) -> Any:
        """*value* with what stands for foreign tensors in their place."""
        if not self.replaced:
            return value
        return shapes.substitute(value, lambda t: self.replaced.get(id(t), t))


def recorded(op: OpOverload) -> Callable[..., Any]:
    """The kernel that records *op*."""
    plans: dict[tuple[Any, ...], shapes.Plan | None] = {}
    indexing = op._schema.name[6:] in INDEXING
    here, log_site = scopes.here, scopes.site

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with lock:
            call = Call(indexing)
            call.describe(args)
            if kwargs:
                for name, value in kwargs.items():
                    call.key.append(name)
                    call.describe((value,))
            key = tuple(call.key)
            plan = plans[key] if key in plans else _planned(op, call, args, kwargs, plans, key)
            if plan is None or recorder.session is None or len(recorder.log) >= recorder.cap:
                if plan is None:
                    return host.run(op, call.normal(args), call.normal(kwargs))
                recorder.needs()
                flush()
            epoch, touched = recorder.epoch, call.blocks
            for number in plan.mutated:
                touched[number].written = epoch
            if plan.simple:
                result, block = new(plan.fresh[0], epoch)
                touched.append(block)
            else:
                result = _results(plan, call)
            recorder.log.append((plan.signature, touched, here.scope, log_site()))
            return result

    return kernel


def _results(plan: shapes.Plan, call: Call) -> Any:
    """What the kernel answers where it is more than one new tensor."""
    made = [new(layout, recorder.epoch) for layout in plan.fresh]
    call.blocks.extend(block for _, block in made)
    return shapes.answer(plan.returns, [tensor for tensor, _ in made], call.tensors)


def _planned(
    op: OpOverload, call: Call, args: Any, kwargs: Any, plans: dict[Any, Any], key: tuple[Any, ...]
) -> shapes.Plan | None:
    """The plan of a call that is new; kept unless an `out=` argument had to be resized for it."""
    args, kwargs = call.normal(args), call.normal(kwargs)
    recorder.needs()
    transfer.index_of(kwargs.get("device"))
    try:
        plans[key] = shapes.plan(op, args, kwargs, call.tensors)
    except shapes.Resize as wanted:
        transfer.resize(wanted.argument, wanted.shape)
        call.blocks[:] = [table[storage_address(t)] for t in call.tensors]
        return _planned(op, call, args, kwargs, {}, key)
    return plans[key]


def composite(op: OpOverload, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """*kernel* for a composite *op* above autograd: whole where nobody looks inside, else decomposed."""

    def above_autograd(*args: Any, **kwargs: Any) -> Any:
        graded = torch.is_grad_enabled()
        seen = _get_current_dispatch_mode() is not None
        if seen or any(_is_looked_into(a, graded) for a in (*args, *kwargs.values())):
            return op.decompose(*args, **kwargs)
        return kernel(*args, **kwargs)

    return above_autograd


def _is_looked_into(value: Any, graded: bool) -> bool:
    """Whether *value* is a tensor that autograd follows or whose class sees every operation."""
    kind = value.__class__
    if kind is Tensor or kind is Parameter:
        return graded and bool(value.requires_grad)
    return isinstance(value, Tensor)


def attention(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """*kernel* of scaled_dot_product_attention, unless it must draw random numbers."""
    op = torch.ops.aten.scaled_dot_product_attention.default

    def without_dropout(*args: Any, **kwargs: Any) -> Any:
        drops = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
        return op.decompose(*args, **kwargs) if drops else kernel(*args, **kwargs)

    return without_dropout


def handed_to_host(op: OpOverload) -> Callable[..., Any]:
    """The kernel of an operation that always runs on the host."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with lock:
            call = Call(indexing=False)
            call.describe(args)
            call.describe(kwargs.values())
            return host.run(op, call.normal(args), call.normal(kwargs))

    return kernel


# ---------------------------------------------------------------------------------------------- which operation how

COMPOSITES = (
    "linear", "matmul", "scaled_dot_product_attention", "softmax.int", "log_softmax.int", "layer_norm", "rms_norm",
)  # fmt: skip

# Left to torch's own kernels: views that become `as_strided`, and what only looks at metadata.
NATIVE = frozenset({
    "_unsafe_view", "unsafe_split.Tensor", "unsafe_split_with_sizes", "is_same_size", "_has_same_storage_numel",
    "is_coalesced", "dense_dim", "sparse_dim", "_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range",
    "sym_constrain_range_for_size", "_print", "empty_like", "new_empty", "new_empty_strided", "allclose", "lift",
    "_resize_output_", "_resize_output",
})  # fmt: skip


# Torch's meta kernels promise other shapes for these than its CPU kernels give.
HOSTED = frozenset({torch.ops.aten._embedding_bag.default, torch.ops.aten._embedding_bag_forward_only.default})


def operations() -> Iterator[tuple[str, OpOverload, str]]:
    """Every ATen operation that needs a kernel of ours: name, overload and `record`, `view` or `host`."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for qualified in torch._C._dispatch_get_all_op_names():
        if not qualified.startswith("aten::") or has(qualified, "CompositeImplicitAutograd"):
            continue
        name = qualified[6:]
        explicit = has(qualified, "CompositeExplicitAutograd")
        structured = has(qualified, "CompositeExplicitAutogradNonFunctional")
        if not (has(qualified, "CPU") or explicit or structured) or name in NATIVE:
            continue
        if name.startswith("_foreach_") and explicit:  # decomposes into one operation per tensor
            continue
        op = overload(name)
        kind = _kind(op, explicit)
        if kind:
            yield name, op, kind


def overload(name: str) -> OpOverload:
    packet, _, which = name.partition(".")
    found: OpOverload = getattr(getattr(torch.ops.aten, packet), which or "default")
    return found


def _kind(op: OpOverload, explicit: bool) -> str:
    """How *op* is handled; nothing if torch's composite kernel already makes a view of it."""
    view = any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns)
    if view or torch.Tag.inplace_view in op.tags:
        return "" if explicit else "view"
    return "host" if torch.Tag.nondeterministic_seeded in op.tags or op in HOSTED else "record"


def viewed(op: OpOverload) -> Callable[..., Any]:
    """The kernel of a view: torch's CPU kernel, which looks at sizes and strides only."""
    cpu = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    redispatch = op._handle.redispatch_boxed

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return redispatch(cpu, *args, **kwargs)

    return kernel
