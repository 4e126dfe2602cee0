"""What the HDL says of a number's rounding, overflow and subnormals acts in every instruction that computes, in both
planes and in both modes, and moves that convert nothing move bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dsf.isa import Builder, Program
from dsf.machine.arena import Arena
from dsf.machine.functional import Functional
from dsf.machine.oracle import Oracle
from dsf.numerics import quantise

RULE = "/numerics/dtypes/float16"
VALUES = [1.0, 1 + 2**-11, 1 + 3 * 2**-11, -1 - 2**-11, 65504.0, 65519.0, 65520.0, -1e6, 2.0**-15, 2.0**-24, 2.0**-25,
          -(2.0**-14), 0.1, 1000.3]  # fmt: skip


def cast(b: Builder) -> Program:
    """y (float16) = x (float32), by the vector engine."""
    b.param("x", "in", 64)
    b.param("y", "out", 64)
    with b.phase("core"), b.nest(i=1):
        wide, narrow = b.on("sram", 0, (len(VALUES),), "float32"), b.on("sram", 64, (len(VALUES),), "float16")
        b("copy.hbm.sram", wide, b.gm(0, 0, (len(VALUES),), "float32"))
        b("v.cast", narrow, wide)
        b("copy.sram.hbm", b.gm(1, 0, (len(VALUES),), "float16"), narrow)
    return b.build()


def run(planes: Any, program: Program, data: torch.Tensor, count: int, dtype: torch.dtype, exact: bool) -> torch.Tensor:
    """The first *count* numbers of the second parameter; the oracle must leave the same bytes."""
    arena = Arena(1 << 16)
    arena.bytes[: data.nbytes] = data.view(torch.uint8)
    memory = arena.bytes.clone()
    machine = Functional(planes.chip, planes.isa, arena, exact)
    machine.bind(machine.unroll(program), [0, 4096]).run()
    Oracle(planes.chip, planes.isa, memory, exact).run(program, [0, 4096])
    assert torch.equal(arena.bytes, memory)
    return arena.window(4096, (count,), (1,), dtype).clone()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    ("rounding", "overflow", "subnormals"),
    [
        ("nearest-even", "infinity", "keep"), ("nearest-away", "infinity", "keep"), ("toward-zero", "infinity", "keep"),
        ("toward-positive", "infinity", "keep"), ("toward-negative", "saturate", "keep"), ("odd", "infinity", "keep"),
        ("nearest-even", "saturate", "keep"), ("nearest-even", "infinity", "flush"),
        ("toward-zero", "saturate", "flush"),
    ],
)  # fmt: skip
def test_a_result_is_rounded_as_the_description_says(
    planes_of: Callable[..., Any], rounding: str, overflow: str, subnormals: str, exact: bool
) -> None:
    changes = {f"{RULE}/rounding": rounding, f"{RULE}/overflow": overflow, f"{RULE}/subnormals": subnormals}
    planes, data = planes_of(changes), torch.tensor(VALUES)
    made = run(planes, cast(planes.builder()), data, len(VALUES), torch.float16, exact)
    wanted = quantise(data, "float16", rounding, overflow == "saturate", subnormals)
    assert torch.equal(made.view(torch.int16), wanted.view(torch.int16))


def test_sums_are_rounded_as_the_description_says(planes_of: Callable[..., Any]) -> None:
    """1 + 2^-11 + 2^-12 toward zero is 1, in fast mode too: such a chip has no short cut."""
    planes = planes_of({f"{RULE}/rounding": "toward-zero"})
    b = planes.builder()
    b.param("x", "in", 64)
    b.param("y", "out", 64)
    with b.phase("core"), b.nest(i=3) as (i,):
        row, total = b.on("sram", 0, (1, 3), "float16"), b.on("sram", 64, (1, 1), "float16")
        b("copy.hbm.sram", row, b.gm(0, 0, (1, 3), "float16"))
        b("v.reduce.sum", total, row)
        b("copy.sram.hbm", b.gm(1, i * 2, (1, 1), "float16"), total)
    data = torch.tensor([1.0, 2**-11, 2**-12], dtype=torch.float16)
    for exact in (False, True):
        assert run(planes, b.build(), data, 3, torch.float16, exact).tolist() == [1.0, 1.0, 1.0]


def test_a_copy_that_converts_nothing_keeps_subnormals(planes_of: Callable[..., Any]) -> None:
    planes = planes_of({f"{RULE}/subnormals": "flush"})
    b = planes.builder()
    b.param("x", "in", 64)
    b.param("y", "out", 64)
    with b.phase("core"), b.nest(i=1):
        tile = b.on("sram", 0, (2,), "float16")
        b("copy.hbm.sram", tile, b.gm(0, 0, (2,), "float16"))
        b("copy.sram.hbm", b.gm(1, 0, (2,), "float16"), tile)
        b("v.add", tile, tile, tile)
        b("copy.sram.hbm", b.gm(1, 8, (2,), "float16"), tile)
    data = torch.tensor([2.0**-20, 1.0], dtype=torch.float16)
    made = run(planes, b.build(), data, 6, torch.float16, False)
    assert made[:2].tolist() == [2.0**-20, 1.0]
    assert made[4:].tolist() == [0.0, 2.0]


def test_results_leave_an_accumulator_rounded(planes_of: Callable[..., Any]) -> None:
    """A copy that converts rounds as well: float32 to bfloat16, up."""
    planes = planes_of({"/numerics/dtypes/bfloat16/rounding": "toward-positive"})
    b = planes.builder()
    b.param("x", "in", 64)
    b.param("y", "out", 64)
    with b.phase("core"), b.nest(i=1):
        acc = b.on("acc", 0, (1, 2), "float32")
        b("copy.hbm.acc", acc, b.gm(0, 0, (1, 2), "float32"))
        b("copy.acc.hbm", b.gm(1, 0, (1, 2), "bfloat16"), acc)
    made = run(planes, b.build(), torch.tensor([1 + 2**-20, -1 - 2**-20]), 2, torch.bfloat16, False)
    assert made.tolist() == [1 + 2**-7, -1.0]


@pytest.mark.parametrize(("overflow", "wanted"), [(None, "448"), ("saturate", "448"), ("infinity", "nan")])
def test_a_format_without_infinities_saturates_unless_told_otherwise(
    planes_of: Callable[..., Any], overflow: str | None, wanted: str
) -> None:
    changes = native("float8_e4m3fn")
    rule = changes["/numerics/dtypes/float8_e4m3fn"]
    assert isinstance(rule, dict)
    if overflow:
        rule["overflow"] = overflow
    planes = planes_of(changes)
    b = planes.builder()
    b.param("x", "in", 64)
    b.param("y", "out", 64)
    with b.phase("core"), b.nest(i=1):
        acc = b.on("acc", 0, (1, 3), "float32")
        b("copy.hbm.acc", acc, b.gm(0, 0, (1, 3), "float32"))
        b("copy.acc.hbm", b.gm(1, 0, (1, 3), "float8_e4m3fn"), acc)
    for exact in (False, True):
        made = run(planes, b.build(), torch.tensor([464.0, 470.0, -1e9]), 3, torch.float8_e4m3fn, exact)
        assert made.double().tolist()[0] == 448.0
        assert [str(abs(v)).removesuffix(".0") for v in made.double().tolist()[1:]] == [wanted] * 2


# -- what a matrix engine multiplies ----------------------------------------------------------------------------------

FORMATS = {
    "float8_e4m3fn": ("matmul", "float8_e4m3fn", "float32"), "float8_e5m2": ("matmul", "float8_e5m2", "float32"),
    "tf32": ("matmul.tf32", "float32", "float32"), "hf32": ("matmul.hf32", "float32", "float32"),
    "int8": ("matmul.int32", "int8", "int32"), "int4": ("matmul.int4", "int8", "int32"),
}  # fmt: skip


def native(*formats: str) -> dict[str, object]:
    """The invented chip with a matrix engine for these formats."""
    rule = {"matrix": "native", "vector": "host", "origin": "estimate", "source": "acme"}
    whole = {name: {**rule, "accumulate": "int32" if name.startswith("int") else "float32"} for name in formats}
    rates = {"bfloat16": 2048, "float16": 2048, "float32": 512, "int8": 4096, **dict.fromkeys(formats, 4096)}
    tiles = {"float32": [16, 8, 16], "int8": [16, 32, 16], "default": [16, 16, 16]}
    return {
        **{f"/numerics/dtypes/{name}": rule for name, rule in whole.items()},
        "/engines/mxu/rates/mac/value": rates, "/engines/mxu/tiles/value": tiles,
    }  # fmt: skip


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("form", FORMATS)
def test_the_generic_product_takes_every_native_format(planes_of: Callable[..., Any], form: str, exact: bool) -> None:
    """Against the product of the quantised operands in float64 (int8 and int4: exactly, tiles beyond one slab)."""
    name, stored, acc = FORMATS[form]
    planes, k = planes_of(native(*(f for f in FORMATS))), 1500 if acc == "int32" else 8
    torch.manual_seed(0)
    low, high = {"int8": (-128, 128), "int4": (-8, 8)}.get(form, (0, 1))
    dtype = getattr(torch, stored)
    draw = (
        (lambda: torch.randint(low, high, (k,)))
        if acc == "int32"
        else (lambda: quantise(torch.randn(k), stored).float())
    )
    x, w = draw().to(dtype), draw().to(dtype)
    b, item = planes.builder(), dtype.itemsize
    b.param("x", "in", 2 * k * item)
    b.param("y", "out", 4)
    with b.phase("core"), b.nest(i=1):
        left, right = b.on("sram", 0, (1, k), stored), b.on("sram", 8192, (k, 1), stored)
        c = b.on("acc", 0, (1, 1), acc)
        b("copy.hbm.sram", left, b.gm(0, 0, (1, k), stored))
        b("copy.hbm.sram", right, b.gm(0, k * item, (k, 1), stored))
        b(name, c, left, right, accumulate=0)
        b("copy.acc.hbm", b.gm(1, 0, (1, 1), acc), c)
    made = run(planes, b.build(), torch.cat([x, w]), 1, getattr(torch, acc), exact)
    a, d = (quantise(t.float(), form).double() if acc == "float32" else t.double() for t in (x, w))
    wanted = (a * d).sum()
    if acc == "int32":
        assert made.item() == int(wanted)
    else:
        bound = k * 2.0**-24 * (a * d).abs().sum() if not exact else 2.0**-24 * wanted.abs()
        assert abs(made.double().item() - wanted) <= bound


def test_the_accumulator_is_as_wide_as_the_description_says(planes_of: Callable[..., Any]) -> None:
    """2048 + 1 in float16 is 2048."""
    planes = planes_of({f"{RULE}/accumulate": "float16"})
    assert planes.isa["matmul.float16"].operands[0][1].dtypes == ("float16",)
    b = planes.builder()
    b.param("x", "in", 8)
    b.param("y", "out", 2)
    with b.phase("core"), b.nest(i=1):
        x, one, c = (
            b.on("sram", 0, (1, 2), "float16"), b.on("sram", 64, (2, 1), "float16"), b.on("acc", 0, (1, 1), "float16")
        )  # fmt: skip
        b("copy.hbm.sram", x, b.gm(0, 0, (1, 2), "float16"))
        b("v.fill", one, value=1)
        b("matmul.float16", c, x, one, accumulate=0)
        b("copy.acc.hbm", b.gm(1, 0, (1, 1), "float16"), c)
    made = run(planes, b.build(), torch.tensor([2048.0, 1.0], dtype=torch.float16), 1, torch.float16, True)
    assert made.item() == 2048.0
