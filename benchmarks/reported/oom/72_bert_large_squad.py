# CARD: 16GiB
# KNOBS: BATCH=24 AUTOCAST CHECKPOINT=BertLayer CHECKPOINT_PATHS=bert.encoder.layer.* OPT DTYPE=bf16
# EXPERT: bert-large needs twice the memory of bert-base, 24 sequences of 384 do not fit 16 GB; smaller per-GPU batch (more accumulation), fp16/bf16, checkpointing
# after huggingface/transformers issue 2084
import argparse
import os

import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset
from transformers import BertConfig, BertForQuestionAnswering, get_linear_schedule_with_warmup

import knobs


def load_examples(args):
    n, length = 128, args.max_seq_length
    ids = torch.randint(1000, 28996, (n, length))
    mask = torch.ones(n, length, dtype=torch.long)
    types = torch.zeros(n, length, dtype=torch.long)
    for i in range(n):
        q = 10 + i % 20
        types[i, q:] = 1
        used = length - (i * 7) % 120
        mask[i, used:] = 0
        ids[i, used:] = 0
    start = torch.randint(32, 200, (n,))
    return TensorDataset(ids, mask, types, start, start + 3)


def train(args, dataset, model):
    loader = DataLoader(dataset, sampler=RandomSampler(dataset),
                        batch_size=args.per_gpu_train_batch_size, drop_last=True)
    no_decay = ["bias", "LayerNorm.weight"]
    groups = [
        {"params": [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)],
         "weight_decay": args.weight_decay},
        {"params": [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)],
         "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=args.learning_rate)
    scheduler = get_linear_schedule_with_warmup(optimizer, 0, 1000)

    global_step = 0
    tr_loss = 0.0
    model.zero_grad()
    for step, batch in enumerate(loader):
        model.train()
        batch = tuple(t.to(args.device) for t in batch)
        inputs = {
            "input_ids": batch[0],
            "attention_mask": batch[1],
            "token_type_ids": batch[2],
            "start_positions": batch[3],
            "end_positions": batch[4],
        }
        with knobs.autocast():
            outputs = model(**inputs)
        loss = outputs[0] / args.gradient_accumulation_steps
        loss.backward()
        tr_loss += loss.item()
        if (step + 1) % args.gradient_accumulation_steps == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            model.zero_grad()
            global_step += 1
            print(f"global step {global_step}: loss {tr_loss:.4f}")
            tr_loss = 0.0
        if global_step == 2:
            break


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--per_gpu_train_batch_size", type=int, default=int(os.environ.get("BATCH", 24)))
    p.add_argument("--max_seq_length", type=int, default=384)
    p.add_argument("--learning_rate", type=float, default=3e-5)
    p.add_argument("--weight_decay", type=float, default=0.0)
    p.add_argument("--gradient_accumulation_steps", type=int, default=2)
    p.add_argument("--device", default="cuda")
    args = p.parse_args()
    config = BertConfig(vocab_size=28996, hidden_size=1024, num_hidden_layers=24,
                        num_attention_heads=16, intermediate_size=4096)
    with torch.device(args.device):
        model = BertForQuestionAnswering(config)
    knobs.apply(model)
    train(args, load_examples(args), model)
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
