# CARD: 24GiB
# KNOBS: BATCH=2 AUTOCAST CHECKPOINT=Qwen2DecoderLayer OPT FUSED CHUNKS DTYPE=bf16
# EXPERT: full fp32 fine-tuning of 1.5B with AdamW needs 16 bytes/parameter (24.7 GB); LoRA, 8-bit/Adafactor or bf16 weights, not the batch
import os

import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import AutoModelForCausalLM, Qwen2Config

import knobs

MAX_LEN = 512
BATCH_SIZE = int(os.environ.get("BATCH", 2))
LR = 1e-5
STEPS = 3
device = torch.device("cuda:0")


def load_model():
    # Qwen2-1.5B
    config = Qwen2Config(
        vocab_size=151936,
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
    )
    with device:
        model = AutoModelForCausalLM.from_config(config)
    model.config.use_cache = False
    return model


def build_sft_dataset(n_examples, vocab_size=151936):
    """prompt tokens are masked with -100 as usual, only the answer is learned"""
    input_ids = torch.randint(0, vocab_size, (n_examples, MAX_LEN))
    labels = input_ids.clone()
    labels[:, :128] = -100
    attention_mask = torch.ones_like(input_ids)
    return TensorDataset(input_ids, attention_mask, labels)


def main():
    torch.manual_seed(0)
    model = load_model()
    model = knobs.apply(model)
    n_params = sum(p.numel() for p in model.parameters() if p.requires_grad)
    print(f"trainable params: {n_params / 1e9:.2f}B")
    print(f"memory after loading: {torch.cuda.memory_allocated() / 2**30:.2f} GiB")

    loader = DataLoader(build_sft_dataset(STEPS * BATCH_SIZE), batch_size=BATCH_SIZE, shuffle=True)
    decay = [p for n, p in model.named_parameters() if p.dim() >= 2]
    no_decay = [p for n, p in model.named_parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [
            {"params": decay, "weight_decay": 0.1},
            {"params": no_decay, "weight_decay": 0.0},
        ],
        lr=LR,
        betas=(0.9, 0.95),
    )

    model.train()
    for step, (input_ids, attention_mask, labels) in enumerate(loader):
        with knobs.autocast():
            out = model(
                input_ids=input_ids.to(device),
                attention_mask=attention_mask.to(device),
                labels=labels.to(device),
            )
        loss = out.loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.3f} "
              f"mem {torch.cuda.memory_allocated() / 2**30:.2f} GiB")
        del out, loss

    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
