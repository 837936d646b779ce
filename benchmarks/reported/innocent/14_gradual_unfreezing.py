# kind: layers unfrozen one by one, so gradients and Adam moments appear late; from ULMFiT-like fine-tuning questions
import torch
import torch.nn as nn
from transformers import BertConfig, BertModel


class Classifier(nn.Module):
    def __init__(self, n_labels=4):
        super().__init__()
        cfg = BertConfig(vocab_size=400, hidden_size=128, num_hidden_layers=5, num_attention_heads=4,
                         intermediate_size=256, max_position_embeddings=64)
        self.bert = BertModel(cfg, add_pooling_layer=False)
        self.drop = nn.Dropout(0.1)
        self.cls = nn.Linear(128, n_labels)

    def forward(self, ids):
        h = self.bert(input_ids=ids).last_hidden_state
        return self.cls(self.drop(h[:, 0]))


class GradualUnfreeze:
    """Called at every step; opens one encoder layer from the top every `every` steps, then the embeddings."""

    def __init__(self, model, every):
        self.every = every
        self.todo = [model.bert.embeddings, *model.bert.encoder.layer]
        for block in self.todo:
            block.requires_grad_(False)

    def __call__(self, step):
        if step and step % self.every == 0 and self.todo:
            block = self.todo.pop()
            block.requires_grad_(True)
            print(f"step {step}: {sum(p.numel() for p in block.parameters())} more parameters train")


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = Classifier().to(device).train()
    unfreeze = GradualUnfreeze(model, every=7)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    loss_fn = nn.CrossEntropyLoss()
    for step in range(110):
        unfreeze(step)
        ids = torch.randint(1, 400, (6, 16), device=device)
        y = ids[:, 1] % 4
        loss = loss_fn(model(ids), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("last loss", round(loss.item(), 3))


main()
