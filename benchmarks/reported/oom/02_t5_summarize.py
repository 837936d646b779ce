# CARD: 12GiB
# KNOBS: BATCH=16 AUTOCAST CHECKPOINT=T5Block CHECKPOINT_PATHS=encoder.block.*,decoder.block.* OPT FUSED CHUNKS DTYPE=bf16
# EXPERT: activations of 24 blocks with eager (B,H,T,T) attention; gradient checkpointing or smaller batch with accumulation
import argparse
import os

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import T5Config, T5ForConditionalGeneration, get_linear_schedule_with_warmup

import knobs


def parse_args():
    parser = argparse.ArgumentParser(description="Finetune T5 on a summarization task")
    parser.add_argument("--train_batch_size", type=int, default=int(os.environ.get("BATCH", 16)))
    parser.add_argument("--max_source_length", type=int, default=512)
    parser.add_argument("--max_target_length", type=int, default=150)
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    parser.add_argument("--max_steps", type=int, default=3)
    parser.add_argument("--seed", type=int, default=42)
    return parser.parse_args()


class NewsDataset(Dataset):
    """Stands for the tokenized CNN/DailyMail articles and highlights."""

    def __init__(self, size, source_len, summ_len, vocab_size):
        self.size = size
        self.source_len = source_len
        self.summ_len = summ_len
        self.vocab_size = vocab_size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        source = torch.randint(3, self.vocab_size, (self.source_len,))
        target = torch.randint(3, self.vocab_size, (self.summ_len,))
        return {
            "source_ids": source,
            "source_mask": torch.ones_like(source),
            "target_ids": target,
        }


def train(epoch, model, device, loader, optimizer, scheduler, max_steps):
    model.train()
    for step, data in enumerate(loader):
        if step == max_steps:
            break
        y = data["target_ids"].to(device, dtype=torch.long)
        lm_labels = y.clone()
        lm_labels[y == 0] = -100
        ids = data["source_ids"].to(device, dtype=torch.long)
        mask = data["source_mask"].to(device, dtype=torch.long)

        with knobs.autocast():
            outputs = model(input_ids=ids, attention_mask=mask, labels=lm_labels)
        loss = outputs[0]

        print(f"Epoch: {epoch}, step: {step}, Loss: {loss.item()}")

        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    device = torch.device("cuda")

    # t5-base
    config = T5Config(vocab_size=32128, d_model=768, d_kv=64, d_ff=3072, num_layers=12, num_heads=12,
                      decoder_start_token_id=0, use_cache=False)
    with device:
        model = T5ForConditionalGeneration(config)
    model = knobs.apply(model)

    training_set = NewsDataset(2000, args.max_source_length, args.max_target_length, config.vocab_size)
    training_loader = DataLoader(training_set, batch_size=args.train_batch_size, shuffle=True, num_workers=0)

    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    scheduler = get_linear_schedule_with_warmup(optimizer, 10, 1000)

    print("Initiating Fine-Tuning for the model on our dataset")
    train(0, model, device, training_loader, optimizer, scheduler, args.max_steps)

    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
