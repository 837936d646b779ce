# CARD: 40GiB
# KNOBS: BATCH=24 SEQ_LEN=150 ACCUM=4 AUTOCAST CHECKPOINT=MambaBlock CHECKPOINT_PATHS=backbone.layers.* CHUNKS OPT FUSED DTYPE=bf16
# EXPERT: without the fused kernels the scan of each of 32 layers keeps (batch, 1536, length, 16) tensors: discrete A, discrete B, the input term and the state of every time step, about five of them; install mamba-ssm/causal-conv1d, smaller micro-batch (accumulation is there already), shorter sequences, checkpoint the blocks; bf16 autocast (the scan stays fp32), a chunked loss for the 108k words or the optimizer is not enough alone
# Source: state-spaces/mamba 657 (MambaConfig with vocab 108192, sequences of 150, the batch had to be a small part of BERT's), johnma2006/mamba-minimal 21; transformers model
import os

import torch
import torch.nn.functional as F
from transformers import MambaConfig, MambaForCausalLM, get_cosine_schedule_with_warmup

import knobs

batch_size = int(os.environ.get("BATCH", 24))
seq_len = int(os.environ.get("SEQ_LEN", 150))
accumulation = int(os.environ.get("ACCUM", 4))
max_steps = 3

config = MambaConfig(vocab_size=108192, use_cache=False)
with torch.device("cuda"):
    model = MambaForCausalLM(config)
model.to(knobs.dtype())
model = knobs.apply(model).train()
n = sum(p.numel() for p in model.parameters())
print(f"{n / 1e6:.0f}M parameters")

decay = [p for p in model.parameters() if p.dim() >= 2]
no_decay = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}], lr=6e-4, betas=(0.9, 0.95))
scheduler = get_cosine_schedule_with_warmup(optimizer, 1000, 100_000)

g = torch.Generator().manual_seed(0)
for step in range(max_steps):
    total = torch.zeros((), device="cuda")
    for micro in range(accumulation):
        ids = torch.randint(0, config.vocab_size, (batch_size, seq_len), generator=g).cuda()
        with knobs.autocast():
            logits = model(input_ids=ids).logits
        loss = F.cross_entropy(logits[:, :-1].reshape(-1, config.vocab_size).float(), ids[:, 1:].reshape(-1))
        (loss / accumulation).backward()
        total += loss.detach()
        del logits, loss
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"step {step} loss {total.item() / accumulation:.4f} lr {scheduler.get_last_lr()[0]:.2e}")
