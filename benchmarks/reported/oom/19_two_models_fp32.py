# CARD: 16GiB
# KNOBS: BATCH=8 AUTOCAST DTYPE=bf16
# EXPERT: an LLM and a reward model of 5B parameters together are loaded in fp32; load them in bf16/fp16 (or 4 bit), or one after the other
import os

import torch
from transformers import (AutoModelForCausalLM, AutoModelForSequenceClassification, LlamaConfig,
                          Qwen2Config)

import knobs

device = "cuda"
BATCH = int(os.environ.get("BATCH", 8))
N_SAMPLES = 24


def load_policy():
    """3B chat model that writes the answers"""
    config = LlamaConfig(
        vocab_size=32000, hidden_size=3200, intermediate_size=8640,
        num_hidden_layers=26, num_attention_heads=32, max_position_embeddings=2048,
    )
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=knobs.dtype())


def load_reward_model():
    """1.5B model with one score"""
    config = Qwen2Config(
        vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28,
        num_attention_heads=12, num_key_value_heads=2, num_labels=1, pad_token_id=0,
    )
    with torch.device(device):
        return AutoModelForSequenceClassification.from_config(config, dtype=knobs.dtype())


def gib():
    return f"{torch.cuda.memory_allocated() / 2**30:.1f} GiB"


def answer_logprobs(model, input_ids, answer_start):
    out = model(input_ids=input_ids, use_cache=False)
    logits = out.logits[:, answer_start - 1:-1].float()
    logp = logits.log_softmax(-1)
    return logp.gather(-1, input_ids[:, answer_start:, None]).squeeze(-1).sum(-1)


def rewards(model, input_ids):
    return model(input_ids=input_ids, attention_mask=torch.ones_like(input_ids)).logits.squeeze(-1)


def main():
    torch.manual_seed(0)
    # inference only, no gradients are needed
    torch.set_grad_enabled(False)

    policy = load_policy()
    policy.eval()
    print("policy loaded:", gib())

    reward_model = load_reward_model()
    reward_model.eval()
    print("reward model loaded:", gib())

    results = []
    for start in range(0, N_SAMPLES, BATCH):
        input_ids = torch.randint(1, 32000, (BATCH, 384)).to(device)
        with knobs.autocast():
            logp = answer_logprobs(policy, input_ids, answer_start=128)
            score = rewards(reward_model, input_ids)
        for lp, s in zip(logp.tolist(), score.tolist()):
            results.append({"logp": lp, "score": s})
        print(f"{len(results)}/{N_SAMPLES} scored, {gib()}")

    results.sort(key=lambda r: -r["score"])
    print("best:", results[0])
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
