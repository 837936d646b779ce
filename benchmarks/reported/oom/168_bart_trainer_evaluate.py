# CARD: 4GiB
# KNOBS: CPU_OUTPUTS=1 (eval_accumulation_steps=1), ARGMAX=1 (preprocess_logits_for_metrics), EVAL_BATCH=<n>, BATCH=<train batch>, AUTOCAST=1, FUSED=1
# EXPERT: trainer.evaluate() keeps the logits of all batches on the GPU: eval_accumulation_steps, or argmax in preprocess_logits_for_metrics
# from: https://github.com/huggingface/transformers/issues/7158
import atexit
import os
import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import BartConfig, BartForConditionalGeneration, Trainer, TrainingArguments

atexit.register(lambda: print("PEAK", torch.cuda.max_memory_allocated()))


class BillSum(Dataset):
    """stands for the tokenised BillSum dataset"""

    def __init__(self, n, source=256, target=128):
        g = torch.Generator().manual_seed(n)
        self.items = [
            {
                "input_ids": torch.randint(4, 50264, (source,), generator=g),
                "attention_mask": torch.ones(source, dtype=torch.long),
                "labels": torch.randint(4, 50264, (target,), generator=g),
            }
            for _ in range(n)
        ]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def compute_metrics(pred):
    predictions = pred.predictions[0] if isinstance(pred.predictions, tuple) else pred.predictions
    if predictions.ndim == 3:
        predictions = predictions.argmax(-1)
    return {"token_accuracy": float(np.mean(predictions == pred.label_ids))}


def keep_tokens(logits, labels):
    return (logits[0] if isinstance(logits, tuple) else logits).argmax(-1)


def main():
    config = BartConfig(
        d_model=512, encoder_layers=6, decoder_layers=6, encoder_ffn_dim=2048, decoder_ffn_dim=2048,
        encoder_attention_heads=8, decoder_attention_heads=8, max_position_embeddings=512,
    )
    model = BartForConditionalGeneration(config)
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=int(os.environ.get("BATCH", 4)),
        per_device_eval_batch_size=int(os.environ.get("EVAL_BATCH", 8)),
        eval_accumulation_steps=1 if os.environ.get("CPU_OUTPUTS") == "1" else None,
        bf16=os.environ.get("AUTOCAST") == "1",
        optim="adamw_torch_fused" if os.environ.get("FUSED") == "1" else "adamw_torch",
        learning_rate=3e-5,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=BillSum(64),
        eval_dataset=BillSum(96),
        compute_metrics=compute_metrics,
        preprocess_logits_for_metrics=keep_tokens if os.environ.get("ARGMAX") == "1" else None,
    )
    trainer.train()
    print("trained, now evaluating")
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
