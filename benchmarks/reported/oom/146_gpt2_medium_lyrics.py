# CARD: 16GiB
# KNOBS: BATCH=8 CHECKPOINT=GPT2Block AUTOCAST OPT DTYPE=bf16
# EXPERT: 355M parameters in fp32 Adam (5.3 GiB) and the activations of 24 blocks at 8 x 1024; gradient checkpointing, smaller batch, bf16
# CHECKPOINT=1: model.gradient_checkpointing_enable(); OPT=adamw|adafactor|sgd; DTYPE=bf16: weights in bf16
import os

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

DEVICE = "cuda"
EPOCHS = 1
MAX_STEPS = 2
BATCH_SIZE = int(os.environ.get("BATCH", 8))
SEQ_LEN = 1024


def on(name):
    return os.environ.get(name, "") not in ("", "0")


class SongLyrics(Dataset):
    def __init__(self, n=64, truncate=SEQ_LEN):
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.lyrics = [torch.randint(0, 50257, (truncate,), generator=g) for _ in range(n)]

    def __len__(self):
        return len(self.lyrics)

    def __getitem__(self, item):
        return self.lyrics[item]


def get_model():
    config = GPT2Config(n_embd=1024, n_layer=24, n_head=16, n_positions=SEQ_LEN, use_cache=False,
                        bos_token_id=50256, eos_token_id=50256)
    dtype = torch.bfloat16 if os.environ.get("DTYPE") == "bf16" else torch.float32
    old = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(DEVICE):
            model = GPT2LMHeadModel(config)
    finally:
        torch.set_default_dtype(old)
    if on("CHECKPOINT"):
        model.gradient_checkpointing_enable()
    return model


def get_optimizer(model, lr):
    name = os.environ.get("OPT", "adamw").lower()
    if name == "adafactor":
        return torch.optim.Adafactor(model.parameters(), lr=lr)
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=lr)
    return torch.optim.AdamW(model.parameters(), lr=lr)


def train(dataset, model, lr=2e-5, warmup_steps=200):
    model.train()
    optimizer = get_optimizer(model, lr)
    scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=warmup_steps, num_training_steps=10000)
    loader = DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True, drop_last=True)
    for epoch in range(EPOCHS):
        print(f"Training epoch {epoch}")
        for idx, entry in enumerate(loader):
            if idx == MAX_STEPS:
                break
            input_tensor = entry.to(DEVICE)
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=on("AUTOCAST")):
                outputs = model(input_tensor, labels=input_tensor)
            loss = outputs[0]
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            print(idx, loss.item())


if __name__ == "__main__":
    torch.manual_seed(0)
    train(SongLyrics(), get_model())
    print("PEAK", torch.cuda.max_memory_allocated())
