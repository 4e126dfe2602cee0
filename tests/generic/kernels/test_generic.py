"""Kernels from a description alone: on small chips, on odd ones, on a real one without its plugin."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from dsf.kernels.shared import GENERATORS

NORM = {"eps": 1e-5, "compute": torch.float32, "weight_after_cast": True}


def close(run, wanted: torch.Tensor) -> None:
    """Within two units of the last place at the size of the largest."""
    assert (run.output.double() - wanted).abs().max() <= 2 * torch.finfo(run.output.dtype).eps * wanted.abs().max()


def linear(bench, m: int, n: int, k: int, bias: bool = False):
    x, w, b = torch.randn(m, k).half(), (torch.randn(n, k) / k**0.5).half(), torch.randn(n).half()
    inputs = [x, w, b] if bias else [x, w]
    run = bench.run("linear", inputs, [bench.out((m, n), x.dtype)], has_bias=bias, transposed=True)
    close(run, F.linear(x.double(), w.double(), b.double() if bias else None))
    return run


def test_every_kernel_is_offered_under_its_librarys_name(acme):
    names = [kernel.name for kernel in acme.kernels]
    assert names == [
        "generic.matmul", "generic.batch_matmul", "generic.attention", "generic.latent_attention",
        "generic.paged_attention", "generic.grouped_matmul", "generic.fused_matmul",
        "generic.int8_matmul", "generic.quant_matmul", "generic.weight_quant_matmul", "generic.convolution",
        *(f"generic.{kind}" for kind in GENERATORS),
        "compiled.elementwise", "compiled.copy", "compiled.fill", "compiled.iota",
    ]  # fmt: skip


def quantity(text: str) -> dict[str, str]:
    return {"value": text, "origin": "estimate", "source": "acme"}


SMALL = {"/memories/sram/size": quantity("24 KiB"), "/memories/acc/size": quantity("2 KiB")}


def test_a_chip_of_a_few_kilobytes_computes_the_same(variant):
    """Tiles of 32 x 16 at most: 2 KiB of accumulators."""
    bench = variant(SMALL)
    run = linear(bench, 37, 53, 300, bias=True)
    accumulators = {ins.operands[0].shape for ins, _ in run.program.instructions() if ins.name == "matmul"}
    assert all(m * n * 4 <= 2048 for m, n in accumulators)
    x, weight = torch.randn(70, 400).half(), torch.randn(400).half()
    norm = bench.run("rms_norm", [x, weight], [bench.out(x.shape, x.dtype)], **NORM)
    close(norm, F.rms_norm(x.double(), (400,), weight.double(), 1e-5))


def test_a_chip_of_one_core_computes_the_same(variant):
    bench = variant({"/cores/core/count": {"value": 1, "origin": "estimate", "source": "acme"}})
    linear(bench, 130, 300, 40)


@pytest.mark.parametrize("sums", ["float16", "float32"])
def test_products_are_summed_in_the_accumulators_that_the_description_names(variant, sums):
    x, w = torch.tensor([[2048.0, 1.0, 2.0]]).half(), torch.ones(1, 3).half()
    bench = variant({"/numerics/dtypes/float16/accumulate": sums})
    run = bench.run("linear", [x, w], [bench.out((1, 1), x.dtype)], has_bias=False, transposed=True)
    assert run.output.item() == 2052.0  # 2051 is no float16
    names = {ins.operands[0].dtype for ins, _ in run.program.instructions() if ins.name.startswith("matmul")}
    assert names == {sums}


def test_a_product_that_no_tile_fits_is_refused_in_words(variant):
    bench = variant({"/memories/acc/size": quantity("512 B")})
    x, w = torch.randn(16, 40).half(), torch.randn(16, 40).half()
    why = bench.refusal("linear", [x, w], [bench.out((16, 16), x.dtype)], has_bias=False, transposed=True)
    words = "no tile of a product of (16 x 40) by (40 x 16) in float16 fits sram and acc"
    assert why.split("; ")[0] == f"generic.matmul: generic(acme-variant): {words}"


def test_a_bias_needs_a_path_to_the_accumulators(variant):
    bench = variant({"/paths/hbm->acc": None})
    linear(bench, 5, 7, 9)
    x, w, b = torch.randn(5, 9).half(), torch.randn(7, 9).half(), torch.randn(7).half()
    why = bench.refusal("linear", [x, w, b], [bench.out((5, 7), x.dtype)], has_bias=True, transposed=True)
    assert why.split("; ")[0] == "generic.matmul: generic(acme-variant): no instruction serves 'load.acc'"


def test_results_that_cannot_leave_the_accumulators_are_left_to_the_host(variant):
    bench = variant({"/paths/acc->hbm": None})
    x, w = torch.randn(5, 9).half(), torch.randn(7, 9).half()
    why = bench.refusal("linear", [x, w], [bench.out((5, 7), x.dtype)], has_bias=False, transposed=True)
    assert why.split("; ")[0] == "generic.matmul: generic(acme-variant): no instruction serves 'matmul' on float16"
    bench.run("copy", [x], [bench.out(x.shape, x.dtype)]).equals(x)


# A real chip whose plugin is not installed: two kinds of cores, of which generic uses the one with a vector engine


@pytest.fixture
def plain(benches):
    return benches("ascend-910b2", "generic")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_vector_work_runs_without_the_vendors_plugin(plain, dtype):
    x, weight = torch.randn(66, 40).to(dtype), torch.randn(40).to(dtype)
    run = plain.run("rms_norm", [x, weight], [plain.out(x.shape, dtype)], **NORM)
    close(run, F.rms_norm(x.double(), (40,), weight.double(), 1e-5))
    run.agrees()
    run = plain.run("softmax", [x], [plain.out(x.shape, dtype)], dim=1, log=False)
    close(run, torch.softmax(x.double(), 1))
    expr = "add", dtype, ("in", 0), ("mul", dtype, ("in", 0), ("in", 1))
    y = weight.expand_as(x)
    plain.run("elementwise", [x, y], [plain.out(x.shape, dtype)], expr=expr).equals(x + x * y)


def test_products_need_the_vendors_plugin(plain):
    """The vector cores have no way to the accumulators of the cube cores."""
    x, w = torch.randn(5, 9).half(), torch.randn(7, 9).half()
    why = plain.refusal("linear", [x, w], [plain.out((5, 7), x.dtype)], has_bias=False, transposed=True)
    assert why.split("; ")[0] == "generic.matmul: generic(ascend-910b2): no instruction serves 'matmul' on float16"
