"""`@dsf.intent(kind)`: a user declares what a function means, so that code of any form gets the kernels of that kind.

    @dsf.intent("rms_norm", compute=torch.float32, weight_after_cast=True)
    def norm(x, weight, eps): ...

The function's parameters that are named as attributes of the kind (`eps`) are attributes; the others are the kind's
operands in their order, None for one that is not there. An attribute given to the decorator may be a function of the
operands. On the emulated device a call is one operation that means that intent; elsewhere, and wherever a gradient is
wanted, it is the function itself. Once per shapes, dtypes and attributes both are computed on the CPU and compared.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from attrs import define, field, frozen
from torch.utils._python_dispatch import _get_current_dispatch_mode

from dsf import errors
from dsf.declare.samples import DECLARABLE, samples
from dsf.device import declared as device
from dsf.intent.ir import KINDS, Intent, Kind, attributes
from dsf.intent.meaning import meaning
from dsf.intent.operators import DECLARED
from dsf.intent.spec import check
from dsf.intent.tape import Buffer, Op, Region, Scope, Signature, Slot, Tape, Window

__all__ = ["declared"]

Function = TypeVar("Function", bound=Callable[..., Any])
Attrs = tuple[tuple[str, Any], ...]

UNITS = {torch.float16: 4, torch.bfloat16: 4, torch.float32: 256, torch.float64: 256}
"""By how many units of its last place, relative to the larger of itself and the root mean square of all, a number may
differ: another order of summing, or one rounding more on the way."""


def declared(*given: Any, **attrs: Any) -> Callable[[Function], Function]:
    """The decorator `dsf.intent(kind, **attributes)`. Raises MeaningError for what cannot be declared."""
    if len(given) != 1 or not isinstance(given[0], str):
        raise errors.MeaningError(
            "DSF-T001", 'write @dsf.intent("rms_norm", ...): the kind first, its attributes by name'
        )
    kind = given[0]
    if kind not in DECLARABLE:
        near = difflib.get_close_matches(kind, DECLARABLE, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        what = "is not one that a function can mean" if kind in KINDS else "is unknown"
        raise errors.MeaningError(
            "DSF-T002", f"the kind of intent '{kind}' {what}; {hint}these can be declared: {', '.join(DECLARABLE)}"
        )
    row = KINDS[kind]
    known = {*row.attrs, *dict(row.defaults)}
    for name in attrs:
        if name not in known:
            raise errors.MeaningError(
                "DSF-T003", f"a {kind} has no attribute '{name}'; it has {', '.join(sorted(known))}"
            )

    def decorate(function: Function) -> Function:
        declaration = _Declaration(kind, row, attrs, function)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return declaration(args, kwargs)

        return call  # type: ignore[return-value]  # it takes and gives what *function* does

    return decorate


@frozen(eq=False)
class _Call:
    """One call bound to the kind: its operands that are there, by name, and its attributes in canonical order."""

    operands: dict[str, torch.Tensor]
    attrs: Attrs

    @property
    def key(self) -> Any:
        shapes = tuple((name, tuple(t.shape), t.dtype) for name, t in self.operands.items())
        return shapes, tuple((name, type(value), value) for name, value in self.attrs)


@define(eq=False)
class _Declaration:
    """A function and the kind that it is declared to mean."""

    kind: str
    row: Kind
    given: dict[str, Any]
    function: Callable[..., Any]
    signature: inspect.Signature = field(init=False)
    operands: dict[str, str] = field(init=False)
    _checked: dict[Any, list[torch.Tensor]] = field(factory=dict)

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", repr(self.function))

    def __attrs_post_init__(self) -> None:
        self.signature = inspect.signature(self.function)
        attributes_ = {*self.row.attrs, *dict(self.row.defaults)}
        parameters = [name for name in self.signature.parameters if name not in attributes_]
        wanted = self.row.inputs
        required = [name for name in wanted if not name.endswith("?")]
        if not len(required) <= len(parameters) <= len(wanted):
            raise errors.MeaningError(
                "DSF-T004",
                f"{self.name} has the operands ({', '.join(parameters)}); a {self.kind} has ({', '.join(wanted)}), "
                "in that order, where a ? marks what may be left out",
            )
        self.operands = dict(zip(parameters, (name.removesuffix("?") for name in wanted), strict=False))
        missing = [name for name in self.row.attrs if not self._knows(name)]
        if missing:
            raise errors.MeaningError(
                "DSF-T005",
                f"{self.name}: a {self.kind} has the attribute {missing[0]} too; give it to dsf.intent, as a value or "
                "a function of the operands, or as a parameter of that name",
            )

    def _knows(self, name: str) -> bool:
        optional = name.startswith("has_") and f"{name[4:]}?" in (*self.row.inputs, *self.row.outputs)
        return name in self.given or name in self.signature.parameters or optional

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not any(map(device.is_ours, (*args, *kwargs.values()))) or _looked_into(args, kwargs):
            return self.function(*args, **kwargs)
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        call = self._bind(bound.arguments)
        if any(t.numel() == 0 for t in call.operands.values()):  # no kind means something of nothing
            return self.function(*args, **kwargs)
        results = self._checked.get(call.key)
        if results is None:
            results = self._checked[call.key] = self._check(call, bound.arguments)
        made = device.record(self.kind, call.attrs, tuple(call.operands.values()), results)
        return made[0] if len(made) == 1 else tuple(made)

    def _bind(self, arguments: dict[str, Any]) -> _Call:
        operands = {self.operands[name]: value for name, value in arguments.items() if name in self.operands}
        for name, value in operands.items():
            if not isinstance(value, torch.Tensor) and not (value is None and f"{name}?" in self.row.inputs):
                raise errors.MeaningError(
                    "DSF-T006", f"{self.name}: {name} of a {self.kind} is a tensor; found {type(value).__name__}"
                )
        tensors = {name: value for name, value in operands.items() if value is not None}
        _expand(self.kind, tensors)
        attrs = dict(self.row.defaults)
        for name in (*self.row.attrs, *attrs):
            attrs[name] = self._attribute(name, arguments, tensors)
        return _Call(tensors, attributes(self.kind, **attrs))

    def _attribute(self, name: str, arguments: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Any:
        if name in arguments:
            value = arguments[name]
        elif name in self.given:
            value = self.given[name]
            value = value(*tensors.values()) if callable(value) else value
        elif name.startswith("has_"):
            return name[4:] in tensors
        else:
            return dict(self.row.defaults)[name]
        return tuple(value) if isinstance(value, list | torch.Size) else value

    # the check

    def _check(self, call: _Call, arguments: dict[str, Any]) -> list[torch.Tensor]:
        """What the function gives for random operands on the CPU, if that is what the kind means."""
        operands = samples(self.kind, call.operands, dict(call.attrs))
        given = {name: operands.get(self.operands[name]) if name in self.operands else value
                 for name, value in arguments.items()}  # fmt: skip
        results = self._compute(given, operands)
        intent, tape = _intent(self.kind, call.attrs, tuple(operands.values()), results)
        try:
            check((intent,), tape)
        except errors.KernelError as cause:
            found = cause.sentence.partition("): ")[2] or cause.sentence
            raise errors.MeaningError("DSF-T007", f"{self.name} is no {self.kind}: {found}") from cause
        try:
            wanted = meaning(intent, *operands.values())
        except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError) as cause:
            shapes = ", ".join(f"{name} {tuple(t.shape)}" for name, t in operands.items())
            raise errors.MeaningError(
                "DSF-T007",
                f"{self.name}: no {self.kind} has {shapes} and {_said(call.attrs)} ({type(cause).__name__}: {cause})",
            ) from cause
        for number, (found_, meant) in enumerate(zip(results, wanted, strict=True)):
            self._compare(self.row.outputs[number].removesuffix("?"), found_, meant, call)
        return [torch.empty_like(t, device="meta") for t in results]

    def _compute(self, given: dict[str, Any], operands: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        before = {name: tensor.clone() for name, tensor in operands.items()}
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            try:
                result = self.function(**given)
            except Exception as cause:
                raise errors.MeaningError(
                    "DSF-T008", f"{self.name} is checked on the CPU and fails there ({type(cause).__name__}: {cause})"
                ) from cause
        for name, tensor in operands.items():
            if not torch.equal(tensor.nan_to_num(), before[name].nan_to_num()):
                raise errors.MeaningError(
                    "DSF-T009", f"{self.name} changes its operand {name}; a {self.kind} changes none"
                )
        results = list(result) if isinstance(result, tuple | list) else [result]
        if len(results) != len(self.row.outputs) or not all(isinstance(t, torch.Tensor) for t in results):
            kinds = ", ".join(type(t).__name__ for t in results)
            raise errors.MeaningError(
                "DSF-T007",
                f"{self.name} gives ({kinds}); a {self.kind} gives ({', '.join(self.row.outputs)}), all tensors",
            )
        return results

    def _compare(self, name: str, found: torch.Tensor, meant: torch.Tensor, call: _Call) -> None:
        if found.shape != meant.shape:
            raise errors.MeaningError(
                "DSF-T007", f"{self.name} gives {name} of shape {tuple(found.shape)}; a {self.kind} of these operands "
                f"gives {tuple(meant.shape)}"
            )  # fmt: skip
        wrong, allowed = _excess(found, meant)
        if wrong is None:
            return
        place = tuple(int(i) for i in torch.unravel_index(wrong, found.shape))
        shapes = ", ".join(f"{n} {tuple(t.shape)}" for n, t in call.operands.items())
        raise errors.MeaningError(
            "DSF-T010",
            f"{self.name} does not mean a {self.kind}: for random {shapes} its {name} at {place} is "
            f"{found[place].item():.6g}, a {self.kind} with {_said(call.attrs)} gives {meant[place].item():.6g}, and "
            f"{allowed:.2g} of difference is allowed in {_short(found.dtype)}; a {self.kind} is {self.row.meaning}",
        )


def _looked_into(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Does autograd, autocast, a transform, a mode or a tensor class want to see what happens inside?"""
    if _get_current_dispatch_mode() is not None or torch._C._functorch.maybe_current_level() is not None:
        return True
    if torch.is_autocast_enabled(device.name()):
        return True
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return True
    return any(type(t) not in (torch.Tensor, torch.nn.Parameter) for t in tensors)


def _expand(kind: str, tensors: dict[str, torch.Tensor]) -> None:
    """Operands that the kind wants at their full shape, by stride 0, from those that only broadcast to it."""
    if kind == "rotary" and len(tensors) == 3:
        for name in ("cos", "sin"):
            tensors[name] = tensors[name].expand(tensors["x"].shape)
    if "mask" in tensors and kind in ("attention", "latent_attention"):
        keys = tensors["k" if kind == "attention" else "latent"].shape[-2]
        tensors["mask"] = tensors["mask"].expand(*tensors["q"].shape[:-1], keys)


def _intent(
    kind: str, attrs: Attrs, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> tuple[Intent, Tape]:
    """The intent as it would be parsed, and a tape of its one operation."""
    tensors = (*inputs, *outputs)
    windows = tuple(Window(tuple(t.shape), t.stride(), 0, t.dtype) for t in tensors)
    regions = tuple(Region(number, window) for number, window in enumerate(windows))
    fresh = tuple(range(len(inputs), len(tensors)))
    signature = Signature(0, DECLARED + kind, tuple(map(Slot, range(len(inputs)))), attrs, windows, fresh, fresh)
    buffers = tuple(Buffer(t.numel() * t.itemsize, None, True) for t in tensors)
    tape = Tape((Op(signature, tuple(range(len(tensors))), Scope(), None),), buffers)
    return Intent(kind, regions[: len(inputs)], regions[len(inputs) :], attrs, (0,)), tape


def _excess(found: torch.Tensor, meant: torch.Tensor) -> tuple[torch.Tensor | None, float]:
    """The place where the two differ most beyond what is allowed, flat, and what is allowed there."""
    if found.numel() == 0:
        return None, 0.0
    a, b = found.double(), meant.double()
    if not found.is_floating_point():
        bound = torch.zeros_like(b)
    else:
        scale = torch.maximum(b.abs(), b[b.isfinite()].square().mean().sqrt())
        bound = UNITS.get(found.dtype, 2) * torch.finfo(found.dtype).eps * scale
    same = (a == b) | (a.isnan() & b.isnan())
    beyond = torch.where(same, -torch.inf, ((a - b).abs() - bound).nan_to_num(nan=torch.inf))
    worst = beyond.argmax()
    return (worst, float(bound.flatten()[worst])) if beyond.flatten()[worst] > 0 else (None, 0.0)


def _said(attrs: Attrs) -> str:
    return ", ".join(f"{name}={_short(value)}" for name, value in attrs) or "no attributes"


def _short(value: Any) -> str:
    return str(value).removeprefix("torch.")
