"""Mixtures of experts of transformers hold in *shapes* what they hold with values."""

from __future__ import annotations

import re

import pytest
from support import run

CARD = "16GiB,gpu=h100"
SIZES = (
    "vocab_size=500, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, "
    "num_key_value_heads=4"
)
CONFIGURATIONS = {
    "Mixtral": f"{SIZES}, intermediate_size=256, num_local_experts=8",
    "Qwen3Moe": f"{SIZES}, moe_intermediate_size=64, num_experts=64, "
    "num_experts_per_tok=8, head_dim=32",
    # Its attention has values of another width than keys.
    "DeepseekV3": f"{SIZES}, moe_intermediate_size=64, n_routed_experts=32, "
    "num_experts_per_tok=4, n_group=4, topk_group=2, first_k_dense_replace=0, "
    "q_lora_rank=32, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, "
    "v_head_dim=16, intermediate_size=128",
}


def peak_bytes(name: str, experts: str, memory: str) -> int:
    """Of two steps of training, with a loop over experts or with grouped products."""
    code = f"""
import torch
from transformers import {name}Config, {name}ForCausalLM

torch.manual_seed(0)
config = {name}Config({CONFIGURATIONS[name]})
model = {name}ForCausalLM._from_config(config, experts_implementation="{experts}")
model = model.cuda().train()
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
tokens = torch.randint(0, 500, (4, 512)).cuda()
for _ in range(2):
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("peak", torch.cuda.max_memory_allocated())
"""
    done = run(code, card=f"{CARD},memory={memory}", OMP_NUM_THREADS="1")
    assert done.code == 0, done.said
    return int(re.search(r"peak (\d+)", done.out)[1])


@pytest.mark.long
@pytest.mark.parametrize("experts", ["eager", "grouped_mm"])
@pytest.mark.parametrize("name", [*CONFIGURATIONS])
def test_an_untrained_mixture_holds_nearly_what_it_holds_with_values(name, experts):
    # A router that is not trained chooses nearly equally often.
    found, true = (peak_bytes(name, experts, memory) for memory in ("none", "values"))
    assert found == pytest.approx(true, rel=0.002)
    print(f"{name}, {experts}: {found / true:.4f}")
