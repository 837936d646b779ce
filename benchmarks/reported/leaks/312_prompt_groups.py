# kind: https://github.com/pytorch/pytorch/pull/2374: test-time prompt tuning adds a param group for each sample's new prompt
import torch
import timm
from torch import nn

device = "cuda"


class PromptedViT(nn.Module):
    """A frozen ViT; only the prompt in front of its tokens is tuned, anew for each sample."""

    def __init__(self, tokens=64):
        super().__init__()
        self.vit = timm.create_model("vit_tiny_patch16_224", pretrained=False, img_size=64, num_classes=100)
        self.vit.requires_grad_(False)
        self.tokens = tokens
        self.prompt = None

    def new_prompt(self):
        depth, dim = len(self.vit.blocks), self.vit.embed_dim
        self.prompt = nn.Parameter(torch.randn(depth, self.tokens, dim, device=device) * 0.02)
        return self.prompt

    def forward(self, x):
        x = self.vit.patch_embed(x)
        x = self.vit._pos_embed(x)
        n = x.shape[1]
        for block, prompt in zip(self.vit.blocks, self.prompt):
            x = block(torch.cat([x, prompt.expand(x.shape[0], -1, -1)], 1))[:, :n]
        return self.vit.head(self.vit.norm(x)[:, 0])


def augment(image, views=8):
    flips = [image.flip(-1) if i % 2 else image for i in range(views)]
    return torch.stack(flips) + 0.05 * torch.randn(views, *image.shape, device=device)


def marginal_entropy(logits):
    mean = logits.log_softmax(-1).logsumexp(0) - torch.tensor(float(len(logits)), device=device).log()
    return -(mean.exp() * mean).sum()


def main():
    model = PromptedViT().to(device).eval()
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(1, device=device))], lr=5e-3)
    right = 0
    for n in range(60):
        image = torch.rand(3, 64, 64, device=device)
        prompt = model.new_prompt()
        optimizer.add_param_group({"params": [prompt], "lr": 5e-3, "weight_decay": 0.0})  # LEAK
        loss = marginal_entropy(model(augment(image)))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            right += int(model(image[None]).argmax()) == n % 100
        if n % 10 == 0:
            print(f"image {n}: entropy {loss.item():.3f}, right {right}, {torch.cuda.memory_allocated() / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
