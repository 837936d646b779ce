# CARD: 48GiB
# KNOBS: BATCH=6 AUTOCAST CHECKPOINT=Qwen2DecoderLayer LOGP_CHUNK REF_BF16 OPT
# EXPERT: chosen and rejected are concatenated (2x batch), so are 24 layers of activations, and log_softmax over 151k words makes several fp32 copies of the logits; smaller batch, checkpoint the layers; chunked log-probabilities, bf16 autocast or a bf16 reference is not enough alone
# Source: DPO runs out where SFT of the same model fits, in the loss over the vocabulary (hiyouga/LlamaFactory 6800, huggingface/trl 1619)
import copy
import os
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, Qwen2Config

import knobs

args = SimpleNamespace(
    beta=0.1,
    max_length=1024,
    max_prompt_length=512,
    per_device_batch=int(os.environ.get("BATCH", 6)),
    logp_chunk=int(os.environ.get("LOGP_CHUNK", "0")),
    lr=5e-7,
    steps=2,
)


def build_models():
    # Qwen2.5-0.5B
    cfg = Qwen2Config(vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
                      num_attention_heads=14, num_key_value_heads=2, tie_word_embeddings=True, use_cache=False)
    with torch.device("cuda"):
        policy = AutoModelForCausalLM.from_config(cfg)
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    if os.environ.get("REF_BF16", "0") == "1":
        reference = reference.to(torch.bfloat16)
    return knobs.apply(policy), reference


def preference_batch(n):
    """prompt + chosen / prompt + rejected, padded to max_length"""
    def side():
        ids = torch.randint(0, 151643, (n, args.max_length))
        labels = ids.clone()
        labels[:, : args.max_prompt_length] = -100
        return ids, labels
    (ci, cl), (ri, rl) = side(), side()
    return {"chosen_ids": ci, "chosen_labels": cl, "rejected_ids": ri, "rejected_labels": rl}


def gather_logps(logits, labels):
    logps = logits.float().log_softmax(-1)
    return torch.gather(logps, 2, labels.unsqueeze(2)).squeeze(2)


def get_batch_logps(logits, labels):
    labels = labels[:, 1:].clone()
    logits = logits[:, :-1, :]
    loss_mask = labels != -100
    labels[labels == -100] = 0
    if args.logp_chunk:
        parts = []
        for a in range(0, labels.shape[1], args.logp_chunk):
            sl = slice(a, a + args.logp_chunk)
            parts.append(checkpoint(gather_logps, logits[:, sl], labels[:, sl], use_reentrant=False))
        token_logps = torch.cat(parts, 1)
    else:
        token_logps = gather_logps(logits, labels)
    return (token_logps * loss_mask).sum(-1)


def concatenated_forward(model, batch):
    ids = torch.cat([batch["chosen_ids"], batch["rejected_ids"]])
    labels = torch.cat([batch["chosen_labels"], batch["rejected_labels"]])
    with knobs.autocast():
        logits = model(input_ids=ids).logits
    logps = get_batch_logps(logits, labels)
    return logps.chunk(2)


def dpo_loss(pc, pr, rc, rr):
    margin = (pc - pr) - (rc - rr)
    return -F.logsigmoid(args.beta * margin).mean(), (margin > 0).float().mean()


policy, reference = build_models()
optimizer = torch.optim.RMSprop(policy.parameters(), lr=args.lr) if not os.environ.get("OPT") else \
    torch.optim.AdamW(policy.parameters(), lr=args.lr)

for step in range(args.steps):
    batch = {k: v.cuda() for k, v in preference_batch(args.per_device_batch).items()}
    with torch.no_grad():
        ref_chosen, ref_rejected = concatenated_forward(reference, batch)
    pol_chosen, pol_rejected = concatenated_forward(policy, batch)
    loss, acc = dpo_loss(pol_chosen, pol_rejected, ref_chosen, ref_rejected)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print({"step": step, "loss": loss.item(), "rewards/accuracy": acc.item()})

print("PEAK", torch.cuda.max_memory_allocated())
