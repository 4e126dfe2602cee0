"""The 910B2's kernels under CANN's names: engines and formats they use, and generic's beside them."""

from __future__ import annotations

import pytest
import torch

from dsf import errors

NORM = {"eps": 1e-5, "compute": torch.float32, "weight_after_cast": True}


def engines(bench, program) -> set[str]:
    return {bench.isa.engine_of(ins) for ins, _ in program.instructions()}


def names(program) -> set[str]:
    return {ins.name for ins, _ in program.instructions()}


def chosen(bench, kind, inputs, outputs, **attrs):
    return bench.chosen(bench.intent(kind, inputs, outputs, **attrs))


def test_the_librarys_names_are_canns(ascend):
    offered = {kernel.name: kernel.kind for kernel in ascend.kernels if kernel.library == "ascend"}
    assert offered == {
        "MatMul": "linear", "BatchMatMul": "matmul", "FusedMatmul": "linear", "MatmulInt8": "linear",
        "QuantMatmul": "scaled_linear", "WeightQuantBatchMatmul": "quant_linear", "GroupedMatmul": "grouped_linear",
        "MatMulSoftmaxMatMul": "attention", "FlashAttentionScore": "attention",
        "MlaAttention": "latent_attention", "PagedAttention": "paged_attention",
        "RmsNorm": "rms_norm", "AddRmsNorm": "add_rms_norm",
        "LayerNorm": "layer_norm", "AddLayerNorm": "add_layer_norm", "GroupNorm": "group_norm",
        "SwiGlu": "gated_activation", "ApplyRotaryPosEmb": "rotary", "Softmax": "softmax", "Embedding": "embedding",
        "Cat": "concat", "Reduce": "reduce", "ArgMax": "arg_reduce", "Cumsum": "cumsum", "AscendQuant": "quantise",
        "GatherV2": "index", "Gather": "gather", "Scatter": "scatter", "IndexPutImpl": "index_put",
        "ScatterUpdate": "kv_append", "Sort": "sort", "Topk": "top_k", "Sort.scalar": "sort", "Sort.digits": "sort",
        "Topk.scalar": "top_k", "Convolution": "convolution", "Pooling": "pool", "Histc": "histogram",
    }  # fmt: skip


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_linear_layer_takes_the_cube_cores_path(ascend, has_bias):
    """GM -> L1 -> L0A, L0B -> L0C -> GM, and a bias by way of L1 and the bias table."""
    x, w, b = torch.randn(40, 600).half(), torch.randn(700, 600).half(), torch.randn(700).half()
    inputs = [x, w, b] if has_bias else [x, w]
    kernel, program = chosen(
        ascend, "linear", inputs, [ascend.out((40, 700), x.dtype)], has_bias=has_bias, transposed=True
    )
    assert kernel.name == "MatMul"
    moves = {"DataCopy.GM2L1", "LoadData.L12L0A", "LoadData.L12L0B", "Fixpipe", "SetFlag", "WaitFlag"}
    assert names(program) == moves | ({"Mmad.bias", "DataCopy.L12BT"} if has_bias else {"Mmad"})
    assert engines(ascend, program) == {"MTE2", "MTE1", "M", "FIX"}
    assert [phase.core for phase in program.phases] == ["AIC"]


def test_attention_in_float32_changes_cores_through_main_memory(ascend):
    """Cube, vector, cube: they share nothing but GM."""
    q, k, v = torch.randn(1, 4, 9, 16), torch.randn(1, 2, 9, 16), torch.randn(1, 2, 9, 16)
    _, program = chosen(
        ascend,
        "attention",
        [q, k, v],
        [ascend.out(q.shape, q.dtype)],
        causal=True,
        groups=2,
        has_mask=False,
        scale=0.25,
    )
    assert [phase.core for phase in program.phases] == ["AIC", "AIV", "AIC"]
    assert [(p.name, p.nbytes) for p in program.params[4:]] == [("scores", 4 * 9 * 9 * 4), ("weights", 4 * 9 * 9 * 4)]


def test_bfloat16_is_computed_in_float32_on_the_vector_engine(ascend):
    """No bf16 vector arithmetic on this generation: cast, compute, cast back; never an element at a time."""
    x = torch.randn(4, 64).bfloat16()
    out = ascend.out(x.shape, x.dtype)
    for kind, outputs, attrs in (
        ("elementwise", [out], {"expr": ("mul", x.dtype, ("in", 0), ("in", 0))}),
        ("softmax", [out], {"dim": 1, "log": False}),
        ("reduce", [ascend.out((4,), x.dtype)], {"op": "max", "dims": (1,), "keepdim": False}),
    ):
        _, program = chosen(ascend, kind, [x], outputs, **attrs)
        assert engines(ascend, program) == {"MTE2", "V", "MTE3"}
        used = {
            o.dtype
            for ins, _ in program.instructions()
            if ins.name not in ("Cast",)
            for o in ins.operands
            if o.space == "UB"
        }
        assert used <= {"float32", "bfloat16"}


def test_whole_numbers_of_64_bits_fall_to_the_scalar_unit(ascend):
    x = torch.arange(40)
    expr = "add", torch.int64, ("in", 0), ("in", 0)
    _, program = chosen(ascend, "elementwise", [x], [ascend.out(x.shape, x.dtype)], expr=expr)
    assert engines(ascend, program) == {"MTE2", "S", "MTE3"}


SAME = {
    "rms_norm": lambda b: ([torch.randn(66, 40).half(), torch.randn(40).half()], (66, 40), torch.float16, NORM),
    "layer_norm": lambda b: ([torch.randn(66, 40).half()], (66, 40), torch.float16,
                             {"axes": 1, "eps": 1e-5, "has_weight": False, "has_bias": False}),
    "gated_activation": lambda b: ([torch.randn(66, 40).half(), torch.randn(66, 40).half()], (66, 40), torch.float16,
                                   {"act": "silu"}),
    "rotary": lambda b: ([torch.randn(66, 40).half() for _ in range(3)], (66, 40), torch.float16, {"style": "half"}),
    "softmax": lambda b: ([torch.randn(66, 40).half()], (66, 40), torch.float16, {"dim": 1, "log": False}),
    "embedding": lambda b: ([torch.randint(0, 9, (66,)), torch.randn(9, 40).half()], (66, 40), torch.float16, {}),
    "concat": lambda b: ([torch.randn(6, 40).half(), torch.randn(7, 40).half()], (13, 40), torch.float16, {"dim": 0}),
    "reduce": lambda b: ([torch.randn(66, 40).half()], (66,), torch.float16,
                         {"op": "sum", "dims": (1,), "keepdim": False}),
    "arg_reduce": lambda b: ([torch.randn(6, 40).half()], (6,), torch.int64,
                             {"op": "argmax", "dim": 1, "keepdim": False, "has_values": False}),
    "cumsum": lambda b: ([torch.randn(66, 40).half()], (66, 40), torch.float16, {"dim": 1}),
}  # fmt: skip


@pytest.mark.parametrize("kind", SAME)
def test_generics_vector_kernels_run_here_and_give_the_same_numbers(ascend, kind):
    """One generator serves both, so that the bound is none at all."""
    inputs, shape, dtype, attrs = SAME[kind](ascend)
    generic = ascend.kernel(f"generic.{kind}")
    vendor = ascend.run(kind, inputs, [ascend.out(shape, dtype)], **attrs)
    assert vendor.kernel.library == "ascend"
    ascend.run(kind, inputs, [ascend.out(shape, dtype)], kernel=generic, **attrs).equals(vendor.output)


@pytest.mark.parametrize("kind", ["linear", "attention"])
def test_generics_products_are_refused_here_in_words(ascend, kind):
    """Its one scratch memory is UB, but Mmad reads L0A."""
    inputs, attrs = {
        "linear": ([torch.randn(5, 9).half(), torch.randn(7, 9).half()], {"has_bias": False, "transposed": True}),
        "attention": ([torch.randn(1, 1, 5, 7).half() for _ in range(3)],
                      {"causal": False, "groups": 1, "has_mask": False, "scale": 1.0}),
    }[kind]  # fmt: skip
    shape = (5, 7) if kind == "linear" else (1, 1, 5, 7)
    generic = next(k for k in ascend.kernels if k.kind == kind and k.library == "generic")
    intent = ascend.intent(kind, inputs, [ascend.out(shape, torch.float16)], **attrs)
    sentence = (
        "ascend-2201: generic loads into UB, but the matrix engine reads L0A; such a chip needs its vendor's kernels"
    )
    with pytest.raises(errors.KernelError, match=sentence) as caught:
        generic.emit(ascend.target, intent)
    assert caught.value.code == "DSF-K008"


def test_a_format_of_another_generation_is_an_error_that_names_the_tensor(ascend):
    x = torch.zeros(4).to(torch.float8_e4m3fn)
    sentence = r"elementwise on a \[4\] tensor of float8_e4m3fn; ascend-910b2 cannot compute it; convert the tensor"
    expr = "cast", torch.float32, ("in", 0)
    with pytest.raises(errors.DtypeError, match=sentence) as caught:
        ascend.refusal("elementwise", [x], [ascend.out((4,), torch.float32)], expr=expr)
    assert caught.value.code == "DSF-N010"


def test_no_tile_of_a_biased_layer_is_wider_than_the_bias_table(ascend):
    """1 KiB holds 256 numbers of float32."""
    x, w, b = torch.randn(16, 64).half(), torch.randn(2048, 64).half(), torch.randn(2048).half()
    _, program = chosen(ascend, "linear", [x, w, b], [ascend.out((16, 2048), x.dtype)], has_bias=True, transposed=True)
    widths = {ins.operands[0].shape[0] for ins, _ in program.instructions() if ins.name == "DataCopy.L12BT"}
    assert widths
    assert max(widths) <= 256
