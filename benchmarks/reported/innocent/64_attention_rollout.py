# kind: hooks collect the attention of every layer for one report in ten steps, the rollout is reduced to numbers and the list cleared; from jacobgil/vit-explain and forum questions on attention maps
import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)
        self.attn_drop = nn.Dropout(0.0)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        attn = self.attn_drop(((q @ k.transpose(-2, -1)) * (c // self.heads) ** -0.5).softmax(-1))
        return self.proj((attn @ v).transpose(1, 2).reshape(b, n, c))


class ViT(nn.Module):
    def __init__(self, dim=48, depth=4, classes=4):
        super().__init__()
        self.patch = nn.Conv2d(1, dim, 4, 4)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.blocks = nn.ModuleList(nn.ModuleDict({"n": nn.LayerNorm(dim), "a": Attention(dim)}) for _ in range(depth))
        self.head = nn.Linear(dim, classes)

    def forward(self, img):
        x = self.patch(img).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1)
        for b in self.blocks:
            x = x + b["a"](b["n"](x))
        return self.head(x[:, 0])


class Rollout:
    def __init__(self, model):
        self.model, self.attentions, self.on = model, [], False
        for m in model.modules():
            if isinstance(m, Attention):
                m.attn_drop.register_forward_hook(self.get_attention)

    def get_attention(self, module, inputs, output):
        if self.on:
            self.attentions.append(output.detach())

    def __call__(self, batches):
        self.on, focus = True, []
        with torch.no_grad():
            for img in batches:
                self.model(img)
        depth = len(self.model.blocks)
        for i in range(0, len(self.attentions), depth):
            joint = None
            for a in self.attentions[i:i + depth]:
                a = a.mean(1) + torch.eye(a.shape[-1], device=a.device)
                a = a / a.sum(-1, keepdim=True)
                joint = a if joint is None else a @ joint
            focus.append(joint[:, 0, 1:].amax(1).mean().item())
        self.attentions.clear()
        self.on = False
        return sum(focus) / len(focus)


def batch(n=16):
    y = torch.randint(4, (n,))
    img = 0.3 * torch.randn(n, 1, 32, 32)
    for k, c in enumerate(y.tolist()):
        img[k, 0, 16 * (c // 2):16 * (c // 2) + 8, 16 * (c % 2):16 * (c % 2) + 8] += 1
    return img.cuda(), y.cuda()


torch.manual_seed(1)
vit = ViT().cuda()
rollout = Rollout(vit)
opt = torch.optim.AdamW(vit.parameters(), lr=2e-3)
for step in range(1, 101):
    img, y = batch()
    loss = F.cross_entropy(vit(img), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0:
        focus = rollout([batch(8)[0] for _ in range(3)])
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f} focus {focus:.4f} kept {len(rollout.attentions)}")
