"""Strict layouts: tiles in the cube's own fractal orders give what tagged tiles give, and lie where the chip has it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from attrs import evolve

from dsf import errors, hdl
from dsf.isa import Builder
from dsf.kernels.kernel import Kernel
from dsf.kernels.target import Target
from dsf.machine.arena import Arena
from dsf.machine.functional import Functional
from dsf.machine.ordering import check
from dsf_ascend.isa import ISA
from dsf_ascend.kernels.matmul import KERNELS as PRODUCTS

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
SIZES = [
    (1, 16, 16),
    (1, 576, 64),
    (16, 16, 16),
    (17, 1, 5),
    (37, 53, 70),
    (128, 64, 96),
    (3, 131, 257),
    (130, 258, 33),
]


@pytest.fixture
def strict(ascend):
    """The bench of the 910B2 under strict layouts; the tagged one is `ascend`."""
    bench = ascend
    other = type(bench)(bench.chip, evolve(bench.isa, wide=frozenset()), bench.kernels)
    other.target = Target(bench.chip, other.isa, other.timing, strict_layouts=True)
    other._choose = evolve(other._choose, target=other.target)
    return other


def operands(m: int, n: int, k: int, dtype: torch.dtype, order: str) -> list[torch.Tensor]:
    """x (m, k) and w, stored [n, k] or [k, n]; a letter says which operand lies across its k."""
    x, w = torch.randn(m, k).to(dtype), (torch.randn(n, k) / k**0.5).to(dtype)
    x = x.t().contiguous().t() if "x" in order else x
    return [x, w.t().contiguous() if "w" in order else w]


@pytest.mark.parametrize("order", ["", "x", "w", "xw"])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_fractal_tiles_and_tagged_ones_give_the_same_bits_in_float64(ascend, strict, size, order, dtype):
    inputs = operands(*size, dtype, order)
    outs = [
        bench.oracle("linear", inputs, [bench.out(size[:2], dtype)], exact=True, has_bias=False,
                     transposed="w" not in order).output
        for bench in (ascend, strict)
    ]  # fmt: skip
    assert torch.equal(*outs)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_fractal_tiles_agree_with_the_reference_and_the_oracle(strict, size, dtype):
    for order in ("", "xw"):
        bias = torch.randn(size[1]).to(dtype)
        run = strict.oracle("linear", [*operands(*size, dtype, order), bias], [strict.out(size[:2], dtype)],
                            has_bias=True, transposed="w" not in order)  # fmt: skip
        run.agrees()
        check(run.program, strict.isa, strict.chip)
        assert {ins.name for ins, _ in run.program.instructions() if ins.name.startswith("Mmad")} == {
            "Mmad.fractal.bias"
        }


def test_padding_is_counted_as_for_tagged_tiles(ascend, strict):
    size, dtype = (37, 53, 70), torch.float16
    runs = [
        bench.run("linear", operands(*size, dtype, ""), [bench.out(size[:2], dtype)], has_bias=False, transposed=True)
        for bench in (ascend, strict)
    ]
    assert runs[0].time.macs == runs[1].time.macs


@pytest.mark.parametrize("heads", [(1, 4, 2, 40, 40, 32), (2, 9, 3, 1, 37, 64), (1, 2, 1, 5, 37, 24)], ids=str)
def test_attention_under_strict_layouts_agrees_with_its_reference(strict, heads):
    batch, queries, keys, rows, length, width = heads
    q = torch.randn(batch, queries, rows, width).half()
    k, v = (torch.randn(batch, keys, length, width).half() for _ in range(2))
    out = strict.out(q.shape, q.dtype)
    strict.oracle("attention", [q, k, v], [out], causal=rows > 1, groups=queries // keys, has_mask=False,
                  scale=width**-0.5).agrees()  # fmt: skip


def dumped(emit, inputs: Sequence[torch.Tensor], nbytes: int) -> torch.Tensor:
    """The first *nbytes* of L1 as main memory has them after *emit* and a plain copy out."""
    chip = hdl.load("ascend-910b2")
    b, at, places = Builder("dump", ISA, chip), 0, []
    arena = Arena(1 << 20)
    for n, tensor in enumerate(inputs):
        b.param(f"x{n}", "in", tensor.numel() * tensor.itemsize)
        arena.window(at, tuple(tensor.shape), tensor.stride(), tensor.dtype).copy_(tensor)
        places.append(at)
        at += 1 << 16
    out = b.param("y", "out", nbytes)
    with b.phase("AIC"), b.nest(i=1):
        emit(b)
        b.order("MTE2", "MTE3")
        b("DataCopy.L12GM", b.gm(out, 0, (nbytes // 2,), "float16"), b.on("L1", 0, (nbytes // 2,), "float16"))
    machine = Functional(chip, ISA, arena)
    machine.bind(machine.unroll(b.build()), [*places, at]).run()
    return arena.window(at, (nbytes // 2,), (1,), torch.float16).clone()


def test_a_matrix_lies_in_l1_in_blocks_of_sixteen_columns():
    """(rows 4, columns 32): the first 16 columns of all rows, then the other 16."""
    x = torch.arange(128).half().view(4, 32)
    order = dumped(
        lambda b: b("DataCopy.ND2NZ", b.on("L1", 0, (2, 4, 16), "float16"), b.gm(0, 0, (4, 32), "float16")), [x], 256
    )
    assert order.tolist() == [*x[:, :16].flatten().tolist(), *x[:, 16:].flatten().tolist()]


def test_reading_fractals_as_if_they_were_rows_gives_the_chips_wrong_numbers(strict):
    """Mmad takes what lies in L0A: the tagged form on fractal bytes multiplies permuted numbers."""
    x, w = torch.randn(16, 32).half(), torch.randn(16, 32).half()

    def product(layout: str) -> torch.Tensor:
        chip, arena = strict.chip, Arena(1 << 20)
        b = Builder("mixed", ISA, chip)
        for n, role in enumerate(("in", "in", "out")):
            b.param("xwy"[n], role, 1024)
        for n, tensor in enumerate((x, w)):
            arena.window(n << 12, (16, 32), (32, 1), torch.float16).copy_(tensor)
        with b.phase("AIC"), b.nest(i=1):
            for n in (0, 1):
                b("DataCopy.ND2NZ", b.on("L1", n * 1024, (2, 16, 16), "float16"), b.gm(n, 0, (16, 32), "float16"))
            b.order("MTE2", "MTE1")
            for n, space in enumerate(("L0A", "L0B")):
                b(f"LoadData.L12{space}", b.on(space, 0, (512,), "float16"), b.on("L1", n * 1024, (512,), "float16"))
            b.order("MTE1", "M")
            if layout == "fractal":
                b("Mmad.fractal", b.on("L0C", 0, (1, 16, 16), "float32"), b.on("L0A", 0, (1, 2, 16, 16), "float16"),
                  b.on("L0B", 0, (2, 1, 16, 16), "float16"), accumulate=0, m=16, k=32, n=16)  # fmt: skip
            else:
                b("Mmad", b.on("L0C", 0, (16, 16), "float32"), b.on("L0A", 0, (16, 32), "float16"),
                  b.on("L0B", 0, (32, 16), "float16", (1, 32)), accumulate=0)  # fmt: skip
            b.order("M", "FIX")
            b("Fixpipe", b.gm(2, 0, (16, 16), "float16"), b.on("L0C", 0, (16, 16), "float32"))
        machine = Functional(chip, ISA, arena)
        machine.bind(machine.unroll(b.build()), [0, 1 << 12, 1 << 13]).run()
        return arena.window(1 << 13, (16, 16), (16, 1), torch.float16).clone()

    wanted = (x.float() @ w.float().t()).half()
    assert torch.allclose(product("fractal"), wanted, atol=1e-2, rtol=1e-2)
    assert not torch.allclose(product("tagged"), wanted, atol=1, rtol=1)


def test_rows_too_far_apart_for_nd2nz_are_refused_with_the_limit(strict):
    x, w = torch.randn(16, 32).half(), torch.randn(32, 70000).half()
    kernel: Kernel = next(k for k in PRODUCTS if k.kind == "linear")
    intent = strict.intent("linear", [x, w], [strict.out((16, 70000), x.dtype)], has_bias=False, transposed=False)
    with pytest.raises(
        errors.KernelError, match=r"^DSF-K021: strict layouts: rows lie 70000 elements apart, ND2NZ steps"
    ):
        kernel.emit(strict.target, intent)
