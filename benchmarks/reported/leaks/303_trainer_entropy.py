# kind: huggingface/transformers forum "Trainer subclass: CUDA OOM after a few hundred steps" (compute_loss adds up a tensor for the log)
import os
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

os.environ["WANDB_DISABLED"] = "true"
VOCAB, LEN = 2000, 128


class Lines(Dataset):
    def __len__(self):
        return 4 * 60

    def __getitem__(self, i):
        ids = torch.randint(0, VOCAB, (LEN,))
        return {"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones(LEN, dtype=torch.long)}


class EntropyTrainer(Trainer):
    """Also reports the entropy of what the model predicts."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.entropy_sum = torch.zeros((), device="cuda")
        self.entropy_n = 0

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        outputs = model(**inputs)
        loss = outputs.loss
        logp = torch.log_softmax(outputs.logits, -1)
        entropy = -(logp.exp() * logp).sum(-1).mean()
        self.entropy_sum = self.entropy_sum + entropy  # LEAK
        self.entropy_n += 1
        return (loss, outputs) if return_outputs else loss

    def log(self, logs, *args, **kwargs):
        if self.entropy_n:
            logs["entropy"] = round(self.entropy_sum.item() / self.entropy_n, 4)
        super().log(logs, *args, **kwargs)


config = GPT2Config(n_layer=2, n_embd=128, n_head=4, vocab_size=VOCAB, n_positions=LEN)
with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(folder, per_device_train_batch_size=4, num_train_epochs=1, logging_steps=20,
                             save_strategy="no", report_to=[], disable_tqdm=True, dataloader_num_workers=0)
    trainer = EntropyTrainer(model=GPT2LMHeadModel(config), args=args, train_dataset=Lines())
    trainer.train()
print("allocated", torch.cuda.memory_allocated() >> 20, "MiB")
