"""Matrix FLOPs, as torch.utils.flop_counter counts them."""

from __future__ import annotations

import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from dsf.intent import flops


def x(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def test_a_linear_layer_is_two_m_n_k(record):
    assert flops(record(F.linear, x(2, 3, 8), x(5, 8), x(5)).only("linear")) == 2 * 6 * 5 * 8


def test_a_batched_matmul_counts_its_batches(record):
    assert flops(record(torch.matmul, x(2, 1, 3, 8), x(4, 8, 5)).only("matmul")) == 2 * 8 * 3 * 5 * 8


def test_attention_counts_both_products_and_no_mask(record):
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    q, k, v = x(2, 4, 6, 8), x(2, 4, 6, 8), x(2, 4, 6, 16)
    found = flops(record(attend, q, k, v).only("attention"))
    assert found == 2 * 2 * 4 * 6 * 6 * (8 + 16) == sdpa_flop_count(q.shape, k.shape, v.shape)


def test_an_opaque_convolution_is_counted_by_torch(record):
    """Output 2x5x6x6, each a product of 3x3x3 pairs."""
    recording = record(lambda a, w: torch.conv2d(a, w), x(2, 3, 8, 8), x(5, 3, 3, 3))
    assert sum(map(flops, recording.parsed())) == 2 * (2 * 5 * 6 * 6) * 27


def test_a_feed_forward_block_counts_as_torch_does(record):
    def step(a, gate, up, down):
        return F.linear(F.silu(F.linear(a, gate)) * F.linear(a, up), down).softmax(-1)

    inputs = x(3, 8), x(16, 8), x(16, 8), x(8, 16)
    with FlopCounterMode(display=False) as counter:
        step(*inputs)
    assert sum(map(flops, record(step, *inputs).parsed())) == counter.get_total_flops() == 2304


def test_what_contracts_nothing_counts_nothing(record):
    assert [flops(i) for i in record(lambda a: (a * 2).sum(), x(3)).parsed()] == [0, 0]


def test_gradients_that_nobody_asked_for_are_not_counted(record):
    """The weight's gradient alone costs what the convolution does; with the input's it is twice that."""

    def backward(mask):
        def run(grad, a, w):
            return torch.ops.aten.convolution_backward(grad, a, w, [5], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, mask)

        return sum(map(flops, record(run, x(2, 5, 6, 6), x(2, 3, 8, 8), x(5, 3, 3, 3)).parsed()))

    forward = 2 * (2 * 5 * 6 * 6) * 27
    assert backward([False, True, False]) == forward
    assert backward([False, True, True]) == forward
    assert backward([True, True, True]) == 2 * forward
