# kind: collate function for copy-paste augmentation adds each batch's objects to a deque without maxlen, on the GPU; from segmentation training code with "paste bank" collators and questions on DataLoaders that return CUDA tensors
from collections import deque
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
import torch.nn.functional as F


class Cells(Dataset):
    def __init__(self, n=320, size=96):
        self.n, self.size = n, size

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        img = torch.rand(3, self.size, self.size, generator=g) * 0.4
        mask = torch.zeros(self.size, self.size, dtype=torch.long)
        y, x = torch.randint(8, self.size - 32, (2,), generator=g).tolist()
        img[:, y:y + 24, x:x + 24] += 0.5
        mask[y:y + 24, x:x + 24] = 1
        return img, mask


class CopyPasteCollate:
    """pastes an object of an earlier image with probability p"""

    def __init__(self, p=0.5, device="cuda"):
        self.p, self.device = p, device
        self.bank = deque()

    def __call__(self, samples):
        imgs = torch.stack([s[0] for s in samples]).to(self.device)
        masks = torch.stack([s[1] for s in samples]).to(self.device)
        for k in range(len(samples)):
            if self.bank and random.random() < self.p:
                obj, m = random.choice(self.bank)
                imgs[k] = torch.where(m > 0, obj, imgs[k])
                masks[k] = torch.maximum(masks[k], m)
        for img, mask in zip(imgs, masks):
            self.bank.append((img.clone(), mask.clone()))  # LEAK
        return imgs, masks


class FCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 24, 3, 1, 1), nn.ReLU())
        self.dec = nn.Conv2d(24, 2, 1)

    def forward(self, x):
        return F.interpolate(self.dec(self.enc(x)), scale_factor=2)


def dice(logits, y):
    p = logits.softmax(1)[:, 1]
    return 1 - 2 * (p * y).sum() / (p.sum() + y.sum() + 1)


def main():
    random.seed(0), torch.manual_seed(0)
    loader = DataLoader(Cells(), batch_size=4, shuffle=True, collate_fn=CopyPasteCollate())
    net = FCN().cuda()
    opt = torch.optim.Adam(net.parameters(), 2e-3)
    for epoch in range(2):
        for x, y in loader:
            out = net(x)
            loss = F.cross_entropy(out, y) + dice(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print("epoch", epoch, "loss %.3f" % loss.item())


if __name__ == "__main__":
    main()
