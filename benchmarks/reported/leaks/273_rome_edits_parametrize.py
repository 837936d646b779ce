# kind: knowledge editing (ROME/MEMIT style notebook): every edit registers one more parametrization on the same weight; in the manner of a GitHub issue "memory goes up with each edit even after restoring"
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.nn.utils.parametrize as parametrize

device = "cuda"


@dataclass
class EditRequest:
    subject: torch.Tensor
    target: int


class RankOneDelta(nn.Module):
    def __init__(self, u, v, scale=0.05):
        super().__init__()
        self.scale = scale
        self.register_buffer("delta", scale * torch.outer(u, v))
        self.enabled = True

    def forward(self, w):
        return w + self.delta if self.enabled else w


class TinyLM(nn.Module):
    def __init__(self, vocab=500, d=160, layers=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.up = nn.ModuleList(nn.Linear(d, 2 * d) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(2 * d, d) for _ in range(layers))
        self.head = nn.Linear(d, vocab)

    def forward(self, ids):
        h = self.emb(ids)
        for up, down in zip(self.up, self.down):
            h = h + down(F.gelu(up(h)))
        return self.head(h[:, -1])


class Editor:
    def __init__(self, model, layer=1):
        self.model = model
        self.layer = layer

    def compute_uv(self, request):
        key = F.gelu(self.model.up[self.layer](self.model.emb(request.subject).mean(0)))
        value = torch.zeros(160, device=device, requires_grad=True)
        opt = torch.optim.Adam([value], lr=0.1)
        for _ in range(15):
            logits = self.model.head(self.model.emb(request.subject[-1]) + value)
            loss = F.cross_entropy(logits[None], torch.tensor([request.target], device=device))
            opt.zero_grad()
            loss.backward(inputs=[value])
            opt.step()
        return value.detach(), key.detach() / key.norm().detach()

    def apply(self, request):
        u, v = self.compute_uv(request)
        patch = RankOneDelta(u, v)
        parametrize.register_parametrization(self.model.down[self.layer], "weight", patch)  # LEAK
        return patch

    def restore(self, patch):
        patch.enabled = False


def main():
    torch.manual_seed(0)
    model = TinyLM().to(device)
    editor = Editor(model)
    ok = 0
    for i in range(90):
        req = EditRequest(torch.randint(0, 500, (6,), device=device), int(torch.randint(0, 500, (1,))))
        patch = editor.apply(req)
        with torch.no_grad():
            ok += int(model(req.subject[None]).argmax() == req.target)
        editor.restore(patch)
    print("edits that took:", ok)


if __name__ == "__main__":
    main()
