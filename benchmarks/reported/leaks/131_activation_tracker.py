# kind: saved tensors of branches that get no gradient stay in the activation tracker, whose reset waits until it is empty; from huggingface/trl PR 5738
import torch
from torch import nn
import torch.nn.functional as F


class TrackActivations(torch.autograd.graph.saved_tensors_hooks):
    def __init__(self, min_numel=1024):
        self.min_numel = min_numel
        self.tracker = {}
        self.tensor_id = 0
        super().__init__(self.pack_tensor, self.unpack_tensor)

    def pack_tensor(self, activation):
        if self.tensor_id and not self.tracker:
            self.tensor_id = 0
        self.tensor_id += 1
        if activation.numel() < self.min_numel or isinstance(activation, nn.Parameter):
            return activation
        self.tracker[self.tensor_id] = activation  # LEAK
        return self.tensor_id

    def unpack_tensor(self, packed):
        if isinstance(packed, torch.Tensor):
            return packed
        return self.tracker.pop(packed)


class Expert(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x):
        return self.down(F.silu(self.up(x)))


class TinyMoE(nn.Module):
    def __init__(self, vocab=200, dim=64, experts=4):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.router = nn.Linear(dim, experts)
        self.experts = nn.ModuleList(Expert(dim) for _ in range(experts))
        self.shadow = Expert(dim)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        h = self.embed(ids)
        gate = torch.softmax(self.router(h), -1)
        outputs = [expert(h) for expert in self.experts]
        probe = self.shadow(h)
        mixed = sum(g.unsqueeze(-1) * o for g, o in zip(gate.unbind(-1), outputs))
        return self.head(h + mixed), probe


def main():
    torch.manual_seed(0)
    model = TinyMoE().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    offload = TrackActivations()
    for step in range(90):
        ids = torch.randint(0, 200, (8, 33), device="cuda")
        with offload:
            logits, probe = model(ids[:, :-1])
            loss = F.cross_entropy(logits.reshape(-1, 200), ids[:, 1:].reshape(-1))
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        if step % 30 == 0:
            print(step, loss.item(), probe.detach().norm().item())


if __name__ == "__main__":
    main()
