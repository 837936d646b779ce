# kind: https://github.com/pytorch/pytorch/pull/2374: gradual unfreezing, a layer every second step: gradients and Adam's state grow until all are trained
import torch
from torch import nn
from torch.nn import functional as F
from transformers import BertConfig, BertForSequenceClassification

device = "cuda"


def build(layers=24):
    config = BertConfig(
        vocab_size=1000, hidden_size=128, num_hidden_layers=layers, num_attention_heads=4,
        intermediate_size=256, max_position_embeddings=64, num_labels=4,
    )
    return BertForSequenceClassification(config)


class GradualUnfreezing:
    """ULMFiT: from the top to the bottom, with smaller steps further down."""

    def __init__(self, model, optimizer, every, lr, factor=0.95):
        self.waiting = list(model.bert.encoder.layer) + []
        self.optimizer, self.every, self.lr, self.factor = optimizer, every, lr, factor
        model.bert.requires_grad_(False)

    def step(self, n):
        if n % self.every or not self.waiting:
            return
        layer = self.waiting.pop()
        layer.requires_grad_(True)
        self.lr *= self.factor
        self.optimizer.add_param_group({"params": list(layer.parameters()), "lr": self.lr})


def main():
    torch.manual_seed(0)
    model = build().to(device)
    optimizer = torch.optim.AdamW(model.classifier.parameters(), lr=1e-3)
    unfreeze = GradualUnfreezing(model, optimizer, every=2, lr=1e-3)
    model.train()
    for step in range(90):
        unfreeze.step(step)
        ids = torch.randint(0, 1000, (4, 32), device=device)
        y = torch.randint(0, 4, (4,), device=device)
        loss = F.cross_entropy(model(input_ids=ids).logits, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], 1.0)
        optimizer.step()
        if step % 10 == 0:
            print(f"{step}: {loss.item():.4f} frozen {len(unfreeze.waiting)} {torch.cuda.memory_allocated() / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
