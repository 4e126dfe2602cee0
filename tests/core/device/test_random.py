"""Random numbers have a seed, the one that scripts already set."""

from __future__ import annotations

import pytest
import torch
from torch import nn

DRAWS = {
    "randn": lambda where: torch.randn(4, device=where),
    "rand": lambda where: torch.rand(4, device=where),
    "randint": lambda where: torch.randint(0, 100, (4,), device=where),
    "randperm": lambda where: torch.randperm(6, device=where),
    "normal_": lambda where: torch.empty(4, device=where).normal_(2.0, 3.0),
    "bernoulli": lambda where: torch.bernoulli(torch.full((8,), 0.5, device=where)),
    "multinomial": lambda where: torch.multinomial(torch.ones(2, 5, device=where), 3),
    "rand_like": lambda where: torch.rand_like(torch.ones(3, device=where)),
    "kaiming": lambda where: nn.init.kaiming_uniform_(torch.empty(3, 3, device=where)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_seed_gives_the_cpus_numbers(session, name):
    torch.manual_seed(7)
    wanted = DRAWS[name]("cpu")
    torch.manual_seed(7)
    torch.rand(5)  # the device has a generator of its own
    assert torch.equal(DRAWS[name]("npu").cpu(), wanted)


def test_the_device_draws_on_and_can_be_seeded_alone(session):
    torch.npu.manual_seed(1)
    first, second = torch.rand(2, device="npu").tolist(), torch.rand(2, device="npu").tolist()
    assert first != second
    torch.npu.manual_seed(1)
    assert torch.rand(2, device="npu").tolist() == first


def test_drawing_on_the_device_leaves_the_cpus_generator_alone(session):
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    torch.nn.functional.dropout(torch.ones(4, device="npu"))
    torch.randn(4, device="npu")
    assert torch.equal(torch.rand(2), wanted)


def test_a_generator_of_the_device_is_taken(session):
    generator = torch.Generator(device="npu").manual_seed(5)
    assert generator.device == torch.device("npu:0")
    assert isinstance(torch.default_generator, torch.Generator)
    a = torch.rand(3, generator=generator, device="npu")
    b = torch.rand(3, generator=torch.Generator().manual_seed(5))
    assert torch.equal(a.cpu(), b)


def test_the_state_can_be_kept_and_put_back(session):
    state = torch.npu.get_rng_state()
    first = torch.rand(2, device="npu").tolist()
    torch.npu.set_rng_state(state)
    assert torch.rand(2, device="npu").tolist() == first
    with torch.random.fork_rng(device_type="npu"):
        torch.rand(2, device="npu")
    torch.npu.set_rng_state(state)
    assert torch.rand(2, device="npu").tolist() == first


def test_dropout_zeroes_and_scales(session):
    x = torch.nn.functional.dropout(torch.ones(1000, device="npu"), 0.5)
    assert set(x.unique().tolist()) == {0.0, 2.0}
    assert 400 < (x == 0).sum().item() < 600


def test_host_operations_are_priced_and_counted(session):
    torch.rand(4, device="npu")
    torch.nonzero(torch.ones(2, device="npu"))
    assert session.host_ops == ["aten.rand.default", "aten.nonzero.default"]
