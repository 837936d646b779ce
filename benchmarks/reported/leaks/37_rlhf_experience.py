# kind: experiences of a policy-gradient loop keep log-probabilities with their graph, only a start index moves on; from PyMARL / Metta / RLHF repositories
from dataclasses import dataclass
import torch
from transformers import GPT2Config, GPT2LMHeadModel


@dataclass
class Experience:
    tokens: torch.Tensor
    logprobs: torch.Tensor
    ref_logprobs: torch.Tensor
    reward: torch.Tensor


def logprobs_of(model, tokens):
    logits = model(tokens, use_cache=False).logits[:, :-1]
    return logits.log_softmax(-1).gather(2, tokens[:, 1:, None]).squeeze(2)


class RLHF:
    def __init__(self, kl=0.1, clip=0.2):
        cfg = GPT2Config(vocab_size=128, n_positions=64, n_embd=64, n_layer=2, n_head=2,
                         bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0)
        self.policy = GPT2LMHeadModel(cfg).cuda()
        self.ref = GPT2LMHeadModel(cfg).cuda().eval().requires_grad_(False)
        self.ref.load_state_dict(self.policy.state_dict())
        self.opt = torch.optim.AdamW(self.policy.parameters(), lr=1e-5)
        self.kl, self.clip = kl, clip
        self.history, self.start = [], 0

    def rollout(self, prompts, new_tokens=8):
        tokens = torch.cat([prompts, torch.randint(0, 128, (len(prompts), new_tokens))], 1).cuda()
        logp = logprobs_of(self.policy, tokens)  # ALSO
        with torch.no_grad():
            ref = logprobs_of(self.ref, tokens)
        reward = (tokens % 7 == 0).float().mean(1) - self.kl * (logp - ref).detach().sum(1)
        self.history.append(Experience(tokens, logp, ref, reward))  # LEAK

    def update(self):
        fresh, self.start = self.history[self.start:], len(self.history)
        total = 0.0
        for e in fresh:
            adv = (e.reward - e.reward.mean()) / (e.reward.std() + 1e-6)
            ratio = (logprobs_of(self.policy, e.tokens) - e.logprobs.detach()).exp()
            loss = -torch.min(ratio * adv[:, None], ratio.clamp(1 - self.clip, 1 + self.clip) * adv[:, None]).mean()
            self.opt.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
            self.opt.step()
            total += loss.item()
        return total / len(fresh)


if __name__ == "__main__":
    torch.manual_seed(0)
    algo = RLHF()
    for it in range(70):
        algo.rollout(torch.randint(1, 128, (4, 16)))
        loss = algo.update()
        if it % 20 == 0:
            print("iteration", it, "loss", round(loss, 5))
