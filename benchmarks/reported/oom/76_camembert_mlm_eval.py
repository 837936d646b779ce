# CARD: 4GiB
# KNOBS: DATA_ON_CPU OPT DTYPE=bf16
# EXPERT: training fits; evaluate() gathers the logits (vocabulary of 32005) of the whole evaluation set on the GPU; eval_accumulation_steps, argmax first, or prediction_loss_only=True
# after huggingface/transformers issue 8476
import os

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import CamembertConfig, CamembertForMaskedLM, Trainer, TrainingArguments

import knobs

VOCAB, LENGTH = 32005, 64


class LineByLine(Dataset):
    def __init__(self, n):
        self.ids = torch.randint(5, VOCAB, (n, LENGTH))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        ids = self.ids[i].clone()
        labels = ids.clone()
        masked = torch.rand(LENGTH) < 0.15
        labels[~masked] = -100
        ids[masked] = 32004
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def compute_metrics(pred):
    labels = pred.label_ids
    keep = labels != -100
    preds = np.stack([row.argmax(-1) for row in pred.predictions])
    return {"accuracy": float((preds[keep] == labels[keep]).mean())}


config = CamembertConfig(vocab_size=VOCAB, hidden_size=768, num_hidden_layers=12,
                         num_attention_heads=12, intermediate_size=3072,
                         max_position_embeddings=514, type_vocab_size=1)
model = CamembertForMaskedLM(config).cuda()
knobs.apply(model)

training_args = TrainingArguments(
    seed=92,
    output_dir="/tmp/results_camembert",
    disable_tqdm=True,
    prediction_loss_only=False,
    max_steps=2,
    learning_rate=1e-4,
    eval_strategy="steps",
    per_device_train_batch_size=8,
    per_device_eval_batch_size=16,
    eval_steps=2,
    eval_accumulation_steps=1 if os.environ.get("DATA_ON_CPU", "0") not in ("", "0") else None,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
trainer = Trainer(
    model=model,
    args=training_args,
    train_dataset=LineByLine(64),
    eval_dataset=LineByLine(256),
    compute_metrics=compute_metrics,
    optimizers=(optimizer, None),
)
trainer.train()
print("PEAK", torch.cuda.max_memory_allocated())
