# kind: the activation tracker fills in the forward pass and is popped empty by the backward pass, with a sequence length warm-up; after torchtune / trl OffloadActivations
import torch
from torch import nn
import torch.nn.functional as F


class OffloadActivations(torch.autograd.graph.saved_tensors_hooks):
    def __init__(self, min_bytes=4096):
        self.min_bytes = min_bytes
        self.tracker = {}
        self.next_id = 0
        super().__init__(self.pack, self.unpack)

    def pack(self, tensor):
        if tensor.numel() * tensor.element_size() < self.min_bytes or isinstance(tensor, nn.Parameter):
            return tensor
        self.next_id += 1
        self.tracker[self.next_id] = tensor.detach()
        return self.next_id

    def unpack(self, packed):
        if torch.is_tensor(packed):
            return packed
        tensor = self.tracker.pop(packed)
        if not self.tracker:
            self.next_id = 0
        return tensor


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.norm(x).cumsum(1) / torch.arange(1, x.shape[1] + 1, device=x.device).view(1, -1, 1)
        return x + self.ff(x)


def main():
    torch.manual_seed(0)
    embed = nn.Embedding(150, 48).cuda()
    blocks = nn.Sequential(Block(48), Block(48)).cuda()
    head = nn.Linear(48, 150).cuda()
    params = [p for m in (embed, blocks, head) for p in m.parameters()]
    optimizer = torch.optim.AdamW(params, lr=1e-3)
    offload = OffloadActivations()
    ids = None
    for step in range(120):
        length = min(16 + 4 * (step // 4), 64)
        ids = torch.randint(0, 150, (16, length + 1), device="cuda")
        with offload:
            logits = head(blocks(embed(ids[:, :-1])))
            loss = F.cross_entropy(logits.reshape(-1, 150), ids[:, 1:].reshape(-1))
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("loss", loss.item(), "tracked", len(offload.tracker))


if __name__ == "__main__":
    main()
