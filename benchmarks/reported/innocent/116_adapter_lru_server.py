# kind: innocent, LoRA adapters are added on demand and the least recently used is deleted beyond eight; from huggingface/peft issues 738, 957
import random
from collections import OrderedDict

import torch
import torch.nn as nn
from peft import LoraConfig, get_peft_model


class Ranker(nn.Module):
    def __init__(self, dim=192, depth=3):
        super().__init__()
        self.fc = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.score = nn.Linear(dim, 1)

    def forward(self, x):
        for layer in self.fc:
            x = x + torch.relu(layer(x))
        return self.score(x).squeeze(-1)


def config():
    return LoraConfig(r=32, lora_alpha=64, target_modules=["fc.0", "fc.1", "fc.2"], init_lora_weights=False)


class MultiTenantRanker:
    def __init__(self, max_loras=8):
        self.model = get_peft_model(Ranker().cuda(), config(), adapter_name="base").eval()
        self.max_loras = max_loras
        self.lru = OrderedDict()
        self.loads = self.evictions = 0

    def _activate(self, tenant):
        if tenant in self.lru:
            self.lru.move_to_end(tenant)
        else:
            if len(self.lru) >= self.max_loras:
                oldest, _ = self.lru.popitem(last=False)
                self.model.set_adapter("base")
                self.model.delete_adapter(oldest)
                self.evictions += 1
            self.model.add_adapter(tenant, config())
            self.lru[tenant] = True
            self.loads += 1
        self.model.set_adapter(tenant)

    @torch.no_grad()
    def rank(self, tenant, items):
        self._activate(tenant)
        return self.model(items.cuda()).argsort(descending=True).tolist()


def main(requests=110):
    torch.manual_seed(0)
    rnd = random.Random(0)
    server = MultiTenantRanker()
    gen = torch.Generator().manual_seed(0)
    tops = []
    for _ in range(requests):
        tenant = f"tenant_{min(int(rnd.expovariate(0.12)), 30)}"
        order = server.rank(tenant, torch.randn(20, 192, generator=gen))
        tops.append(order[0])
    print("loads", server.loads, "evictions", server.evictions, "top item mean", sum(tops) / len(tops))


if __name__ == "__main__":
    main()
