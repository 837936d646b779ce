# kind: router probabilities saved in a module-level list for a balancing loss whose weight is 0, so that nobody clears it; from a megablocks pull request
import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F

_LOAD_BALANCING_LOSS = []


def save_load_balancing_loss(item):
    global _LOAD_BALANCING_LOSS
    _LOAD_BALANCING_LOSS.append(item)  # LEAK


def batched_load_balancing_loss(n_experts):
    total = 0.0
    for scores, counts in _LOAD_BALANCING_LOSS:
        total = total + n_experts * (scores.mean(0) * counts / counts.sum()).sum()
    return total / max(len(_LOAD_BALANCING_LOSS), 1)


def clear_load_balancing_loss():
    _LOAD_BALANCING_LOSS.clear()


class Expert(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.w1, self.w2 = nn.Linear(d, h), nn.Linear(h, d)

    def forward(self, x):
        return self.w2(F.gelu(self.w1(x)))


class MoE(nn.Module):
    def __init__(self, d, n_experts):
        super().__init__()
        self.router = nn.Linear(d, n_experts, bias=False)
        self.experts = nn.ModuleList(Expert(d, 2 * d) for _ in range(n_experts))

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        scores = self.router(flat).softmax(-1)
        # soft routing, cheap enough with so few experts
        out = sum(scores[:, i:i + 1] * e(flat) for i, e in enumerate(self.experts))
        if self.training:
            save_load_balancing_loss((scores, scores.detach().sum(0)))  # ALSO
        return out.view_as(x)


class Net(nn.Module):
    def __init__(self, d=48, depth=2, vocab=64, n_experts=4):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.layers = nn.ModuleList(MoE(d, n_experts) for _ in range(depth))
        self.out = nn.Linear(d, vocab)

    def forward(self, ids):
        x = self.emb(ids)
        for layer in self.layers:
            x = x + layer(x)
        return self.out(x)


def main(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=80)
    p.add_argument("--moe-loss-weight", type=float, default=0.0)
    args = p.parse_args(argv if argv is not None else [])
    net = Net().cuda().train()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for step in range(args.steps):
        ids = torch.randint(0, 64, (64, 512), device="cuda")
        logits = net(ids)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        if args.moe_loss_weight > 0:
            loss = loss + args.moe_loss_weight * batched_load_balancing_loss(4)
            clear_load_balancing_loss()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % 20 == 0:
            print(f"step {step} lm loss {loss.item():.3f}")


main()
