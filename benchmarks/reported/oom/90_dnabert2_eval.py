# CARD: 10834MiB
# KNOBS: BATCH=8 EVAL_BATCH=16 EVAL_SAMPLES=3200 EVAL_ACCUM PREPROCESS AUTOCAST CHECKPOINT=BertLayer OPT FUSED
# EXPERT: training fits; the model returns the encoder's output next to the logits, and evaluate() keeps it for the whole evaluation set on the GPU (and joins old and new: twice); preprocess_logits_for_metrics that keeps the logits, eval_accumulation_steps, a smaller evaluation set; the batch sizes do not help
# after MAGICS-LAB/DNABERT_2 issue 78
import os
import tempfile
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import Dataset
from transformers import BertConfig, BertModel, Trainer, TrainingArguments
from transformers.modeling_outputs import SequenceClassifierOutput

import knobs


@dataclass
class ModelArguments:
    vocab_size: int = 4096
    num_labels: int = 2
    model_max_length: int = 512


@dataclass
class DataArguments:
    train_samples: int = 64
    eval_samples: int = field(default_factory=lambda: int(os.environ.get("EVAL_SAMPLES", 3200)))


class DnaBertForSequenceClassification(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.num_labels = args.num_labels
        self.bert = BertModel(BertConfig(vocab_size=args.vocab_size, max_position_embeddings=args.model_max_length))
        self.dropout = nn.Dropout(0.1)
        self.classifier = nn.Linear(768, args.num_labels)

    def forward(self, input_ids, attention_mask=None, labels=None):
        outputs = self.bert(input_ids, attention_mask=attention_mask)
        logits = self.classifier(self.dropout(outputs.pooler_output))
        loss = nn.functional.cross_entropy(logits.view(-1, self.num_labels), labels.view(-1))
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=outputs.last_hidden_state)


class SupervisedDataset(Dataset):
    def __init__(self, n, args):
        self.n, self.args = n, args

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        ids = torch.randint(5, self.args.vocab_size, (self.args.model_max_length,))
        return dict(input_ids=ids, labels=i % self.args.num_labels)


@dataclass
class DataCollatorForSupervisedDataset:
    def __call__(self, instances):
        input_ids = torch.stack([x["input_ids"] for x in instances])
        labels = torch.tensor([x["labels"] for x in instances]).long()
        return dict(input_ids=input_ids, labels=labels, attention_mask=input_ids.ne(0))


def calculate_metric_with_sklearn(predictions, labels):
    valid = labels != -100
    return {"accuracy": float((predictions[valid] == labels[valid]).mean())}


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    if isinstance(logits, tuple):
        logits = logits[0]
    return calculate_metric_with_sklearn(np.argmax(logits, axis=-1), labels)


def preprocess_logits_for_metrics(logits, _):
    return logits[0] if isinstance(logits, tuple) else logits


def train():
    model_args, data_args = ModelArguments(), DataArguments()
    accum = int(os.environ.get("EVAL_ACCUM", 0)) or None
    training_args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=int(os.environ.get("BATCH", 8)),
        per_device_eval_batch_size=int(os.environ.get("EVAL_BATCH", 16)),
        eval_accumulation_steps=accum,
        max_steps=3,
        learning_rate=3e-5,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="no",
        bf16=os.environ.get("AUTOCAST", "0") == "1",
        disable_tqdm=True,
        report_to=[],
    )
    model = DnaBertForSequenceClassification(model_args).cuda()
    knobs.apply(model)
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=SupervisedDataset(data_args.train_samples, model_args),
        eval_dataset=SupervisedDataset(data_args.eval_samples, model_args),
        data_collator=DataCollatorForSupervisedDataset(),
        compute_metrics=compute_metrics,
        preprocess_logits_for_metrics=preprocess_logits_for_metrics if os.environ.get("PREPROCESS") == "1" else None,
        optimizers=(torch.optim.AdamW(model.parameters(), lr=3e-5), None),
    )
    trainer.train()


if __name__ == "__main__":
    train()
    print("PEAK", torch.cuda.max_memory_allocated())
