"""FIX: takes results out of L0C, to main memory or L1, and into another format on the way. [asc-devkit: Fixpipe]

One row for each QuantMode, under the vendor's name; a V before it means a scale for each column, from FB. A scale keeps
the upper 19 bits of its float32 (1 + 8 + 10), as the deqScalar register does. A tile in L1 or L0C is in main memory's
order (tagged, not permuted), so what leaves is ND; `Fixpipe.NZ` leaves it in fractals.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

import torch

from dsf.hdl import Chip
from dsf.isa import Isa, accumulate, laws, read, write
from dsf.isa.families import add_copies, in_place
from dsf.isa.program import Instruction
from dsf.isa.rules import one_shape
from dsf.isa.table import Row, Rule
from dsf.numerics.quantise import quantise
from dsf.numerics.rounding import Rounding
from dsf_ascend.isa.fractals import columns_in_fractals, to_fractals

__all__ = ["declare"]

FIXPIPE = "asc-devkit guide, Fixpipe and QuantMode_t; ini AICoreMemoryRates L0C to UB 256 B a cycle"
WAYS = {("float32", "float16"), ("float32", "bfloat16"), ("float32", "float32"), ("int32", "int32")}
INTO_L1 = {("float32", "float16"), ("float32", "bfloat16")}
QUANTISED = Rounding("nearest-even", saturate=True)

QUANTS = {
    "QF322B8_PRE": ("float32", ("int8", "uint8"), True, "quantised: times a scale, plus an offset, to 8 bits"),
    "REQ8": ("int32", ("int8", "uint8"), True, "requantised: times a scale, plus an offset, to 8 bits"),
    "DEQF16": ("int32", ("float16",), False, "dequantised: times a scale, to float16, which saturates"),
}


def declare(isa: Isa) -> None:
    """Add the plain forms (NoQuant, F322F16, F322BF16), the quantising ones, and the load of their scales."""
    add_copies(isa, "FIX", "L1", "FB", "DataCopy.L12FB", "load.scale", FIXPIPE, [scales_are_float32])
    _add(isa, "Fixpipe", _store, ("float16", "bfloat16", "float32", "int32"), ("float32", "int32"),
         "dst = src in L0C (max(src, 0) where relu), rounded to nearest even in dst's dtype", "store.matrix",
         (one_shape, the_way_exists), None)  # fmt: skip
    _add(isa, "Fixpipe.NZ", _store_in_fractals, ("float16", "bfloat16", "float32", "int32"), ("float32", "int32"),
         "dst (columns / C0, rows, C0) in main memory = src (rows, columns), C0 of 32 B; max(src, 0) where relu",
         "store.matrix.nz", (columns_in_fractals(0, 1), the_way_exists), None, ("GM",))  # fmt: skip
    _add_atomic(isa)
    for name, (source, targets, offset, text) in QUANTS.items():
        one, each = (_scaled, _scaled_each) if offset else (_dequantised, _dequantised_each)
        what = name.removesuffix("_PRE").lower()
        _add(isa, f"Fixpipe.{name}", one, targets, (source,), f"dst = src in L0C {text}",
             f"store.matrix.{what}", (one_shape, scale_fits), QUANTISED)  # fmt: skip
        _add(isa, f"Fixpipe.V{name}", each, targets, (source,), f"dst = src in L0C {text}; a scale for each column",
             f"store.matrix.v{what}", (one_scale_a_column,), QUANTISED, scales=True)  # fmt: skip


def _add(
    isa: Isa, name: str, semantics: Callable[..., torch.Tensor], targets: tuple[str, ...], sources: tuple[str, ...],
    text: str, implements: str, rules: tuple[Rule, ...], rounding: Rounding | None,
    spaces: tuple[str, ...] = ("GM", "L1"), scales: bool = False,
) -> None:  # fmt: skip
    roles = [("dst", write(*spaces, dtypes=targets)), ("src", read("L0C", dtypes=sources))]
    if scales:
        roles.append(("scale", read("FB", dtypes=("float32",))))
    form = in_place(semantics, rounding)
    isa.add(
        Row(name, "FIX", leaving, tuple(roles), semantics, text, form, rules, implements, None, None, FIXPIPE,
            "fixpipe", form, rounding)
    )  # fmt: skip


def _add_atomic(isa: Isa) -> None:
    """SetAtomicAdd: results are added to what main memory holds, as products that are split along k need it."""
    floats = ("float16", "bfloat16", "float32", "int32")
    roles = (("dst", accumulate("GM", dtypes=floats)), ("src", read("L0C", dtypes=("float32", "int32"))))
    form = in_place(_added)
    isa.add(
        Row("Fixpipe.AtomicAdd", "FIX", leaving, roles, _added, "dst in GM = dst + src, src in dst's dtype", form,
            (one_shape, the_way_exists), "store.matrix.atomic.add", None, None, f"{FIXPIPE}; SetAtomicAdd", "fixpipe",
             form)
    )  # fmt: skip


def leaving(chip: Chip, row: Row, ins: Instruction) -> int:
    """As a copy, and no faster than the engine takes numbers out of L0C: what is narrow on arrival gains nothing."""
    dst, src = ins.operands[:2]
    taken = ceil(src.numel / laws.rate(chip.engines[row.engine], row.opclass, src.dtype))
    return max(laws.stream(chip, row, ins), chip.paths[src.space, dst.space].startup_cycles + taken)


def _added(dst: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    return dst + src.to(dst.dtype)


def _positive(x: torch.Tensor, relu: int) -> torch.Tensor:
    return torch.where(x < 0, 0, x) if relu else x


def _store(dst: torch.Tensor, src: torch.Tensor, relu: int = 0) -> torch.Tensor:
    return _positive(src, relu)


def _store_in_fractals(dst: torch.Tensor, src: torch.Tensor, relu: int = 0) -> torch.Tensor:
    return to_fractals(_positive(src, relu), dst.shape[-1])


def kept(scale: torch.Tensor) -> torch.Tensor:
    """The 19 bits of a scale that the unit keeps."""
    return quantise(scale, "tf32", "toward-zero").double()


def _scaled(dst: torch.Tensor, src: torch.Tensor, scale: float, offset: int = 0, relu: int = 0) -> torch.Tensor:
    return _positive(src, relu).double() * kept(torch.tensor(scale, dtype=torch.float64)) + offset


def _scaled_each(
    dst: torch.Tensor, src: torch.Tensor, scale: torch.Tensor, offset: int = 0, relu: int = 0
) -> torch.Tensor:
    return _positive(src, relu).double() * kept(scale).unsqueeze(-2) + offset


def _dequantised(dst: torch.Tensor, src: torch.Tensor, scale: float, relu: int = 0) -> torch.Tensor:
    return _scaled(dst, src, scale, 0, relu)


def _dequantised_each(dst: torch.Tensor, src: torch.Tensor, scale: torch.Tensor, relu: int = 0) -> torch.Tensor:
    return _scaled_each(dst, src, scale, 0, relu)


def the_way_exists(chip: Chip, ins: Instruction) -> str | None:
    """Fixpipe rounds float32 to the 16-bit floats and lets the rest be; L1 takes 16 bits only. No int32 to bfloat16."""
    dst, src = ins.operands
    ways = INTO_L1 if dst.space == "L1" else WAYS
    if (src.dtype, dst.dtype) in ways:
        return None
    known = ", ".join(f"{a} to {b}" for a, b in sorted(ways))
    return f"no way from {src.dtype} to {dst.dtype} in {dst.space}; there is {known}"


def scale_fits(chip: Chip, ins: Instruction) -> str | None:
    """The scale is one number above zero."""
    scale = dict(ins.scalars).get("scale")
    return None if isinstance(scale, float) and scale > 0 else f"scale={scale}; expected a number above zero"


def one_scale_a_column(chip: Chip, ins: Instruction) -> str | None:
    """dst and src (m, n), scale (n)."""
    dst, src, scale = (o.shape for o in ins.operands)
    return None if dst == src and scale == src[-1:] else f"no scales {scale} of {src} to {dst}; one for each column"


def scales_are_float32(chip: Chip, ins: Instruction) -> str | None:
    """What FB holds of a scale is a float32."""
    dtype = ins.operands[0].dtype
    return None if dtype == "float32" else f"FB holds scales in float32, not {dtype}"
