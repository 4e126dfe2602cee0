"""Unmodified Hugging Face models: the tokens of the CPU, one flush per token, equal layers recorded alike."""

from __future__ import annotations

import pytest
import torch

from dsf import device

transformers = pytest.importorskip("transformers", reason="the `models` extra is not installed")

CAPACITY = 1 << 26


def llama(dtype: torch.dtype, **changes):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=97, max_position_embeddings=64, eos_token_id=None, pad_token_id=0, **changes,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).to(dtype).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_greedy_generation_gives_the_cpus_tokens(session, dtype):
    model = llama(dtype)
    prompt = torch.tensor([[3, 14, 15, 92, 65], [35, 89, 79, 32, 38]])
    wanted = model.generate(prompt, max_new_tokens=8, do_sample=False)
    model.to("npu")
    assert torch.equal(model.generate(prompt.to("npu"), max_new_tokens=8, do_sample=False).cpu(), wanted)
    assert session.host_ops == []


@pytest.mark.parametrize(
    "options", [{"num_beams": 2}, {"cache_implementation": "static"}, {"use_cache": False}], ids=str
)
def test_other_ways_to_generate_give_the_cpus_tokens(session, options):
    model = llama(torch.float32, tie_word_embeddings=True)
    prompt = torch.tensor([[3, 14, 15, 92, 65]])
    wanted = model.generate(prompt, max_new_tokens=4, do_sample=False, **options)
    model.to("npu")
    assert torch.equal(model.generate(prompt.to("npu"), max_new_tokens=4, do_sample=False, **options).cpu(), wanted)


def test_sampling_with_a_seed_repeats(session):
    model = llama(torch.float32).to("npu")
    prompt = torch.tensor([[3, 14, 15]]).to("npu")
    runs = []
    for _ in range(2):
        torch.manual_seed(11)
        runs.append(model.generate(prompt, max_new_tokens=6, do_sample=True, top_k=5, temperature=2.0).tolist())
    assert runs[0] == runs[1]


def test_eager_attention_and_padding_give_the_cpus_logits(session):
    model = llama(torch.float32, attn_implementation="eager")
    batch = {"input_ids": torch.tensor([[0, 0, 5], [7, 8, 9]]), "attention_mask": torch.tensor([[0, 0, 1], [1, 1, 1]])}
    with torch.no_grad():
        wanted = model(**batch).logits
        ours = model.to("npu")(**{k: v.to("npu") for k, v in batch.items()}).logits
    torch.testing.assert_close(ours.cpu(), wanted)


@torch.no_grad()
def test_a_decode_step_is_one_flush_and_its_layers_share_signatures(session):
    model = llama(torch.float16).to("npu")
    model.generate(torch.tensor([[3, 14, 15]]).to("npu"), max_new_tokens=4, do_sample=False)
    steps = [t for t in session.tapes if any(op.target == "aten.linear.default" for op in t.ops)]
    assert len(steps) == 4
    for step in steps:
        layers = [
            [op.signature.id for op in step.ops if op.scope.path.startswith(f"model.layers.{n}.")] for n in range(2)
        ]
        assert layers[0] == layers[1]
        assert len(layers[0]) > 30
    scopes = {(op.scope.path, op.scope.module) for op in steps[1].ops}
    assert ("model.layers.1.self_attn", "LlamaAttention") in scopes
    assert ("model.layers.0.mlp.gate_proj", "Linear") in scopes


@torch.no_grad()
def test_weights_are_constant_buffers_of_every_step(session):
    model = llama(torch.float16).to("npu")
    model(torch.tensor([[3, 14, 15]]).to("npu"))
    device.flush()
    tape = session.tapes[-1]
    weights = [op.args[1].buffer for op in tape.ops if op.target == "aten.linear.default"]
    assert len(weights) == 15
    assert all(tape.buffers[n].constant and tape.buffers[n].address is not None for n in weights)


def test_training_a_model_equals_the_cpu(session):
    losses = []
    for where in ("cpu", "npu"):
        model = llama(torch.float32).train().to(where)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        ids = torch.tensor([[3, 14, 15, 92, 65]]).to(where)
        for _ in range(2):
            loss = model(ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
