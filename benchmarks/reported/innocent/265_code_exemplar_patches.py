# kind: one exemplar feature map kept per code of a vector quantizer; why it is none: there are 48 codes, after the first third every code has its exemplar
import torch
import torch.nn as nn


class VQ(nn.Module):
    def __init__(self, codes=48, d=12):
        super().__init__()
        self.book = nn.Parameter(torch.randn(codes, d))

    def forward(self, z):
        idx = torch.cdist(z, self.book).argmin(-1)
        q = self.book[idx]
        return z + (q - z).detach(), idx, ((q - z.detach()) ** 2).mean() + 0.25 * ((q.detach() - z) ** 2).mean()


class Exemplars(dict):
    def note(self, patches, idx):
        for i, code in enumerate(idx.tolist()):
            if code not in self:
                self[code] = patches[i].detach().clone()


torch.manual_seed(0)
enc, dec, vq = nn.Linear(3 * 24 * 24, 12).cuda(), nn.Linear(12, 3 * 24 * 24).cuda(), VQ().cuda()
opt = torch.optim.Adam([*enc.parameters(), *dec.parameters(), *vq.parameters()], 1e-3)
shown = Exemplars()
for step in range(420):
    with torch.no_grad():
        if step < 50:
            code = step % 48
            patches = dec(vq.book[code][None]).expand(6, -1) + 0.01 * torch.randn(6, 3 * 24 * 24, device="cuda")
        else:
            patches = torch.rand(6, 3 * 24 * 24, device="cuda")
    z, idx, commit = vq(enc(patches))
    loss = ((dec(z) - patches) ** 2).mean() + commit
    opt.zero_grad()
    loss.backward()
    opt.step()
    shown.note(patches, idx if step >= 50 else torch.full((6,), step % 48))
print(len(shown), "codes have an exemplar, loss", loss.item())
