# kind: subclass of the transformers Trainer stores rewards and margins of each batch on the GPU per split, log() averages and empties them every 25 steps; from huggingface/trl DPOTrainer (store_metrics / log) and pnnl/neuromancer PR 292 (metrics stored with their graphs)
import tempfile
from collections import defaultdict

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments
from transformers.utils import logging

logging.set_verbosity_error()


class Pairs(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(0)
        self.chosen = torch.randn(n, 200, 48, generator=g)
        self.rejected = torch.randn(n, 200, 48, generator=g)

    def __len__(self):
        return len(self.chosen)

    def __getitem__(self, i):
        return {"chosen": self.chosen[i], "rejected": self.rejected[i]}


class RewardModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.Sequential(nn.Linear(48, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh())
        self.score = nn.Linear(96, 1)

    def forward(self, chosen, rejected):
        a = self.score(self.gru(chosen)).squeeze(-1)
        b = self.score(self.gru(rejected)).squeeze(-1)
        return {"token_chosen": a, "token_rejected": b}


class PreferenceTrainer(Trainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._stored = defaultdict(lambda: defaultdict(list))
        self.model_accepts_loss_kwargs = False

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(**inputs)
        margin = out["token_chosen"].mean(-1) - out["token_rejected"].mean(-1)
        loss = -nn.functional.logsigmoid(margin).mean()
        split = "train" if model.training else "eval"
        stored = self._stored[split]
        stored["chosen"].append(out["token_chosen"].detach())
        stored["rejected"].append(out["token_rejected"].detach())
        stored["inputs_norm"].append(inputs["chosen"].square())
        return (loss, out) if return_outputs else loss

    def log(self, logs, *args, **kwargs):
        split = "train" if "loss" in logs else "eval"
        for key, values in self._stored[split].items():
            logs[f"{split}_{key}"] = torch.cat(values).float().mean().item()
        self._stored[split].clear()
        return super().log(logs, *args, **kwargs)


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=8, max_steps=200, logging_steps=25, save_strategy="no",
            report_to=[], disable_tqdm=True, dataloader_pin_memory=False, learning_rate=1e-3, max_grad_norm=1.0,
            remove_unused_columns=False, log_level="error",
        )
        PreferenceTrainer(model=RewardModel(), args=args, train_dataset=Pairs(640)).train()


if __name__ == "__main__":
    main()
