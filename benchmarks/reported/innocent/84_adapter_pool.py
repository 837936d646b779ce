# kind: LoRA adapters are added for users as they turn up and delete_adapter() takes the one out that has not been used for longest, five at a time; from huggingface/peft issues 738 and 957 (unload an adapter to free its memory)
import random
from collections import OrderedDict

import torch
from peft import LoraConfig, get_peft_model
from torch import nn


class Encoder(nn.Module):
    def __init__(self, dim=384, depth=4):
        super().__init__()
        self.embed = nn.Embedding(500, dim)
        self.up = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))

    def forward(self, ids):
        x = self.embed(ids)
        for up, down in zip(self.up, self.down):
            x = x + down(torch.relu(up(x)))
        return x.mean(1)


def lora(rank=96):
    names = [f"{part}.{i}" for part in ("up", "down") for i in range(4)]
    return LoraConfig(r=rank, lora_alpha=rank, target_modules=names, lora_dropout=0.0)


class AdapterPool:
    def __init__(self, model, limit=5):
        self.model, self.limit = model, limit
        self.used = OrderedDict()

    def activate(self, user):
        if user in self.used:
            self.used.move_to_end(user)
        else:
            if len(self.used) >= self.limit:
                oldest, _ = self.used.popitem(last=False)
                self.model.delete_adapter(oldest)
            self.model.add_adapter(user, lora())
            self.used[user] = True
        self.model.set_adapter(user)


def main():
    torch.manual_seed(0)
    rng = random.Random(0)
    model = get_peft_model(Encoder().cuda(), lora(), adapter_name="base").eval()
    pool = AdapterPool(model)
    outputs = 0.0
    for request in range(120):
        first_users = request // 12 + 1
        user = f"user{rng.randrange(min(first_users, 30))}" if request < 60 else f"user{rng.randrange(30)}"
        pool.activate(user)
        ids = torch.randint(0, 500, (4, 24), device="cuda")
        with torch.no_grad():
            outputs += float(model(ids).mean())


if __name__ == "__main__":
    main()
