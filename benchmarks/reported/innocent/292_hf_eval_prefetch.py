# kind: huggingface/transformers issue #7232, within bounds: Trainer joins the logits of an evaluation on the GPU, then lets go; data is prefetched
import os
import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

os.environ["WANDB_DISABLED"] = "true"


class Texts(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        length = 64
        return {"input_ids": torch.randint(0, 1000, (length,)), "attention_mask": torch.ones(length, dtype=torch.long),
                "labels": torch.randint(0, 600, ()).long()}


class SmoothedLoss(TrainerCallback):
    """Keeps the weights of the last four evaluations, as a poor man's early stopping."""

    def __init__(self):
        self.recent = []

    def on_evaluate(self, args, state, control, model=None, **kwargs):
        self.recent.append({k: v.clone() for k, v in model.state_dict().items()})
        self.recent = self.recent[-4:]


def compute_metrics(pred):
    return {"acc": float((np.argmax(pred.predictions, -1) == pred.label_ids).mean())}


config = BertConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512,
                    vocab_size=1000, num_labels=600)
with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(folder, per_device_train_batch_size=8, per_device_eval_batch_size=32, max_steps=90,
                             eval_strategy="steps", eval_steps=15, logging_steps=45, save_strategy="no", report_to=[],
                             disable_tqdm=True, gradient_accumulation_steps=2, dataloader_pin_memory=True)
    trainer = Trainer(model=BertForSequenceClassification(config), args=args, train_dataset=Texts(2000),
                      eval_dataset=Texts(32 * 50), compute_metrics=compute_metrics, callbacks=[SmoothedLoss()])
    trainer.train()
print("allocated", torch.cuda.memory_allocated() >> 20, "MiB")
