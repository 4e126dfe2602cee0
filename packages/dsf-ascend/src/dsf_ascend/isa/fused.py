"""V: instructions that do two things in one pass, with a number of their own, or that round in a way of their own.
[asc-devkit: vector API, composite computation and type conversion]

Where the vendor does not say whether the inner result is rounded, it is rounded as the operands' format; the Fused ones
round once. `exact` rounds once in all of them, as it does everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch

from dsf.hdl import Chip
from dsf.isa import Isa, accumulate, laws, read, write
from dsf.isa.families import in_place
from dsf.isa.program import Instruction
from dsf.isa.rules import one_dtype, one_shape, scalars_fit
from dsf.isa.table import Role, Row, Rule
from dsf.numerics.rounding import Rounding, rounded

__all__ = ["declare"]

SOURCE = "asc-devkit guide, vector instruction throughput and composite computation"
CAST = "asc-devkit guide, Cast: RoundMode"
FLOATS = ("float16", "float32")
Semantics = Callable[..., torch.Tensor]


def declare(isa: Isa, rules: Iterable[Rule]) -> None:
    """Add activations, multiply-adds, their forms that convert, selection by a number, and Cast in every RoundMode."""
    each = tuple(rules)
    unary = {"dst": write, "a": read}
    binary = {"dst": write, "a": read, "b": read}
    add = partial(_add, isa, each)
    add("Relu", _relu, unary, (*FLOATS, "int32"), "relu", "add", "dst = max(a, 0)")
    add("LeakyRelu", _leaky, unary, FLOATS, "leaky_relu", "add", "dst = a where a >= 0, else a * value", fits=True)
    add("AddRelu", _add_relu, binary, (*FLOATS, "int16"), "add_relu", "add", "dst = max(a + b, 0)")
    add("SubRelu", _sub_relu, binary, (*FLOATS, "int16"), "sub_relu", "add", "dst = max(a - b, 0)")
    add("Axpy", _axpy, {"dst": accumulate, "a": read}, FLOATS, "axpy", "muladd", "dst = dst + a * value", fits=True)
    onto = {"dst": accumulate, "a": read, "b": read}
    add("MulAddDst", _mul_add_dst, onto, (*FLOATS, "int16", "int32"), "muladd.dst", "muladd", "dst = dst + a * b")
    add("FusedMulAdd", _fused, onto, FLOATS, "muladd", "fused_muladd", "dst = dst * a + b, rounded once")
    add("FusedMulAddRelu", _fused_relu, onto, FLOATS, "muladd.relu", "fused_muladd",
        "dst = max(dst * a + b, 0), rounded once")  # fmt: skip
    _add_selects(isa, each)
    _add_converting(isa, each)
    _add_casts(isa, each)


def _add(
    isa: Isa, rules: tuple[Rule, ...], name: str, semantics: Semantics, operands: Mapping[str, Callable[..., Role]],
    dtypes: tuple[str, ...], implements: str, opclass: str, text: str, fits: bool = False,
) -> None:  # fmt: skip
    """One row on UB whose operands share a shape and a dtype; *fits*: its number is one of that dtype."""
    roles = tuple((key, role("UB", dtypes=dtypes)) for key, role in operands.items())
    own = (scalars_fit,) if fits else ()
    form = in_place(semantics)
    isa.add(
        Row(name, "V", laws.elementwise, roles, semantics, text, form,
            (one_shape, one_dtype(*range(len(roles))), *own, *rules), implements, None, None, SOURCE, opclass, form)
    )  # fmt: skip


def _relu(dst: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    return torch.where(a < 0, 0, a)


def _leaky(dst: torch.Tensor, a: torch.Tensor, value: float) -> torch.Tensor:
    return torch.where(a >= 0, a, a * value)


def _add_relu(dst: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return _relu(dst, a + b)


def _sub_relu(dst: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return _relu(dst, a - b)


def _axpy(dst: torch.Tensor, a: torch.Tensor, value: float) -> torch.Tensor:
    return dst + a * value


def _mul_add_dst(dst: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return dst + a * b


def _fused(dst: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return rounded(dst.double() * a.double() + b.double(), dst.dtype)


def _fused_relu(dst: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return _relu(dst, _fused(dst, a, b))


def _add_selects(isa: Isa, rules: tuple[Rule, ...]) -> None:
    numbers = (*FLOATS, "int32", "int16")
    roles = (("dst", write("UB", dtypes=numbers)), ("mask", read("UB", dtypes=("bool",))),
             ("a", read("UB", dtypes=numbers)))  # fmt: skip
    form = in_place(_select)
    isa.add(
        Row("Select.TensorScalar", "V", laws.elementwise, roles, _select, "dst = a where mask, else value", form,
            (one_shape, one_dtype(0, 2), scalars_fit, *rules), "where.scalar", None, None, SOURCE, "select", form)
    )  # fmt: skip


def _select(dst: torch.Tensor, mask: torch.Tensor, a: torch.Tensor, value: float) -> torch.Tensor:
    return torch.where(mask, a, torch.tensor(value, dtype=dst.dtype))


NEAREST_SATURATED = Rounding("nearest-even", saturate=True)


def _add_converting(isa: Isa, rules: tuple[Rule, ...]) -> None:
    """Arithmetic in the sources' format, the result converted and saturated in the same pass."""
    narrower = {("float32", "float16"), ("float16", "int8"), ("int16", "int8")}
    for name, semantics, text in (("AddReluCast", _add_relu, "a + b"), ("SubReluCast", _sub_relu, "a - b")):
        _add_cast(isa, rules, name, semantics, 2, narrower, f"dst = max({text}, 0) in dst's dtype, saturated", "add")
    _add_cast(isa, rules, "MulCast", _mul, 2, {("float16", "int8"), ("float16", "uint8")},
              "dst = a * b in dst's dtype, saturated", "mul")  # fmt: skip
    _add_cast(isa, rules, "AddDeqRelu", _add_deq_relu, 2, {("int32", "float16")},
              "dst = max((a + b) * scale, 0) in float16", "add")  # fmt: skip
    _add_cast(isa, rules, "CastDeq", _cast_deq, 1, {("int16", "int8"), ("int16", "uint8")},
              "dst = a * scale + offset in 8 bits, saturated", "cast")  # fmt: skip


def _mul(dst: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a * b


def _add_deq_relu(dst: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scale: float) -> torch.Tensor:
    return _relu(dst, (a.double() + b.double()) * scale)


def _cast_deq(dst: torch.Tensor, a: torch.Tensor, scale: float, offset: int) -> torch.Tensor:
    return a.double() * scale + offset


def _add_cast(
    isa: Isa, rules: tuple[Rule, ...], name: str, semantics: Semantics, sources: int, pairs: set[tuple[str, str]],
    text: str, opclass: str, rounding: Rounding = NEAREST_SATURATED, source: str = SOURCE,
) -> None:  # fmt: skip
    """One row that converts: *pairs* of (source, target) dtypes exist."""
    taken, made = (tuple(dict.fromkeys(pair[side] for pair in sorted(pairs))) for side in (0, 1))
    roles = [("dst", write("UB", dtypes=made))] + [(key, read("UB", dtypes=taken)) for key in "ab"[:sources]]
    form = in_place(semantics, rounding)
    isa.add(
        Row(name, "V", laws.elementwise, tuple(roles), semantics, text, form,
            (one_shape, one_dtype(*range(1, 1 + sources)), converts(pairs), *rules), f"convert.{name.lower()}",
            None, None, source, opclass, form, rounding)
    )  # fmt: skip


def converts(pairs: set[tuple[str, str]]) -> Rule:
    """The instruction converts from the one dtype of each pair to the other."""

    def rule(chip: Chip, ins: Instruction) -> str | None:
        found = ins.operands[1].dtype, ins.operands[0].dtype
        known = ", ".join(f"{a} to {b}" for a, b in sorted(pairs))
        return None if found in pairs else f"no conversion from {found[0]} to {found[1]}; there is {known}"

    return rule


ROUND_MODES = {
    "RINT": ("nearest-even", "to the nearest, halves to even"),
    "FLOOR": ("toward-negative", "down"),
    "CEIL": ("toward-positive", "up"),
    "ROUND": ("nearest-away", "to the nearest, halves away from zero"),
    "TRUNC": ("toward-zero", "toward zero"),
    "ODD": ("odd", "to the odd neighbour"),
}
SHORTENED = {
    ("float16", "int32"), ("float16", "int16"), ("float16", "int8"), ("float16", "uint8"), ("float32", "float16"),
    ("float32", "bfloat16"), ("float32", "int64"), ("float32", "int32"), ("float32", "int16"), ("bfloat16", "int32"),
    ("int16", "float16"), ("int32", "float32"), ("int64", "float32"),
}  # fmt: skip
"""What A2 and A3 convert with loss, (source, target)."""


def _add_casts(isa: Isa, rules: tuple[Rule, ...]) -> None:
    for mode, (word, text) in ROUND_MODES.items():
        pairs = {("float32", "float16")} if mode == "ODD" else SHORTENED
        _add_cast(isa, rules, f"Cast.{mode}", _as_it_is, 1, pairs, f"dst = a in dst's dtype, rounded {text}, saturated",
                  "cast", Rounding(word, saturate=True), CAST)  # fmt: skip


def _as_it_is(dst: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    return a
