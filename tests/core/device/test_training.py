"""Backward and optimizers give the CPU's numbers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn


def pair(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    return model, copy.deepcopy(model).to("npu")


MODELS = {
    "perceptron": (lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)), (4, 6)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        (2, 2, 6, 6),
    ),
    "transformer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (2, 5, 8)),
}


@pytest.mark.parametrize("name", MODELS)
def test_gradients_equal_the_cpus(session, name):
    make, shape = MODELS[name]
    cpu, ours = pair(make())
    x = torch.randn(shape)
    cpu(x).square().mean().backward()
    ours(x.to("npu")).square().mean().backward()
    for a, b in zip(cpu.parameters(), ours.parameters(), strict=True):
        assert b.grad.is_npu
        torch.testing.assert_close(b.grad.cpu(), a.grad)


@pytest.mark.parametrize("name", MODELS)
def test_evaluation_equals_the_cpus(session, name):
    make, shape = MODELS[name]
    cpu, ours = pair(make().eval())
    x = torch.randn(shape)
    with torch.no_grad():
        torch.testing.assert_close(ours(x.to("npu")).cpu(), cpu(x))


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
    "adamw loop": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=False),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_steps_equal_the_cpus(session, name):
    cpu, ours = pair(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)))
    x, target = torch.randn(3, 4), torch.tensor([0, 1, 1])
    for model, where in ((cpu, "cpu"), (ours, "npu")):
        optimizer = OPTIMIZERS[name](model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.to(where)), target.to(where)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    for a, b in zip(cpu.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(b.cpu(), a, rtol=1e-5, atol=1e-6)


def test_attention_is_differentiable(session):
    q = torch.randn(1, 2, 3, 4)
    grads = []
    for where in ("cpu", "npu"):
        x = q.clone().to(where).requires_grad_()
        nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True).sum().backward()
        grads.append(x.grad.cpu())
    torch.testing.assert_close(grads[1], grads[0])


def test_checkpointing_recomputes_on_the_device(session):
    layer = nn.Linear(3, 3).to("npu")
    x = torch.ones(1, 3, device="npu", requires_grad=True)
    for reentrant in (True, False):
        torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=reentrant).sum().backward()
    torch.testing.assert_close(x.grad.cpu()[0], 2 * layer.weight.detach().cpu().sum(0))


def test_autocast_runs_matrix_products_narrow_and_softmax_wide(session):
    layer = nn.Linear(4, 4).to("npu")
    with torch.autocast("npu", dtype=torch.bfloat16):
        narrow = layer(torch.ones(2, 4, device="npu"))
        assert narrow.dtype is torch.bfloat16
        assert narrow.softmax(-1).dtype is torch.float32
        narrow.float().sum().backward()
    assert layer.weight.grad.dtype is torch.float32
    assert layer(torch.ones(2, 4, device="npu")).dtype is torch.float32


def test_a_scaler_scales_and_steps(session):
    layer = nn.Linear(2, 1).to("npu")
    before = layer.weight.detach().clone()
    optimizer, scaler = torch.optim.SGD(layer.parameters(), lr=1.0), torch.amp.GradScaler("npu")
    scaler.scale(layer(torch.ones(1, 2, device="npu")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close((before - layer.weight).detach().cpu(), torch.ones(1, 2))


def test_functional_transforms_work(session):
    x = torch.arange(3.0).to("npu")
    assert torch.func.grad(lambda v: (v**2).sum())(x).tolist() == [0, 2, 4]
    assert torch.func.vmap(lambda v: v * 2)(x).tolist() == [0, 2, 4]
    assert torch.func.jvp(lambda v: v**2, (x,), (torch.ones_like(x),))[1].tolist() == [0, 2, 4]


def gradients(module, x, device):
    torch.manual_seed(0)
    made = module().to(device)
    out = made(x.to(device))
    out = out[0] if isinstance(out, tuple) else out
    (out * out).sum().backward()
    return [out.detach().cpu(), *(p.grad.cpu() for p in made.parameters())]


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (lambda: torch.nn.Conv2d(3, 4, 3), (2, 3, 8, 8)),
        (lambda: torch.nn.ConvTranspose2d(3, 4, 3), (2, 3, 8, 8)),
        (lambda: torch.nn.BatchNorm2d(3), (2, 3, 8, 8)),
        (lambda: torch.nn.LayerNorm(8), (2, 3, 8)),
        (lambda: torch.nn.GroupNorm(1, 3), (2, 3, 8)),
    ],
    ids=["conv", "transposed conv", "batch norm", "layer norm", "group norm"],
)
def test_a_first_layer_whose_input_needs_no_gradient_is_trained(session, module, shape):
    x = torch.randn(shape)
    torch.testing.assert_close(gradients(module, x, "npu"), gradients(module, x, "cpu"))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_a_recurrent_layer_answers_and_learns_as_on_the_cpu(session, kind, bias):
    x = torch.randn(4, 2, 5)
    found = gradients(lambda: kind(5, 7, 2, bias=bias), x, "npu")
    torch.testing.assert_close(found, gradients(lambda: kind(5, 7, 2, bias=bias), x, "cpu"))
