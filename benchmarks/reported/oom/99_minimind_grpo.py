# CARD: 4.75GiB
# KNOBS: BATCH=4 NUM_GENERATIONS=8 MAX_GEN_LEN=128 REWARD_FIRST CHECKPOINT=LlamaDecoderLayer
# EXPERT: the 1.8B reward model in fp16 stays on the card all the time (3.2 of the 4.75 GiB), beside policy, reference and the policy's graph over all generations; take it off the GPU or a smaller one, fewer or shorter generations, gradient checkpointing; scoring before the policy forward (what the report did) does not lower the peak here
# after jingyaogong/minimind issue 758 (https://github.com/jingyaogong/minimind/issues/758), train_grpo.py on 8 GB with a desktop on it
import os

import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel

import knobs

args = dict(batch_size=int(os.environ.get("BATCH", 4)), num_generations=int(os.environ.get("NUM_GENERATIONS", 8)),
            max_gen_len=int(os.environ.get("MAX_GEN_LEN", 128)), max_seq_len=66, beta=0.02, learning_rate=8e-8,
            steps=2, accumulation_steps=1)
reward_first = os.environ.get("REWARD_FIRST") == "1"
reward_device = "cpu" if os.environ.get("REWARD_CPU") == "1" else "cuda"


def init_model():
    """MiniMind2-small: 512 x 8"""
    config = LlamaConfig(vocab_size=6400, hidden_size=512, intermediate_size=1408, num_hidden_layers=8,
                         num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=4096,
                         tie_word_embeddings=True, bos_token_id=1, eos_token_id=None, pad_token_id=0)
    return LlamaForCausalLM(config).cuda()


class RewardModel(torch.nn.Module):
    """internlm2-1_8b-reward"""

    def __init__(self):
        super().__init__()
        config = LlamaConfig(vocab_size=92544, hidden_size=2048, intermediate_size=8192, num_hidden_layers=24,
                             num_attention_heads=16, num_key_value_heads=8, max_position_embeddings=32768,
                             use_cache=False)
        torch.set_default_dtype(torch.float16)
        with torch.device(reward_device):
            self.model = LlamaModel(config)
            self.v_head = torch.nn.Linear(2048, 1, bias=False)
        torch.set_default_dtype(torch.float32)

    @torch.no_grad()
    def get_score(self, ids):
        h = self.model(ids.to(reward_device)).last_hidden_state
        return self.v_head(h[:, -1]).float().view(-1)


def calculate_rewards(outputs, reward_model):
    rewards = []
    for row in outputs:
        # the reward model has another tokenizer: about the same length
        ids = torch.randint(0, 92544, (1, row.shape[0] + 30))
        rewards.append(reward_model.get_score(ids)[0].clamp(-3, 3))
    return torch.stack(rewards).cuda()


def get_per_token_logps(mdl, input_ids, n_keep):
    logits = mdl(input_ids, logits_to_keep=n_keep + 1).logits[:, :-1, :]
    ids = input_ids[:, -n_keep:]
    per_token = []
    for l, i in zip(logits, ids):
        per_token.append(torch.gather(l.log_softmax(dim=-1), 1, i.unsqueeze(1)).squeeze(1))
    return torch.stack(per_token)


@torch.no_grad()
def rollout(model, ids, temperature=0.8):
    past, x = None, ids
    for _ in range(args["max_gen_len"]):
        out = model(x, past_key_values=past, use_cache=True, logits_to_keep=1)
        past = out.past_key_values
        x = torch.multinomial(torch.softmax(out.logits[:, -1] / temperature, -1), 1)
        ids = torch.cat([ids, x], 1)
    return ids


def grpo_train_epoch(model, ref_model, reward_model, optimizer):
    for step in range(1, args["steps"] + 1):
        prompt_ids = torch.randint(3, 6400, (args["batch_size"], args["max_seq_len"]), device="cuda")
        outputs = rollout(model, prompt_ids.repeat_interleave(args["num_generations"], dim=0))
        completion_ids = outputs[:, prompt_ids.size(1):].clone()
        n = completion_ids.size(1)
        if reward_first:
            rewards = calculate_rewards(outputs, reward_model)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            per_token_logps = get_per_token_logps(model, outputs, n)
            with torch.no_grad():
                ref_logps = get_per_token_logps(ref_model, outputs, n)
        if not reward_first:
            rewards = calculate_rewards(outputs, reward_model)
        grouped = rewards.view(-1, args["num_generations"])
        mean_r = grouped.mean(dim=1).repeat_interleave(args["num_generations"])
        std_r = grouped.std(dim=1).repeat_interleave(args["num_generations"])
        advantages = torch.clamp((rewards - mean_r) / (std_r + 1e-4), -10, 10)
        completion_mask = (completion_ids != 2).int()
        kl_div = ref_logps - per_token_logps
        per_token_kl = torch.exp(kl_div) - kl_div - 1
        per_token_loss = -(torch.exp(per_token_logps - per_token_logps.detach()) * advantages.unsqueeze(1)
                           - args["beta"] * per_token_kl)
        loss = ((per_token_loss * completion_mask).sum(dim=1) / completion_mask.sum(dim=1).clamp(min=1)).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.4f} reward {rewards.mean().item():.4f} len {n}")


def main():
    model, ref_model = init_model(), init_model()
    ref_model.eval().requires_grad_(False)
    knobs.apply(model)
    reward_model = RewardModel().eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args["learning_rate"])
    print("models: MiB", torch.cuda.memory_allocated() // 2 ** 20)
    grpo_train_epoch(model, ref_model, reward_model, optimizer)
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
