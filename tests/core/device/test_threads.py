"""Threads share one tape under one lock."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch


def test_threads_record_and_flush_at_once(session):
    weight = torch.eye(8).to("npu")

    def work(seed: int) -> list[float]:
        x = torch.full((8, 8), float(seed)).to("npu")
        out = []
        for _ in range(20):
            x = x @ weight + 1
            out.append(x[0, 0].item())
        return out

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(work, range(4)))
    assert answers == [[float(seed + n) for n in range(1, 21)] for seed in range(4)]


def test_backward_runs_in_the_thread_that_calls_it(session):
    def work(seed: int) -> float:
        x = torch.full((3,), float(seed)).to("npu").requires_grad_()
        (x * x).sum().backward()
        return x.grad[0].item()

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(work, range(1, 4))) == [2, 4, 6]
