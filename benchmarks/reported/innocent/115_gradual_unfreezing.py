# kind: innocent, layer groups are unfrozen one after another, gradients and Adam moments appear until all are trained; from fastai ULMFiT, Lightning BaseFinetuning callback
import timm
import torch
import torch.nn as nn
import torch.nn.functional as F


class BackboneFinetuning:
    """Unfreezes one stage of the backbone every `every` steps, last stage first."""

    def __init__(self, stages, every=12, lr=1e-3, decay=0.6):
        self.pending = list(stages)
        self.every, self.lr, self.decay = every, lr, decay
        for stage in self.pending:
            self.freeze(stage)

    @staticmethod
    def freeze(module):
        for p in module.parameters():
            p.requires_grad = False

    def on_step(self, step, optimizer):
        if step == 0 or step % self.every or not self.pending:
            return
        stage = self.pending.pop()
        params = list(stage.parameters())
        for p in params:
            p.requires_grad = True
        self.lr *= self.decay
        optimizer.add_param_group({"params": params, "lr": self.lr})


class Classifier(nn.Module):
    def __init__(self, num_classes=5):
        super().__init__()
        self.backbone = timm.create_model("vit_tiny_patch16_224", pretrained=False, img_size=32, patch_size=8,
                                          embed_dim=96, depth=4, num_heads=3, num_classes=0)
        self.head = nn.Linear(96, num_classes)

    def forward(self, x):
        return self.head(self.backbone(x))


def images(n, gen):
    y = torch.randint(0, 5, (n,), generator=gen)
    x = 0.5 * torch.randn(n, 3, 32, 32, generator=gen)
    x[torch.arange(n), y % 3] += 0.4 * (y.view(-1, 1, 1).float() - 2)
    return x.cuda(), y.cuda()


def main(steps=150):
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(4)
    model = Classifier().cuda()
    finetune = BackboneFinetuning([model.backbone.patch_embed, *model.backbone.blocks])
    optimizer = torch.optim.Adam(model.head.parameters(), lr=2e-3)
    hits = 0.0
    for step in range(steps):
        finetune.on_step(step, optimizer)
        x, y = images(16, gen)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hits += (logits.argmax(1) == y).float().mean().item()
        if step % 50 == 49:
            print(f"step {step} groups {len(optimizer.param_groups)} acc {hits / 50:.3f}")
            hits = 0.0


if __name__ == "__main__":
    main()
