# kind: list of step outputs on the module, not cleared in the epoch-end hook; from Lightning 2.0 migration issues and discussions
from types import SimpleNamespace
import torch
import torch.nn as nn
import torch.nn.functional as F


class LitUNet(nn.Module):
    def __init__(self, hparams):
        super().__init__()
        self.hparams = hparams
        c = hparams.width
        self.down = nn.Conv2d(1, c, 3, stride=2, padding=1)
        self.mid = nn.Conv2d(c, c, 3, padding=1)
        self.up = nn.ConvTranspose2d(c, 2, 2, stride=2)
        self.training_step_outputs = []
        self.logged = {}

    def forward(self, x):
        h = F.relu(self.down(x))
        return self.up(F.relu(self.mid(h)) + h)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        self.training_step_outputs.append({"loss": loss.detach(), "preds": logits.softmax(1), "y": y})  # LEAK
        return loss

    def on_train_epoch_end(self):
        outs = self.training_step_outputs[-self.hparams.steps:]
        self.logged["train_loss"] = torch.stack([o["loss"] for o in outs]).mean().item()
        inter = sum(((o["preds"].argmax(1) == 1) & (o["y"] == 1)).sum().item() for o in outs)
        union = sum(((o["preds"].argmax(1) == 1) | (o["y"] == 1)).sum().item() for o in outs)
        self.logged["train_iou"] = inter / max(union, 1)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)


class MiniTrainer:
    def __init__(self, max_epochs, device="cuda"):
        self.max_epochs, self.device = max_epochs, device

    def fit(self, module, loader):
        module.to(self.device).train()
        opt = module.configure_optimizers()
        for epoch in range(self.max_epochs):
            for i, batch in enumerate(loader()):
                batch = [b.to(self.device) for b in batch]
                opt.zero_grad()
                loss = module.training_step(batch, i)
                loss.backward()
                opt.step()
            module.on_train_epoch_end()
            print(epoch, module.logged)


def make_loader(steps, size=64, bs=8):
    def loader():
        for _ in range(steps):
            x = torch.rand(bs, 1, size, size)
            yield x, (x.squeeze(1) > 0.5).long()
    return loader


hp = SimpleNamespace(width=8, lr=0.05, steps=20)
MiniTrainer(max_epochs=6).fit(LitUNet(hp), make_loader(hp.steps))
