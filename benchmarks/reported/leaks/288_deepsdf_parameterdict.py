# kind: auto-decoder service, each uploaded shape gets its own code grid in a ParameterDict; in the manner of an issue of a DeepSDF fork "reconstruct endpoint leaks"
import hashlib

import torch
import torch.nn as nn


class Decoder(nn.Module):
    def __init__(self, ch=8, hidden=48):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(ch + 2, hidden), nn.Softplus(), nn.Linear(hidden, hidden), nn.Softplus(),
                                 nn.Linear(hidden, 1))

    def forward(self, code, xy):
        n = code.shape[-1]
        nodes = torch.arange(n, device=code.device)
        wx, wy = ((1 - ((c[:, None] + 1) / 2 * (n - 1) - nodes).abs()).clamp(min=0) for c in xy.unbind(1))
        feat = torch.einsum("ni,cij,nj->nc", wy, code[0], wx)
        return self.mlp(torch.cat([feat, xy], 1)).squeeze(1)


class ShapeBank(nn.Module):
    def __init__(self, ch=8, res=32):
        super().__init__()
        self.decoder = Decoder(ch)
        self.codes = nn.ParameterDict()
        self.ch, self.res = ch, res

    def code_for(self, name):
        if name not in self.codes:
            fresh = nn.Parameter(0.01 * torch.randn(1, self.ch, self.res, self.res, device="cuda"))
            self.codes[name] = fresh  # LEAK
        return self.codes[name]


def circle_samples(n=512):
    r = 0.3 + 0.5 * torch.rand(())
    xy = torch.rand(n, 2) * 2 - 1
    return xy, xy.norm(dim=1) - r


def reconstruct(bank, upload, iterations=12):
    xy, sdf = upload
    name = hashlib.md5(xy.numpy().tobytes()).hexdigest()
    code = bank.code_for(name)
    opt = torch.optim.Adam([code], lr=5e-2)
    xy, sdf = xy.cuda(), sdf.cuda()
    for _ in range(iterations):
        loss = (bank.decoder(code, xy).clamp(-0.1, 0.1) - sdf.clamp(-0.1, 0.1)).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    opt.zero_grad(set_to_none=True)
    return loss.item()


def main(requests=80):
    torch.manual_seed(0)
    bank = ShapeBank().cuda()
    bank.decoder.requires_grad_(False)
    errors = [reconstruct(bank, circle_samples()) for _ in range(requests)]
    print("median error", sorted(errors)[len(errors) // 2])


main()
