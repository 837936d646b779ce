# kind: transformers Trainer with a callback that keeps shadow weights and a drift reference; why it is none: shadow and reference are made once, in the 20th and 30th step, and then only updated
import torch
from torch.utils.data import Dataset
from transformers import (GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments)


class Melodies(Dataset):
    def __len__(self):
        return 320

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        ids = (torch.arange(24) * (i % 5 + 1) + torch.randint(0, 3, (24,), generator=g)) % 90
        return {"input_ids": ids, "labels": ids}


class ShadowWeights(TrainerCallback):
    def __init__(self, start=20, reference_at=30, decay=0.95):
        self.start, self.reference_at, self.decay = start, reference_at, decay
        self.shadow, self.reference, self.drift = {}, {}, []

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step < self.start:
            return
        for name, p in model.named_parameters():
            if name in self.shadow:
                self.shadow[name].lerp_(p, 1 - self.decay)
            else:
                self.shadow[name] = p.clone()
            if state.global_step == self.reference_at:
                self.reference[name] = p.clone()
        if self.reference:
            self.drift.append(sum((self.reference[n] - s).pow(2).sum() for n, s in self.shadow.items()).item())


if __name__ == "__main__":
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=90, n_positions=32, n_embd=48, n_layer=2, n_head=2))
    ema = ShadowWeights()
    args = TrainingArguments("/tmp/st16b/log/ema", max_steps=90, per_device_train_batch_size=8, logging_steps=45,
                             save_strategy="no", report_to=[], disable_tqdm=True)
    Trainer(model=model, args=args, train_dataset=Melodies(), callbacks=[ema]).train()
    print("drift", ema.drift[-1])
