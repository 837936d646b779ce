# CARD: 80GiB
# KNOBS: BATCH=2 MAX_LEN=8192 RANK=16 AUTOCAST CHECKPOINT=LlamaDecoderLayer CHECKPOINT_PATHS=model.layers.* CHUNKS OPT FUSED
# EXPERT: the frozen 8B base is only 16 GB in bf16; the activations of 32 layers at 2x8192 tokens and the 128k-vocabulary logits are what does not fit; gradient checkpointing, shorter sequences or batch 1; a chunked loss alone, a smaller LoRA rank or another optimizer is not enough
# Source: LoRA on 8B-12B models with long max_seq_length running out though "adapters are tiny" (unslothai/unsloth 2366, meta-pytorch/torchtune 1694, mlx 1406)
import math
import os

import torch
import torch.nn as nn
from transformers import AutoModelForCausalLM, LlamaConfig

import knobs

max_seq_length = int(os.environ.get("MAX_LEN", 8192))
micro_batch = int(os.environ.get("BATCH", 2))
lora_r = int(os.environ.get("RANK", 16))
lora_alpha = 32
target_modules = ["q_proj", "k_proj", "v_proj", "o_proj"]
accumulate = 2


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, r, alpha):
        super().__init__()
        self.base = base
        kw = dict(device=base.weight.device, dtype=base.weight.dtype)
        self.lora_A = nn.Parameter(torch.empty(r, base.in_features, **kw))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r, **kw))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.scaling = alpha / r

    def forward(self, x):
        return self.base(x) + (x @ self.lora_A.T @ self.lora_B.T) * self.scaling


def add_lora(module):
    for name, child in module.named_children():
        if isinstance(child, nn.Linear) and name in target_modules:
            setattr(module, name, LoRALinear(child, lora_r, lora_alpha))
        else:
            add_lora(child)


# Llama-3.1-8B
cfg = LlamaConfig(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                  num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=131072,
                  rope_theta=500000.0, use_cache=False)
with torch.device("cuda"):
    model = AutoModelForCausalLM.from_config(cfg, dtype=torch.bfloat16, attn_implementation="sdpa")
for p in model.parameters():
    p.requires_grad = False
add_lora(model)
knobs.apply(model)
model.train()

trainable = [p for p in model.parameters() if p.requires_grad]
print(f"trainable params: {sum(p.numel() for p in trainable):,} || all params: "
      f"{sum(p.numel() for p in model.parameters()):,}")
optimizer = torch.optim.AdamW(trainable, lr=2e-4)


def packed_samples(n):
    for _ in range(n):
        ids = torch.randint(0, cfg.vocab_size, (micro_batch, max_seq_length))
        yield {"input_ids": ids, "labels": ids.clone()}


running = 0
for i, batch in enumerate(packed_samples(4)):
    batch = {k: v.cuda() for k, v in batch.items()}
    with knobs.autocast():
        loss = model(**batch).loss / accumulate
    loss.backward()
    running += loss.item()
    if (i + 1) % accumulate == 0:
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {(i + 1) // accumulate}: {running:.3f}")
        running = 0

print("PEAK", torch.cuda.max_memory_allocated())
