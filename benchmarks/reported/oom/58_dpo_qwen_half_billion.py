# CARD: 32GiB
# KNOBS: BATCH=4 MAX_LENGTH=1024 GRAD_CKPT LORA PRECOMPUTE_REF COMPLETION_ONLY AUTOCAST DTYPE=bf16 CHECKPOINT=Qwen2DecoderLayer OPT FUSED
# EXPERT: per step 8 sequences (chosen and rejected) of 1024 tokens: the activations of 24 layers (more than 20 GiB in fp32) and several copies of the logits for 151936 words, 4.6 GiB each (log-softmax, its gradient, the gathered one); policy, reference, gradients and Adam states are about 10 GiB; batch 2, gradient checkpointing (or of the decoder layers), or sequences of 512; bf16 autocast, a bf16 model, LoRA without a reference copy, precomputed reference log-probabilities, logits of the completions only or SGD is not enough alone
# Source: huggingface/trl 3168 (DPO of Qwen2.5-0.5B is out of memory on an A100 80G; loaded in fp32, full-vocabulary logits of the whole batch), 2452 (out of memory in torch.gather(logits.log_softmax(-1), ...)); transformers and peft, the loss written by hand
import copy
import os
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from transformers import HfArgumentParser, Qwen2Config, Qwen2ForCausalLM, get_linear_schedule_with_warmup

import knobs

flag = lambda name: os.environ.get(name, "0") == "1"


@dataclass
class DPOArguments:
    per_device_train_batch_size: int = field(default=int(os.environ.get("BATCH", 4)))
    max_length: int = field(default=int(os.environ.get("MAX_LENGTH", 1024)))
    prompt_length: int = field(default=256)
    beta: float = field(default=0.1)
    learning_rate: float = field(default=1e-6)
    gradient_checkpointing: bool = field(default=flag("GRAD_CKPT"))
    use_lora: bool = field(default=flag("LORA"))
    precompute_ref_log_probs: bool = field(default=flag("PRECOMPUTE_REF"))
    completion_logits_only: bool = field(default=flag("COMPLETION_ONLY"))
    max_steps: int = field(default=2)


args, = HfArgumentParser(DPOArguments).parse_args_into_dataclasses()

# Qwen2.5-0.5B-Instruct, loaded without a dtype
config = Qwen2Config(vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
                     num_key_value_heads=2, max_position_embeddings=32768, tie_word_embeddings=True, use_cache=False)
with torch.device("cuda"):
    model = Qwen2ForCausalLM(config).to(knobs.dtype())
ref_model = None if args.use_lora else copy.deepcopy(model).eval().requires_grad_(False)
if args.gradient_checkpointing:
    model.gradient_checkpointing_enable({"use_reentrant": False})
if args.use_lora:
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM"))
model = knobs.apply(model).train()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=args.learning_rate)
scheduler = get_linear_schedule_with_warmup(optimizer, 10, 1000)


def concatenated_forward(m, ids):
    """log-probabilities of the completions, chosen and rejected in one batch"""
    keep = args.max_length - args.prompt_length + 1 if args.completion_logits_only else 0
    logits = m(input_ids=ids, logits_to_keep=keep).logits.float()
    labels = ids.clone()
    labels[:, : args.prompt_length] = -100
    labels = labels[:, -logits.shape[1]:]
    logits, labels = logits[:, :-1], labels[:, 1:]
    mask = labels != -100
    labels = labels.masked_fill(~mask, 0)
    per_token = torch.gather(logits.log_softmax(-1), 2, labels.unsqueeze(2)).squeeze(2)
    logps = (per_token * mask).sum(-1)
    b = ids.shape[0] // 2
    return logps[:b], logps[b:]


def reference_logps(ids):
    with torch.no_grad():
        if ref_model is None:
            with model.disable_adapter():
                return concatenated_forward(model, ids)
        return concatenated_forward(ref_model, ids)


g = torch.Generator().manual_seed(42)
batches = []
for _ in range(args.max_steps):
    prompt = torch.randint(0, config.vocab_size, (args.per_device_train_batch_size, args.prompt_length), generator=g)
    answers = torch.randint(0, config.vocab_size, (2 * args.per_device_train_batch_size, args.max_length - args.prompt_length), generator=g)
    batches.append(torch.cat([prompt.repeat(2, 1), answers], 1))
stored = None
if args.precompute_ref_log_probs:
    stored = [[torch.cat(x) for x in zip(*[reference_logps(pair.cuda()) for pair in torch.stack(b.chunk(2), 1).flatten(1).view(-1, 2, args.max_length)])] for b in batches]
    if ref_model is not None:
        del ref_model

for step, ids in enumerate(batches):
    ids = ids.cuda()
    with knobs.autocast():
        chosen, rejected = concatenated_forward(model, ids)
        ref_chosen, ref_rejected = stored[step] if stored else reference_logps(ids)
    margin = args.beta * ((chosen - ref_chosen) - (rejected - ref_rejected))
    loss = -F.logsigmoid(margin).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    print({"step": step, "loss": round(loss.item(), 4), "rewards/margins": round(margin.mean().item(), 4)})
