# CARD: 8GiB
# KNOBS: BATCH=1 EVAL_BATCH=2 EVAL_SAMPLES=32 EVAL_ACCUM PREPROCESS AUTOCAST CHECKPOINT=WhisperEncoderLayer WEIGHTED=1 OPT FUSED
# EXPERT: training fits; with use_weighted_layer_sum the model returns all 25 hidden states (1500 x 1024 each, 147 MiB per clip) and the Trainer keeps them on the GPU for the whole evaluation set, old and new concatenation together; eval_accumulation_steps or preprocess_logits_for_metrics that returns only the logits (or no weighted sum, or an evaluation set of 8 clips); a smaller evaluation batch, the training batch, autocast, the optimizer or checkpointing is not enough
# Source: huggingface/transformers 30104 (WhisperForAudioClassification cannot evaluate with use_weighted_layer_sum: "your GPU memory explodes, the hidden states stay on the GPU"), 15466; transformers Trainer
import os
import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, WhisperConfig, WhisperForAudioClassification

import knobs

BATCH = int(os.environ.get("BATCH", 1))
LANGUAGES = 102


class Fleurs(Dataset):
    """log-mel features of 30 s clips"""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return {"input_features": torch.randn(80, 3000, generator=g), "labels": i % LANGUAGES}


def compute_metrics(pred):
    logits = pred.predictions[0] if isinstance(pred.predictions, tuple) else pred.predictions
    return {"accuracy": float((np.argmax(logits, axis=-1) == pred.label_ids).mean())}


def only_logits(logits, labels):
    return logits[0] if isinstance(logits, tuple) else logits


class ClassificationTrainer(Trainer):
    def compute_loss(self, model, inputs, **kwargs):
        with knobs.autocast():
            return super().compute_loss(model, inputs, **kwargs)

    def create_optimizer(self, model=None):
        if self.optimizer is None:
            params = [p for p in self.model.parameters() if p.requires_grad]
            self.optimizer = torch.optim.AdamW(params, lr=self.args.learning_rate, weight_decay=self.args.weight_decay)
        return self.optimizer


def main():
    # whisper-medium
    config = WhisperConfig(vocab_size=51865, d_model=1024, encoder_layers=24, decoder_layers=24, encoder_attention_heads=16,
                           decoder_attention_heads=16, encoder_ffn_dim=4096, decoder_ffn_dim=4096, num_labels=LANGUAGES,
                           use_weighted_layer_sum=os.environ.get("WEIGHTED", "1") == "1")
    with torch.device("cuda"):
        model = WhisperForAudioClassification(config)
    knobs.apply(model)
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=int(os.environ.get("EVAL_BATCH", 2)),
        gradient_accumulation_steps=2,
        eval_accumulation_steps=int(os.environ["EVAL_ACCUM"]) if os.environ.get("EVAL_ACCUM") else None,
        gradient_checkpointing=True,
        eval_strategy="steps",
        eval_steps=2,
        max_steps=3,
        learning_rate=3e-5,
        warmup_steps=2,
        save_strategy="no",
        logging_steps=1,
        report_to=[],
        dataloader_num_workers=0,
    )
    trainer = ClassificationTrainer(
        model=model,
        args=args,
        train_dataset=Fleurs(64),
        eval_dataset=Fleurs(int(os.environ.get("EVAL_SAMPLES", 32))),
        compute_metrics=compute_metrics,
        preprocess_logits_for_metrics=only_logits if os.environ.get("PREPROCESS") else None,
    )
    trainer.train()
    print({k: v for k, v in trainer.state.log_history[-1].items()})


if __name__ == "__main__":
    main()
