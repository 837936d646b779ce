# kind: compute_metrics of the Trainer keeps the logits of each evaluation batch on the GPU (batch_eval_metrics) and empties its lists when the result is asked for; after huggingface/transformers PR 28769
import logging
import tempfile
import warnings

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

warnings.filterwarnings("ignore")
logging.getLogger("transformers").setLevel(logging.ERROR)
torch.manual_seed(7)


class Tokens(Dataset):
    def __init__(self, n, seed):
        gen = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(0, 256, (n, 64), generator=gen)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        ids = self.ids[i]
        return {"input_ids": ids, "labels": (ids * 3 + 1) % 256}


class TinyTagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(256, 64)
        self.out = nn.Linear(64, 256)

    def forward(self, input_ids, labels=None):
        logits = self.out(torch.tanh(self.embed(input_ids)))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


class CalibrationMetric:
    """Expected calibration error needs the confidences of the whole set."""

    def __init__(self, bins=10):
        self.bins = bins
        self.logits, self.labels = [], []

    def __call__(self, pred, compute_result=False):
        self.logits.append(pred.predictions)
        self.labels.append(pred.label_ids)
        if not compute_result:
            return {}
        prob = torch.cat(self.logits).float().softmax(-1)
        labels = torch.cat(self.labels)
        self.logits.clear()
        self.labels.clear()
        conf, guess = prob.max(-1)
        right = (guess == labels).float()
        bucket = (conf * self.bins).long().clamp(max=self.bins - 1)
        ece = 0.0
        for b in range(self.bins):
            mask = bucket == b
            if mask.any():
                ece += (mask.float().mean() * (conf[mask].mean() - right[mask].mean()).abs()).item()
        return {"accuracy": right.mean().item(), "ece": ece}


def main():
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out, max_steps=120, per_device_train_batch_size=16, per_device_eval_batch_size=16,
            eval_strategy="steps", eval_steps=20, batch_eval_metrics=True, save_strategy="no",
            learning_rate=5e-3, logging_strategy="no", report_to=[], disable_tqdm=True, seed=7)
        trainer = Trainer(TinyTagger(), args, train_dataset=Tokens(640, 1), eval_dataset=Tokens(320, 2),
                          compute_metrics=CalibrationMetric())
        trainer.train()
        for entry in trainer.state.log_history:
            if "eval_ece" in entry:
                print(f"step {entry['step']}: accuracy {entry['eval_accuracy']:.3f} ece {entry['eval_ece']:.3f}")


if __name__ == "__main__":
    main()
