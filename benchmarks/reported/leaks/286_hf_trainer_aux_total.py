# kind: transformers Trainer subclass that sums a quantity for its log (the gap between two dropout passes) with its graph; in the manner of a huggingface forum topic "CUDA memory increasing with custom compute_loss"
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Reviews(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(0)
        self.ids = torch.randint(5, 300, (n, 24), generator=g)
        self.labels = torch.randint(0, 3, (n,), generator=g)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": torch.ones(24, dtype=torch.long), "labels": self.labels[i]}


class DropoutGapTrainer(Trainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.kl_total = 0.0
        self.kl_steps = 0

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        first = model(**inputs)
        second = model(**inputs)
        p, q = first.logits.detach().log_softmax(-1), second.logits.log_softmax(-1)
        kl = 0.5 * (torch.nn.functional.kl_div(p, q, log_target=True, reduction="batchmean")
                    + torch.nn.functional.kl_div(q, p, log_target=True, reduction="batchmean"))
        self.kl_total = self.kl_total + kl  # LEAK
        self.kl_steps += 1
        return (first.loss, first) if return_outputs else first.loss

    def log(self, logs, *args, **kwargs):
        if self.kl_steps:
            logs["kl"] = float(self.kl_total) / self.kl_steps
        super().log(logs, *args, **kwargs)


def main():
    torch.manual_seed(0)
    config = BertConfig(vocab_size=300, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                        intermediate_size=64, num_labels=3)
    model = BertForSequenceClassification(config)
    args = TrainingArguments(output_dir="/tmp/st16b/log/rdrop", per_device_train_batch_size=8, max_steps=80,
                             logging_steps=40, save_strategy="no", report_to=[], disable_tqdm=True,
                             learning_rate=1e-3)
    DropoutGapTrainer(model=model, args=args, train_dataset=Reviews(400)).train()


if __name__ == "__main__":
    main()
