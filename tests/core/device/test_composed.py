"""Operations recorded as what they consist of: the CPU's numbers, and no trace of the operation itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dsf.device.composed import COMPOSED
from dsf.intent import check, parse

f32, f16, bf16 = torch.float32, torch.float16, torch.bfloat16
aten = torch.ops.aten
TARGETS = torch.tensor([3, -100, 0, 2, 6])


def at(x: Tensor, value: Tensor) -> Tensor:
    return value.to(x.device)


def losses(x: Tensor, reduction: int) -> tuple[Tensor, ...]:
    log, target = torch.log_softmax(x, 1), at(x, TARGETS)
    loss, number = aten.nll_loss_forward(log, target, None, reduction, -100)
    return loss, number, aten.nll_loss_backward(loss, log, target, None, reduction, -100, number)


def layer_norm_backward(x: Tensor, shape: list[int], mask: list[bool]) -> list[Tensor]:
    weight = x.new_full(shape, 1.5)
    y, mean, rstd = aten.native_layer_norm(x, shape, weight, None, 1e-5)
    bias = weight if mask[2] else None
    found = aten.native_layer_norm_backward(y.cos(), x, shape, mean, rstd, weight, bias, mask)
    return [t for t in found if t is not None]


def hidden_rows(x: Tensor) -> Tensor:
    return x.masked_fill(torch.arange(5, device=x.device).unsqueeze(1) == 2, -torch.inf)


CASES: dict[str, tuple[str, Callable[[Tensor], Any]]] = {
    "safe softmax": ("_safe_softmax", lambda x: aten._safe_softmax(hidden_rows(x), -1)),
    "softmax backward": (
        "_softmax_backward_data", lambda x: aten._softmax_backward_data(x, torch.softmax(x, 0), 0, x.dtype)),
    "log softmax backward": (
        "_log_softmax_backward_data",
        lambda x: aten._log_softmax_backward_data(x, torch.log_softmax(x, 1), 1, x.dtype)),
    "mean loss": ("nll_loss_forward", lambda x: losses(x, 1)),
    "summed loss": ("nll_loss_backward", lambda x: losses(x, 2)),
    "layer norm": ("native_layer_norm", lambda x: aten.native_layer_norm(x, [7], x[0].exp(), x[1], 1e-3)[0]),
    "statistics of a layer norm": (
        "native_layer_norm", lambda x: [t.float() for t in aten.native_layer_norm(x, [7], None, None, 1e-3)]),
    "layer norm backward": (
        "native_layer_norm_backward", lambda x: layer_norm_backward(x, [7], [True, True, True])),
    "layer norm backward over all": (
        "native_layer_norm_backward", lambda x: layer_norm_backward(x, [5, 7], [True, False, True])),
    "variance": ("var.correction", lambda x: (x.var(), x.var(0), x.var(1, correction=0, keepdim=True))),
    "deviation": ("std.correction", lambda x: (x.std(), x.std((0, 1)), x[:1].std(0, correction=1))),
    "variance and mean": ("var_mean.correction", lambda x: (*torch.var_mean(x, 0), *torch.var_mean(x))),
    "norm": ("linalg_vector_norm", lambda x: (x.norm(), x.norm(1, 0), torch.linalg.vector_norm(x, 2, 1, True))),
    "norm in float32": ("linalg_vector_norm", lambda x: torch.linalg.vector_norm(x, dtype=f32)),
    "padding": ("constant_pad_nd", lambda x: (F.pad(x, (1, 2), value=3.0), F.pad(x, (0, 0, 2, 1)))),
    "cutting": ("constant_pad_nd", lambda x: (F.pad(x, (-1, 2)), F.pad(x, (1, -2, -1, -1)))),
    "a slice's gradient": ("slice_backward", lambda x: aten.slice_backward(x, [5, 20], 1, 3, 17, 2)),
    "a selection's gradient": ("select_backward", lambda x: aten.select_backward(x, [5, 3, 7], 1, 2)),
    "an embedding's gradient": (
        "embedding_dense_backward",
        lambda x: (aten.embedding_dense_backward(x, at(x, torch.tensor([1, 3, 1, 0, 3])), 4, -1, False),
                   aten.embedding_dense_backward(x, at(x, torch.tensor([1, 3, 1, 0, 3])), 4, 3, False))),
    "a product and a sum": (
        "baddbmm", lambda x: (torch.baddbmm(x[:, :5], x[None, :, :4], x[None, :4, :5], beta=0.5, alpha=0.25),
                              x[:, :1].baddbmm(x[None], x[None].mT))),
    "lower triangle": ("tril", lambda x: (x.tril(), x.tril(2), x.tril(-1))),
    "upper triangle": ("triu", lambda x: (x.triu(), x.triu(2), x.triu(-1))),
    "flipped": ("flip", lambda x: (x.flip(0), x.flip((0, 1)))),
}  # fmt: skip

TOLERANCE = {f32: 2e-6, f16: 2e-3, bf16: 2e-2}


def leaves(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [t for v in value for t in leaves(v)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [f32, f16, bf16])
def test_what_is_composed_gives_the_cpus_numbers(recorded, name, dtype):
    operation, function = CASES[name]
    x = torch.randn(5, 7).to(dtype)
    with torch.no_grad():
        wanted, found = leaves(function(x)), leaves(function(x.to("npu")))
    for want, have in zip(wanted, found, strict=True):
        assert have.dtype == want.dtype
        torch.testing.assert_close(have.cpu(), want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype], equal_nan=True)
    assert not [target for target in recorded() if target.startswith(f"aten.{operation.partition('.')[0]}.")]


def test_every_composed_operation_has_a_case():
    assert {operation for operation, _ in CASES.values()} == set(COMPOSED)


WHOLE: dict[str, Callable[[Tensor], Any]] = {
    "weighted loss": lambda x: aten.nll_loss_forward(x, at(x, TARGETS), x[0, :7].abs(), 1, -100),
    "a loss for each": lambda x: aten.nll_loss_forward(x, at(x, TARGETS), None, 0, -100)[0],
    "the largest": lambda x: x.norm(torch.inf),
    "by frequency": lambda x: aten.embedding_dense_backward(x, at(x, torch.tensor([1, 3, 1, 0, 3])), 4, -1, True),
    "padding to nothing": lambda x: F.pad(x, (-4, -3)),
}


@pytest.mark.parametrize("name", WHOLE)
def test_other_forms_are_left_to_torch(session, name):
    x = torch.randn(5, 7)
    wanted, found = leaves(WHOLE[name](x)), leaves(WHOLE[name](x.to("npu")))
    for want, have in zip(wanted, found, strict=True):
        torch.testing.assert_close(have.cpu(), want)


def test_a_step_of_training_has_no_opaque_operation(session):
    """Embedding, norm, attention, gated feed-forward, loss, backward, AdamW."""
    torch.manual_seed(0)
    table, norm, qkv, out = (
        torch.randn(shape).to("npu").requires_grad_() for shape in ((11, 8), (8,), (24, 8), (11, 8))
    )
    optimizer = torch.optim.AdamW((table, norm, qkv, out), lr=1e-3)
    ids = torch.randint(0, 11, (2, 5)).to("npu")
    session.tapes.clear()
    h = F.layer_norm(F.embedding(ids, table), (8,), norm)
    q, k, v = F.linear(h, qkv).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
    h = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 5, 8)
    loss = F.cross_entropy(F.linear(F.silu(h) * h, out).view(10, 11), ids.view(-1))
    loss.backward()
    optimizer.step()
    loss.item()
    assert session.tapes
    for tape in session.tapes:
        intents = parse(tape)
        check(intents, tape)
        assert [i.attr("target") for i in intents if i.kind == "opaque"] == []
