# CARD: 32GiB
# KNOBS: BATCH=4 PROMPT=8192 NEW_TOKENS=24 KEEP_LAST CAST=all PREFILL_CHUNK NO_GRAD
# EXPERT: weights 15 GiB and a KV cache of 4 GiB fit; the first forward makes the logits of all 4 x 8192 positions of the prompts for 128256 words (7.8 GiB in bf16) and their float copy (15.7 GiB), of which only the last row is used; logits_to_keep=1, float() only of the last row, the prompt in chunks of 1024, batch 2 or prompts of 4096; fewer new tokens is not enough, and it runs under no_grad already
# Source: huggingface/transformers 30860 (logits = logits.float() in most ModelForCausalLM more than doubles the peak of generate with Llama 3), QwenLM/Qwen3 570 ('when the input is as long as 128k it substantially increases memory'); transformers model
import os
import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicCache

import knobs

BATCH = int(os.environ.get("BATCH", 4))
PROMPT = int(os.environ.get("PROMPT", 8192))
NEW_TOKENS = int(os.environ.get("NEW_TOKENS", 24))
KEEP_LAST = os.environ.get("KEEP_LAST", "0") == "1"      # lm_head only for the last position
CAST = os.environ.get("CAST", "all")                     # float() of all logits or of the last row
PREFILL_CHUNK = int(os.environ.get("PREFILL_CHUNK", 0))  # tokens of the prompt at a time

# Meta-Llama-3-8B-Instruct
config = LlamaConfig(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
                     num_key_value_heads=8, max_position_embeddings=16384, rope_parameters={"rope_type": "default", "rope_theta": 500000.0})
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = LlamaForCausalLM(config)
torch.set_default_dtype(torch.float32)
model = knobs.apply(model).eval()
print(f"weights {torch.cuda.memory_allocated() / 2**30:.1f} GiB")


def next_token(input_ids, cache):
    kw = {"logits_to_keep": 1} if KEEP_LAST else {}
    out = model(input_ids=input_ids, past_key_values=cache, use_cache=True, **kw)
    if CAST == "all":
        logits = out.logits.float()
        return logits[:, -1].argmax(-1, keepdim=True)
    return out.logits[:, -1].float().argmax(-1, keepdim=True)


@torch.no_grad()
def generate(input_ids, max_new_tokens):
    cache = DynamicCache(config=config)
    pieces = input_ids.split(PREFILL_CHUNK, dim=1) if PREFILL_CHUNK else [input_ids]
    for piece in pieces:
        token = next_token(piece, cache)
    output = [token]
    for _ in range(max_new_tokens - 1):
        token = next_token(token, cache)
        output.append(token)
    return torch.cat(output, 1)


def evaluate(samples):
    g = torch.Generator().manual_seed(0)
    t0, n = time.time(), 0
    for i in range(0, samples, BATCH):
        documents = torch.randint(0, config.vocab_size, (BATCH, PROMPT), generator=g).cuda()
        summary = generate(documents, NEW_TOKENS)
        n += summary.numel()
        print(f"{i + BATCH}/{samples} documents, {n} tokens, {time.time() - t0:.1f} s", file=sys.stderr)
    return n


if __name__ == "__main__":
    evaluate(2 * BATCH)
