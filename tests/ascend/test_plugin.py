"""The Ascend package as a plugin: it is the one that answers, its numbers hold, and its HDL's rules are kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

import dsf
from dsf import errors, hdl
from dsf.plugins import registry
from dsf_ascend.isa import ISA
from dsf_ascend.kernels import KERNELS

Enable = Callable[..., Any]


@pytest.fixture
def enable(monkeypatch: pytest.MonkeyPatch) -> Iterator[Enable]:
    for variable in ("DSF_CHIP", "DSF_FIDELITY", "DSF_HDL_PATH"):
        monkeypatch.delenv(variable, raising=False)
    dsf.disable()
    yield lambda **options: dsf.enable("ascend-910b2", **options)
    dsf.disable()


def llama(dtype: torch.dtype = torch.float16) -> LlamaForCausalLM:
    """Two layers, eight heads that share four keys; every dimension a multiple of 16."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4,
        vocab_size=192, max_position_embeddings=64, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(dtype).eval()


IDS = torch.arange(16).reshape(1, 16)


# Who answers


def test_the_installed_plugin_answers_for_its_vendors_chips_only() -> None:
    known = registry()
    view = known.view(hdl.load("ascend-910b2"))
    assert (view.plugin, view.isa()) == ("ascend", ISA)
    assert view.kernels()[: len(KERNELS)] == KERNELS
    assert {k.library for k in view.kernels()[len(KERNELS) :]} == {"generic", "compiled"}
    other = known.view(hdl.load("acme-x1"))
    assert other.plugin == "generic"
    assert not set(KERNELS) & set(other.kernels())


def test_its_default_chip_can_be_enabled(enable: Enable) -> None:
    vendor = registry().vendor("ascend")
    assert vendor is not None
    assert vendor.default_chip == "ascend-910b2"
    session = dsf.enable(vendor.default_chip)
    assert (session.chip.device, session.view.plugin) == ("npu", "ascend")


# Numbers


@torch.no_grad()
def test_executed_programs_agree_with_their_references(enable: Enable) -> None:
    """float16 rounds each operator's result to 11 bits: some twenty roundings of 2**-11 on the way through a layer,
    taken differently only where the sums before them differ in their last bits."""
    found = {}
    for fidelity in ("isa", "operator"):
        enable(fidelity=fidelity)
        found[fidelity] = llama().to("npu")(IDS.to("npu")).logits.cpu().float()
    exact = llama(torch.float32)(IDS).logits
    scale = exact.abs().max()
    assert (found["isa"] - found["operator"]).abs().max() <= 2 * 20 * 2**-11 * scale
    assert (found["isa"] - exact).abs().max() <= 2 * 20 * 2**-11 * scale


def answer(model: LlamaForCausalLM, ids: torch.Tensor) -> list[int]:
    """Four tokens, greedily."""
    tokens, cache = [], None
    for _ in range(4):
        step = model(input_ids=ids, cache=cache, use_cache=True)
        cache, ids = step.cache, step.logits[:, -1].argmax(-1, keepdim=True)
        tokens.append(ids.item())
    return tokens


@torch.no_grad()
def test_every_fidelity_states_the_same_times_and_the_tokens_are_the_cpus(enable: Enable) -> None:
    wanted = answer(llama(torch.float32), IDS[:, :7])
    reports = {}
    for fidelity in ("isa", "operator", "timing"):
        enable(fidelity=fidelity)
        tokens = answer(llama().to("npu"), IDS[:, :7].to("npu"))
        assert tokens == ([0] * 4 if fidelity == "timing" else wanted)
        reports[fidelity] = dsf.report().to_json()
        assert reports[fidelity].pop("fidelity") == fidelity
    assert reports["isa"] == reports["operator"] == reports["timing"]
    assert reports["isa"]["fallbacks"] == []


@torch.no_grad()
def test_executed_flops_are_those_that_torch_counts_and_padding(enable: Enable) -> None:
    """The prompt fills whole tiles of 16 x 16 x 16. One token more is 1 row padded to 16 in every linear layer; in
    attention the two heads that share keys are 2 rows of one tile, and 17 keys are padded to 32."""
    model = llama(torch.float32)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        cache = model(IDS, use_cache=True).cache
    enable()
    ours = llama().to("npu")
    held = ours(IDS.to("npu"), use_cache=True).cache
    flops = dsf.report(reset=True).flops
    assert (flops.wanted, flops.executed, flops.padding) == (counter.get_total_flops(), counter.get_total_flops(), 0)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(IDS[:, :1], cache=cache)
    ours(IDS[:, :1].to("npu"), cache=held)
    flops = dsf.report().flops
    assert flops.wanted == counter.get_total_flops()
    linear = 2 * (2 * 128 * 128 + 2 * 128 * 64 + 3 * 128 * 256) + 128 * 192
    attention = 2 * 8 * 16 * (17 + 17)
    assert flops.wanted == 2 * (linear + attention)
    padded = 2 * 4 * 16 * (32 + 32)
    assert flops.executed == 2 * 16 * (linear + padded)
    assert flops.host == 0


# float64, which the HDL leaves to the host


def test_float64_is_computed_on_the_host_and_priced(enable: Enable) -> None:
    enable()
    x = torch.randn(8, 8, dtype=torch.float64)
    y = x.to("npu") @ x.to("npu")
    assert torch.equal(y.cpu(), x @ x)
    (row,) = dsf.report().fallbacks
    assert (row.what, row.count, row.reason) == ("linear", 1, "chip: the HDL computes float64 on the host")
    assert row.milliseconds == pytest.approx(0.03, rel=1e-2), "two copies and the operation, 10 us each"
    assert dsf.report().flops.host == 2 * 8 * 8 * 8


def test_under_strict_float64_is_an_error_that_names_the_tensor(enable: Enable) -> None:
    enable(strict=True)
    x = torch.randn(8, 6, dtype=torch.float64).to("npu")
    assert x.shape == (8, 6), "to hold it is no computation"
    y = x * 2
    sentence = (
        "DSF-N010: outside any module: elementwise on a [8, 6] tensor of float64; ascend-910b2 computes it by way of "
        f"host, which strict forbids (recorded at {__file__}:"
    )
    with pytest.raises(errors.DtypeError, match=f"^{re.escape(sentence)}") as caught:
        y.cpu()
    assert caught.value.exit_status == 2


def test_an_eight_bit_float_can_be_held_but_not_computed(enable: Enable) -> None:
    enable()
    x = torch.randn(4, 4).to(torch.float8_e4m3fn)
    there = x.to("npu")
    assert torch.equal(there.cpu().view(torch.uint8), x.view(torch.uint8))
    y = there.to(torch.float32)
    with pytest.raises(errors.DtypeError, match=r"a \[4, 4\] tensor of float8_e4m3fn; ascend-910b2 cannot compute it"):
        y.cpu()
