"""FlashAttentionScore: right numbers in one pass over the keys, on both planes and the oracle, in far less time."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve
from torch.nn import functional as F

from dsf import errors
from dsf.machine.ordering import check
from dsf_ascend.kernels.flash.kernel import KERNELS, emit

HALF = (torch.float16, torch.bfloat16)
(FLASH,) = KERNELS

SHAPES = {  # batch, heads, kv heads, queries, keys, width, value width, causal
    "even rows": (1, 2, 1, 16, 16, 64, 64, True),
    "odd rows": (1, 2, 1, 37, 37, 64, 64, True),
    "a whole block": (1, 2, 2, 128, 128, 32, 32, True),
    "blocks and odd rows": (1, 1, 1, 131, 131, 16, 16, True),
    "blocks and even rows": (2, 2, 1, 300, 300, 64, 64, True),
    "more keys than one tile": (1, 1, 1, 130, 700, 64, 64, False),
    "many tiles": (1, 1, 1, 128, 3600, 64, 64, False),
    "fewer keys than queries": (1, 1, 1, 256, 60, 64, 64, True),
    "one query": (2, 4, 2, 1, 77, 64, 64, False),
    "heads of one query": (2, 8, 2, 1, 700, 64, 64, False),
    "three heads of one query": (1, 9, 3, 1, 130, 64, 64, False),
    "one key": (1, 1, 1, 4, 1, 16, 16, False),
    "narrower values": (1, 2, 1, 40, 50, 192, 128, True),
}


def operands(shape: tuple, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    batch, heads, kv_heads, queries, keys, width, value_width, _ = shape
    return (
        torch.randn(batch, heads, queries, width).to(dtype),
        torch.randn(batch, kv_heads, keys, width).to(dtype),
        torch.randn(batch, kv_heads, keys, value_width).to(dtype),
    )


def attrs(shape: tuple, **others) -> dict:
    return {"causal": shape[-1], "groups": shape[1] // shape[2], "has_mask": False, "scale": shape[5] ** -0.5} | others


def run(bench, shape: tuple, dtype: torch.dtype, method: str = "run", tensors=None, **others):
    q, k, v = tensors or operands(shape, dtype)
    out = bench.out((*q.shape[:3], v.shape[3]), dtype)
    return getattr(bench, method)("attention", [q, k, v], [out], kernel=FLASH, **attrs(shape), **others)


def wanted(run) -> torch.Tensor:
    """In float64, by torch."""
    q, k, v = (t.double() for t in run.inputs)
    intent = run.intent
    return F.scaled_dot_product_attention(
        q, k, v, is_causal=intent.attr("causal"), scale=intent.attr("scale"), enable_gqa=intent.attr("groups") > 1
    )


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_planes_and_oracle_agree_and_the_numbers_are_torchs(ascend, shape, dtype):
    found = run(ascend, shape, dtype, "oracle")
    found.agrees()
    size = found.inputs[2].abs().max().item()
    found.within(wanted(found), 8 * torch.finfo(dtype).eps * size)


MASKS = {
    "bool": lambda shape: torch.rand(shape) > 0.4,
    "half": lambda shape: torch.randn(shape).half() * 2,
    "float": lambda shape: torch.randn(shape) * 2,
    "the least float": lambda shape: torch.where(torch.rand(shape) > 0.4, 0.0, torch.finfo(torch.float32).min),
    "minus infinity": lambda shape: torch.where(torch.rand(shape) > 0.4, 0.0, -torch.inf).half(),
}
SPREADS = {
    "whole": lambda mask: mask,
    "all rows alike": lambda mask: mask[:, :1, :1].expand_as(mask),
    "all heads alike": lambda mask: mask[:, :1].expand_as(mask),
}


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("shape", ["blocks and even rows", "odd rows", "heads of one query", "more keys than one tile"])
def test_masks_of_every_kind_are_torchs(ascend, shape, kind, spread):
    """One row (of the whole mask) sees nothing at all: zeros, as torch has it; of the least float it sees all alike."""
    shape = (*SHAPES[shape][:-1], False)
    q, k, v = operands(shape, torch.float16)
    mask = MASKS[kind]((*q.shape[:3], k.shape[2]))
    mask[0, 0, 0] = mask.min()
    mask = SPREADS[spread](mask)
    out = ascend.out((*q.shape[:3], v.shape[3]), torch.float16)
    found = ascend.oracle("attention", [q, k, v, mask], [out], kernel=FLASH, **attrs(shape, has_mask=True))
    found.agrees()
    double = mask if mask.dtype == torch.bool else mask.double()
    torchs = F.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), attn_mask=double, scale=shape[5] ** -0.5, enable_gqa=shape[1] > shape[2]
    )
    found.within(torchs, 8 * torch.finfo(torch.float16).eps * v.abs().max().item())


@pytest.mark.parametrize("window", [1, 7, 128, 200, 5000])
@pytest.mark.parametrize("rows", [37, 300, 900])
def test_a_window_hides_what_lies_further_back(ascend, rows, window):
    shape = (1, 2, 1, rows, rows, 32, 32, True)
    found = run(ascend, shape, torch.float16, "oracle" if rows < 900 else "run", window=window)
    found.agrees()
    q, k, v = (t.double() for t in found.inputs)
    seen = torch.ones(rows, rows, dtype=torch.bool).tril()
    seen = seen & ~seen.tril(-window)
    torchs = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=32**-0.5, enable_gqa=True)
    found.within(torchs, 8 * torch.finfo(torch.float16).eps * v.abs().max().item())


def test_a_window_leaves_out_the_tiles_before_it(ascend):
    def macs(**others) -> int:
        shape = (1, 1, 1, 4096, 4096, 64, 64, True)
        q, k, v = operands(shape, torch.float16)
        intent = ascend.intent("attention", [q, k, v], [ascend.out(q.shape, q.dtype)], **attrs(shape, **others))
        return ascend.timing(emit(ascend.target, intent)).macs

    assert macs(window=512) * 2 < macs()


@pytest.mark.parametrize("masked", [False, True])
def test_capped_scores_are_torchs(ascend, masked):
    shape = (1, 2, 1, 140, 140, 64, 64, not masked)
    q, k, v = operands(shape, torch.float16)
    mask = [torch.randn(1, 2, 140, 140).half()] if masked else []
    out = ascend.out(q.shape, torch.float16)
    found = ascend.oracle("attention", [q * 4, k, v, *mask], [out], kernel=FLASH,
                          **attrs(shape, softcap=3.0, has_mask=masked))  # fmt: skip
    found.agrees()
    scores = (q * 4).double() @ k.double().repeat_interleave(2, 1).mT / 8
    scores = 3 * torch.tanh(scores / 3)
    seen = scores + mask[0].double() if masked else scores.masked_fill(~torch.ones(140, 140).bool().tril(), -torch.inf)
    torchs = seen.softmax(-1) @ v.double().repeat_interleave(2, 1)
    found.within(torchs, 8 * torch.finfo(torch.float16).eps * v.abs().max().item())


@pytest.mark.parametrize("tile", [128, 256, 512])
@pytest.mark.parametrize("tiles", range(1, 9))
def test_every_number_of_tiles_has_its_turn_of_every_buffer(ascend, tile, tiles):
    """The first tiles stand apart, then comes a loop of two, then what is left and a ragged one."""
    shape = (1, 1, 1, 128, tiles * tile + 5, 16, 16, False)
    q, k, v = operands(shape, torch.float16)
    intent = ascend.intent("attention", [q, k, v], [ascend.out(q.shape, q.dtype)], **attrs(shape))
    program = emit(ascend.target, intent, (tile,))
    check(program, ascend.isa, ascend.chip)
    by_tile = evolve(FLASH, emit=lambda target, intent: emit(target, intent, (tile,)))
    found = ascend.run("attention", [q, k, v], [ascend.out(q.shape, q.dtype)], kernel=by_tile, **attrs(shape))
    found.agrees()


def test_a_row_sees_no_key_behind_it(ascend):
    """The keys behind are poison, which reaches no other row."""
    shape = (1, 1, 1, 256, 256, 64, 64, True)
    q, k, v = operands(shape, torch.float16)
    k[..., 200:, :] = torch.nan
    y = run(ascend, shape, torch.float16, tensors=(q, k, v)).output
    assert y[..., :200, :].isfinite().all()
    assert y[..., 200:, :].isnan().all()


def test_large_scores_do_not_overflow(ascend):
    shape = (1, 1, 1, 64, 600, 64, 64, False)
    q, k, v = operands(shape, torch.float16)
    found = run(ascend, shape, torch.float16, tensors=(q * 60, k * 60, v))
    found.within(wanted(found), 0.01)


def test_heads_are_read_and_written_as_they_lie(ascend):
    """[B, S, H, D] seen as [B, H, S, D], and a part of a longer cache."""
    shape = (2, 4, 2, 50, 90, 64, 64, False)
    q = torch.randn(2, 50, 4, 64).half().transpose(1, 2)
    k, v = (torch.randn(2, 2, 128, 64).half()[:, :, :90] for _ in range(2))
    out = ascend.out((2, 50, 4, 64), torch.float16).transpose(1, 2)
    found = ascend.run("attention", [q, k, v], [out], kernel=FLASH, **attrs(shape))
    found.agrees()


def test_it_is_many_times_quicker_than_three_phases_and_chosen(ascend):
    """Llama-3-8B, 4096 tokens: the scores of three phases go through main memory."""
    shape = (1, 32, 8, 4096, 4096, 128, 128, True)
    q, k, v = (t.expand(s) for t, s in zip(operands((1, 1, 1, 1, 1, 128, 128, True), torch.float16), (
        (1, 32, 4096, 128), (1, 8, 4096, 128), (1, 8, 4096, 128)), strict=True))  # fmt: skip
    intent = ascend.intent("attention", [q.contiguous(), k.contiguous(), v.contiguous()],
                           [torch.empty(1, 32, 4096, 128, dtype=torch.float16)], **attrs(shape))  # fmt: skip
    slow = next(kernel for kernel in ascend.kernels if kernel.name == "MatMulSoftmaxMatMul")
    flash = ascend.timing(emit(ascend.target, intent))
    three = ascend.timing(slow.emit(ascend.target, intent))
    assert flash.duration_fs * 5 < three.duration_fs
    assert flash.macs < three.macs  # tiles behind every row are left out


def test_strict_layouts_leave_it_to_others(ascend, monkeypatch):
    shape = SHAPES["even rows"]
    q, k, v = operands(shape, torch.float16)
    intent = ascend.intent("attention", [q, k, v], [ascend.out(q.shape, q.dtype)], **attrs(shape))
    monkeypatch.setattr(ascend.target, "strict_layouts", True)
    with pytest.raises(errors.KernelError, match=r"^DSF-K024: strict layouts: fused attention lays its tiles out as"):
        emit(ascend.target, intent)


REFUSED = {
    "q, k, v and y are fp16 or bf16, all of one format": (SHAPES["one key"], {}, torch.float32),
    "a window is of causal attention and not empty": (SHAPES["one key"], {"window": 3}, torch.float16),
    "a single query sees every key": ((1, 2, 1, 1, 4, 16, 16, True), {}, torch.float16),
    "the scale is above zero": (SHAPES["one key"], {"scale": -0.5}, torch.float16),
    "heads are multiples of 16 wide, at most 256, values at most 128 and no wider than queries":
        ((1, 1, 1, 4, 4, 24, 24, False), {}, torch.float16),
    "no dimension is empty": ((1, 1, 1, 4, 0, 16, 16, False), {}, torch.float16),
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_every_limit_refuses_in_its_own_words(ascend, words):
    shape, others, dtype = REFUSED[words]
    q, k, v = operands(shape, dtype)
    intent = ascend.intent("attention", [q, k, v], [ascend.out((*q.shape[:3], v.shape[3]), dtype)],
                           **attrs(shape, **others))  # fmt: skip
    assert FLASH.refusal(ascend.chip, intent) == words
