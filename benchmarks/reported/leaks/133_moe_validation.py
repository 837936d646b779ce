# kind: the module-level list of load-balancing tensors is cleared in training only and grows during evaluation; from databricks/megablocks PR 119
import torch
from torch import nn
import torch.nn.functional as F

_LOAD_BALANCING_LOSS = []


def save_load_balancing_loss(loss):
    global _LOAD_BALANCING_LOSS
    _LOAD_BALANCING_LOSS.append(loss)  # LEAK


def get_load_balancing_loss():
    return _LOAD_BALANCING_LOSS


def clear_load_balancing_loss():
    _LOAD_BALANCING_LOSS.clear()


class MoEFeedForward(nn.Module):
    def __init__(self, dim, experts):
        super().__init__()
        self.num_experts = experts
        self.router = nn.Linear(dim, experts, bias=False)
        self.w1 = nn.Parameter(torch.randn(experts, dim, 2 * dim) * 0.02)
        self.w2 = nn.Parameter(torch.randn(experts, 2 * dim, dim) * 0.02)

    def forward(self, x):
        tokens = x.reshape(-1, x.shape[-1])
        scores = self.router(tokens).softmax(-1)
        weight, expert = scores.max(-1)
        counts = torch.bincount(expert, minlength=self.num_experts)
        save_load_balancing_loss((counts, scores))  # ALSO
        out = torch.zeros_like(tokens)
        for e in range(self.num_experts):
            index = (expert == e).nonzero().squeeze(-1)
            if index.numel():
                h = F.gelu(tokens[index] @ self.w1[e]) @ self.w2[e]
                out = out.index_add(0, index, h * weight[index].unsqueeze(-1))
        return out.view_as(x)


class MoELM(nn.Module):
    def __init__(self, vocab=128, dim=48, layers=2, experts=8):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(MoEFeedForward(dim, experts) for _ in range(layers))
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        h = self.embed(ids)
        for block in self.blocks:
            h = h + block(F.layer_norm(h, h.shape[-1:]))
        return self.head(h)


def batched_load_balancing_loss():
    total = 0.0
    for counts, scores in get_load_balancing_loss():
        total = total + scores.shape[1] * torch.dot(counts.float() / scores.shape[0], scores.mean(0))
    return total / max(len(get_load_balancing_loss()), 1)


def lm_loss(logits, ids):
    return F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))


def warmup(model, steps):
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(steps):
        ids = torch.randint(0, 128, (4, 32), device="cuda")
        loss = lm_loss(model(ids), ids) + 0.01 * batched_load_balancing_loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        clear_load_balancing_loss()


@torch.no_grad()
def evaluate(model, batches):
    model.eval()
    total = 0.0
    for _ in range(batches):
        ids = torch.randint(0, 128, (16, 128), device="cuda")
        total += lm_loss(model(ids), ids).item()
    return total / batches


torch.manual_seed(0)
lm = MoELM().cuda()
warmup(lm, 8)
print("validation loss", evaluate(lm, 120))
