# kind: itertools.cycle over a loader that yields GPU batches caches each batch; from bytedance/UNO issue 64, pytorch/pytorch issue 23900
import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class PairedImageDataset(Dataset):
    def __init__(self, length=2000, size=32):
        self.length, self.size = length, size

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        gen = torch.Generator().manual_seed(index)
        ref = torch.rand(3, self.size, self.size, generator=gen)
        target = (ref.flip(-1) + 0.1 * torch.randn(ref.shape, generator=gen)).clamp(0, 1)
        return {"ref_img": ref, "img": target, "label": index % 16}


def collate_to_device(samples):
    return {k: torch.stack([torch.as_tensor(s[k]) for s in samples]).cuda() for k in samples[0]}


class FlowNet(nn.Module):
    def __init__(self, ch=24, classes=16):
        super().__init__()
        self.label = nn.Embedding(classes, ch)
        self.inp = nn.Conv2d(6, ch, 3, padding=1)
        self.mid = nn.Conv2d(ch, ch, 3, padding=1)
        self.out = nn.Conv2d(ch, 3, 3, padding=1)

    def forward(self, x, ref, t, label):
        h = self.inp(torch.cat((x, ref), 1)) + self.label(label)[..., None, None] + t.view(-1, 1, 1, 1)
        return self.out(F.silu(self.mid(F.silu(h))))


def training_losses(model, batch):
    x1 = batch["img"] * 2 - 1
    x0 = torch.randn_like(x1)
    t = torch.rand(len(x1), device=x1.device)
    xt = torch.lerp(x0, x1, t.view(-1, 1, 1, 1))
    pred = model(xt, batch["ref_img"], t, batch["label"])
    return F.mse_loss(pred, x1 - x0)


def main(max_train_steps=120, log_interval=40):
    torch.manual_seed(0)
    model = FlowNet().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max_train_steps)
    dataloader = DataLoader(PairedImageDataset(), batch_size=8, shuffle=True, collate_fn=collate_to_device)
    dataloader = itertools.cycle(dataloader)  # LEAK
    running = 0.0
    for step in range(1, max_train_steps + 1):
        batch = next(dataloader)  # ALSO
        loss = training_losses(model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        running += loss.item()
        if step % log_interval == 0:
            print(f"step {step} loss {running / log_interval:.4f}")
            running = 0.0


if __name__ == "__main__":
    main()
