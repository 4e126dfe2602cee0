"""Random programs full of views, in-place writes and half-finished patterns: the intents do what the operations do."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dsf.intent import check, parse

N = 4


def rms_norm(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    square = a.pow(2)
    variance = square.mean(-1, keepdim=True)
    inverse = torch.rsqrt(variance + 1e-5)
    normed = a * inverse
    return b[0] * normed, normed, square


def rotary(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    turned = torch.cat((-a[:, N // 2 :], a[:, : N // 2]), -1)
    left, right = a * b, turned * b[0]
    return left + right, turned, right


def gated(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    activated = F.silu(a)
    return activated * b, activated


PURE = (
    rms_norm,
    rotary,
    gated,
    lambda a, b: (a + b, a * 0.5),
    lambda a, b: (torch.where(a > b, a, torch.full((), 0.25)),),
    lambda a, b: (torch.tanh(a) - b.sum(-1, keepdim=True),),
    lambda a, b: (torch.softmax(a, -1) + torch.zeros_like(b),),
    lambda a, b: (torch.cat((a[:2], b[2:])), torch.stack((a[0], b[1], a[2], b[3]))),
    lambda a, b: (b[a.argmax(-1)], a.clone()),
    lambda a, b: (a.cumsum(0).tril(), (a > 0).to(torch.float32)),
)
IN_PLACE = (
    lambda a, b: a.add_(b),
    lambda a, b: a.mul_(0.5).tanh_(),
    lambda a, b: a.copy_(b),
    lambda a, b: a[1:].copy_(b[1:]),
    lambda a, b: a[0].fill_(0.125),
    lambda a, b: a.masked_fill_(b > 0.5, 0.0),
    lambda a, b: a.index_copy_(0, torch.tensor([1]), b[:1]),
    lambda a, b: a.clamp_(-1, 1),
)
VIEWS = (lambda a: a, lambda a: a, lambda a: a.t(), lambda a: a[:1].expand(N, N), lambda a: a.view(2, 8).view(N, N))


def program(choose: random.Random):
    """A random function of three tensors; a random part of what it makes stays alive."""

    def run(*inputs: Tensor) -> list[Tensor]:
        pool = list(inputs)
        for _ in range(choose.randint(3, 12)):
            a, b = choose.choice(pool[-6:]), choose.choice(pool[-6:])
            if choose.random() < 0.3:
                target = choose.choice(IN_PLACE)
                target(a, b.clone() if a is b or a._base is b._base is not None or b._base is a else b)
                continue
            view = choose.choice(VIEWS) if a.is_contiguous() else VIEWS[0]
            pool.extend(t for t in choose.choice(PURE)(view(a), b) if t.shape == (N, N))
        return [t for t in pool if choose.random() < 0.3] or pool[-1:]

    return run


@pytest.mark.parametrize("seed", range(60))
def test_a_random_program_is_kept(record, seed):
    torch.manual_seed(seed)
    choose = random.Random(seed)  # noqa: S311
    recording = record(program(choose), *(torch.randn(N, N) for _ in range(3)))
    check(parse(recording.tape), recording.tape)
    if recording.live_windows():
        recording.assert_same()
