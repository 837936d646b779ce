# CARD: 40GiB
# KNOBS: BATCH=4 CHECKPOINT=MistralDecoderLayer CHUNKS
# EXPERT: 14 GB of frozen bf16 weights, the rest are activations of 4 x 1304 tokens through 32 layers without checkpointing, and the logits; micro batch 1-2, gradient checkpointing, QLoRA
# after Lightning-AI/litgpt issue 781
import os

import torch
from peft import LoraConfig, get_peft_model
from transformers import MistralConfig, MistralForCausalLM

import knobs

micro_batch_size = int(os.environ.get("BATCH", 4))
max_seq_length = 1304  # the longest of alpaca
learning_rate = 3e-4
lora_r, lora_alpha, lora_dropout = 8, 16, 0.05
max_iters = 4
gradient_accumulation_iters = 2


def get_batch(i):
    ids = torch.randint(3, 32000, (micro_batch_size, max_seq_length))
    mask = torch.ones_like(ids)
    labels = ids.clone()
    for row in range(micro_batch_size):
        end = max_seq_length - 90 * row
        mask[row, end:] = 0
        labels[row, end:] = -100
        labels[row, :60 + i] = -100
    return ids.cuda(), mask.cuda(), labels.cuda()


def main():
    config = MistralConfig(vocab_size=32000, hidden_size=4096, intermediate_size=14336,
                           num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
                           max_position_embeddings=32768, sliding_window=4096, use_cache=False)
    torch.set_default_dtype(torch.bfloat16)  # --precision bf16-true
    with torch.device("cuda"):
        model = MistralForCausalLM(config)
    peft_config = LoraConfig(r=lora_r, lora_alpha=lora_alpha, lora_dropout=lora_dropout,
                             target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(model, peft_config, autocast_adapter_dtype=False)
    torch.set_default_dtype(torch.float32)
    model.print_trainable_parameters()
    knobs.apply(model)
    model.train()
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=learning_rate, weight_decay=0.01)

    for i in range(max_iters):
        ids, mask, labels = get_batch(i)
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        (loss / gradient_accumulation_iters).backward()
        if (i + 1) % gradient_accumulation_iters == 0:
            optimizer.step()
            optimizer.zero_grad()
        print(f"iter {i}: loss {loss.item():.4f}")
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
