# CARD: 5GiB
# KNOBS: BATCH=128 MINI_BATCH=8 RESPONSE=48 DROP_LOGITS SELECTIVE AUTOCAST OPT
# EXPERT: mini batches do not help: the forward pass before PPO keeps the logits of all of them (128 x 64 x 50257 floats, 1.5 GiB) for the policy and again for the reference, and torch.cat doubles them for a moment; do not keep logits (DROP_LOGITS, as the pull request did), BATCH=64, AUTOCAST (bf16 logits); not enough: MINI_BATCH, SELECTIVE, OPT=adafactor, RESPONSE=24 (4.8 GiB)
# after huggingface/trl pull request 234 (https://github.com/huggingface/trl/pull/234: batched_forward_pass of the old PPOTrainer kept the logits of all mini batches); written out with accelerate
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from transformers import GPT2Config, GPT2LMHeadModel

import knobs

BATCH = int(os.environ.get("BATCH", 128))
MINI_BATCH = int(os.environ.get("MINI_BATCH", 8))
RESPONSE = int(os.environ.get("RESPONSE", 48))
DROP_LOGITS = os.environ.get("DROP_LOGITS") == "1"
SELECTIVE = os.environ.get("SELECTIVE") == "1"
QUERY, VOCAB, PPO_EPOCHS, KL = 16, 50257, 1, 0.2


class PolicyWithValueHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.lm = GPT2LMHeadModel(GPT2Config(n_layer=12, n_embd=768, n_head=12, vocab_size=VOCAB))
        self.v_head = nn.Linear(768, 1)

    def forward(self, ids):
        out = self.lm(ids, output_hidden_states=True, use_cache=False)
        return out.logits, self.v_head(out.hidden_states[-1]).squeeze(-1)


def logprobs_of(logits, labels):
    if SELECTIVE:
        rows = [l.log_softmax(-1).gather(1, t[:, None]).squeeze(1) for l, t in zip(logits, labels)]
        return torch.stack(rows)
    return F.log_softmax(logits, dim=-1).gather(2, labels.unsqueeze(2)).squeeze(2)


class PPOTrainer:
    def __init__(self, policy, reference):
        self.accelerator = Accelerator()
        optimizer = torch.optim.Adam(policy.parameters(), lr=1.4e-5)
        self.policy, self.optimizer = self.accelerator.prepare(policy, optimizer)
        self.reference = reference.to(self.accelerator.device).eval()

    @torch.no_grad()
    def generate(self, queries):
        lm = self.accelerator.unwrap_model(self.policy).lm
        ids = queries
        with knobs.autocast():
            past = None
            for _ in range(RESPONSE):
                out = lm(ids if past is None else ids[:, -1:], past_key_values=past, use_cache=True)
                past = out.past_key_values
                ids = torch.cat([ids, out.logits[:, -1].float().softmax(-1).multinomial(1)], dim=1)
        return ids

    @torch.no_grad()
    def batched_forward_pass(self, model, ids):
        all_logits, all_logprobs, all_values = [], [], []
        for part in ids.split(MINI_BATCH):
            with knobs.autocast():
                logits, values = model(part)
            all_logprobs.append(logprobs_of(logits[:, :-1], part[:, 1:]))
            all_values.append(values[:, :-1])
            all_logits.append(None if DROP_LOGITS else logits)
        joined = None if DROP_LOGITS else torch.cat(all_logits)[:, :-1]
        return torch.cat(all_logprobs), joined, torch.cat(all_values)

    def rewards(self, scores, logprobs, ref_logprobs):
        reward = -KL * (logprobs - ref_logprobs)
        reward[:, -1] += scores
        return reward

    def minibatch_loss(self, ids, old_logprobs, old_values, rewards):
        with knobs.autocast():
            logits, values = self.policy(ids)
        logprobs, values = logprobs_of(logits[:, :-1], ids[:, 1:]), values[:, :-1]
        returns = rewards.flip(1).cumsum(1).flip(1)
        advantage = returns - old_values
        ratio = torch.exp(logprobs - old_logprobs)
        pg = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2)).mean()
        return pg + 0.1 * (values - returns).pow(2).mean()

    def step(self, ids, scores):
        logprobs, logits, values = self.batched_forward_pass(self.policy, ids)
        ref_logprobs, _, _ = self.batched_forward_pass(self.reference, ids)
        rewards = self.rewards(scores, logprobs, ref_logprobs)
        for _ in range(PPO_EPOCHS):
            for idx in torch.randperm(BATCH, device=ids.device).split(MINI_BATCH):
                loss = self.minibatch_loss(ids[idx], logprobs[idx], values[idx], rewards[idx])
                self.accelerator.backward(loss)
                self.optimizer.step()
                self.optimizer.zero_grad()
        entropy = None
        if logits is not None:
            p = [l.softmax(-1) * l.log_softmax(-1) for l in logits[:2]]
            entropy = -torch.stack(p).sum(-1).mean().item()
        return loss.item(), entropy


def sentiment(ids):
    return torch.rand(len(ids), device=ids.device)


def main():
    torch.manual_seed(0)
    trainer = PPOTrainer(knobs.apply(PolicyWithValueHead()), PolicyWithValueHead())
    for step in range(2):
        queries = torch.randint(0, VOCAB, (BATCH, QUERY), device="cuda")
        ids = trainer.generate(queries)
        loss, entropy = trainer.step(ids, sentiment(ids))
        print(f"step {step} loss {loss:.4f} entropy {entropy}")


if __name__ == "__main__":
    main()
