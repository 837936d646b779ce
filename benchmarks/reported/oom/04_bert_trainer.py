# CARD: 8GiB
# KNOBS: BATCH=32 AUTOCAST CHECKPOINT=BertLayer CHECKPOINT_PATHS=bert.encoder.layer.* OPT FUSED DTYPE=bf16
# EXPERT: batch 32 at sequence length 512 is too much for bert-base; batch 8 with accumulation, shorter max_length, autocast
import os
from dataclasses import dataclass

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification

import knobs


@dataclass
class TrainingConfig:
    num_labels: int = 5
    max_length: int = 512
    batch_size: int = int(os.environ.get("BATCH", 32))
    lr: float = 2e-5
    epochs: int = 1
    max_steps: int = 3
    device: str = "cuda"


class ReviewDataset(Dataset):
    def __init__(self, n, max_length, num_labels):
        self.n = n
        self.max_length = max_length
        self.num_labels = num_labels

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return {
            "input_ids": torch.randint(1000, 30522, (self.max_length,)),
            "attention_mask": torch.ones(self.max_length, dtype=torch.long),
            "token_type_ids": torch.zeros(self.max_length, dtype=torch.long),
            "labels": torch.randint(0, self.num_labels, ()),
        }


class Trainer:
    def __init__(self, model, train_dataset, eval_dataset, cfg):
        self.cfg = cfg
        self.device = torch.device(cfg.device)
        self.model = model.to(self.device)
        self.train_loader = DataLoader(train_dataset, batch_size=cfg.batch_size, shuffle=True)
        self.eval_loader = DataLoader(eval_dataset, batch_size=cfg.batch_size)
        self.optimizer = self._build_optimizer()
        self.global_step = 0
        self.running_loss = 0.0

    def _build_optimizer(self):
        no_decay = ("bias", "LayerNorm.weight")
        named = list(self.model.named_parameters())
        groups = [
            {"params": [p for n, p in named if not n.endswith(no_decay)], "weight_decay": 0.01},
            {"params": [p for n, p in named if n.endswith(no_decay)], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=self.cfg.lr)

    def _prepare(self, batch):
        return {k: v.to(self.device) for k, v in batch.items()}

    def training_step(self, batch):
        self.model.train()
        with knobs.autocast():
            outputs = self.model(**self._prepare(batch))
        loss = outputs.loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.global_step += 1
        return loss.item()

    def train(self):
        for epoch in range(self.cfg.epochs):
            for batch in self.train_loader:
                self.running_loss += self.training_step(batch)
                print(f"epoch {epoch} step {self.global_step} loss {self.running_loss / self.global_step:.4f}")
                if self.global_step >= self.cfg.max_steps:
                    return

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        correct = total = 0
        for batch in self.eval_loader:
            batch = self._prepare(batch)
            logits = self.model(**batch).logits
            correct += (logits.argmax(-1) == batch["labels"]).sum().item()
            total += len(logits)
        return correct / total


if __name__ == "__main__":
    cfg = TrainingConfig()
    with torch.device(cfg.device):
        model = BertForSequenceClassification(BertConfig(num_labels=cfg.num_labels))
    model = knobs.apply(model)
    trainer = Trainer(model, ReviewDataset(640, cfg.max_length, cfg.num_labels),
                      ReviewDataset(64, cfg.max_length, cfg.num_labels), cfg)
    trainer.train()
    print("accuracy", trainer.evaluate())
    print("PEAK", torch.cuda.max_memory_allocated())
