# CARD: 24GiB
# KNOBS: BATCH=16 ACCUM=2 MAX_LEN=512 AUTOCAST CHECKPOINT=DebertaV2Layer CHECKPOINT_PATHS=deberta.encoder.layer.* OPT FUSED
# EXPERT: the disentangled attention of 24 layers keeps content-to-position and position-to-content scores (16 heads x 512 x 512 each, gathered) beside the ordinary ones; smaller batch with more accumulation, shorter sequences, checkpoint the layers; bf16 autocast or the optimizer alone is not enough
# Source: fine-tuning deberta-v3-large at 512 tokens on 16-24 GB cards (huggingface/transformers issues and Kaggle NER notebooks, advice: gradient checkpointing and a batch of 1 or 2); transformers Trainer
import os

import torch
from torch.utils.data import Dataset
from transformers import DebertaV2Config, DebertaV2ForTokenClassification, Trainer, TrainingArguments

import knobs

MAX_LEN = int(os.environ.get("MAX_LEN", 512))
LABELS = ["O", "B-NAME", "I-NAME", "B-EMAIL", "I-EMAIL", "B-PHONE", "I-PHONE", "B-ADDR", "I-ADDR"]


class Essays(Dataset):
    """students' essays after tokenisation; nearly all of them are cut at the maximum length"""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return {"input_ids": torch.full((MAX_LEN,), 7), "attention_mask": torch.ones(MAX_LEN, dtype=torch.long),
                "labels": torch.zeros(MAX_LEN, dtype=torch.long)}


class Collator:
    def __call__(self, rows):
        return {k: torch.stack([r[k] for r in rows]) for k in rows[0]}


def model_init():
    config = DebertaV2Config(  # deberta-v3-large
        vocab_size=128100, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
        max_position_embeddings=512, relative_attention=True, position_buckets=256, norm_rel_ebd="layer_norm",
        share_att_key=True, pos_att_type=["p2c", "c2p"], position_biased_input=False, type_vocab_size=0,
        max_relative_positions=-1, layer_norm_eps=1e-7, num_labels=len(LABELS))
    with torch.device("cuda"):
        return DebertaV2ForTokenClassification(config)


def main():
    batch, accum = int(os.environ.get("BATCH", 16)), int(os.environ.get("ACCUM", 2))
    model = knobs.apply(model_init())
    args = TrainingArguments(
        output_dir="/tmp/deberta-pii", per_device_train_batch_size=batch, gradient_accumulation_steps=accum,
        max_steps=2, learning_rate=1e-5, warmup_steps=1, bf16=os.environ.get("AUTOCAST", "0") == "1",
        logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, dataloader_num_workers=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1.0)
    Trainer(model=model, args=args, data_collator=Collator(), train_dataset=Essays(2 * batch * accum),
            optimizers=(optimizer, scheduler)).train()
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
