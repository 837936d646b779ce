# kind: an adapter is loaded per request into the PeftModel and never deleted; from huggingface/peft issue 738
import torch
import torch.nn as nn
from peft import LoraConfig, PeftModel, get_peft_model


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up_proj = nn.Linear(dim, 4 * dim)
        self.down_proj = nn.Linear(4 * dim, dim)

    def forward(self, x):
        return x + self.down_proj(torch.nn.functional.silu(self.up_proj(self.norm(x))))


class BaseModel(nn.Module):
    def __init__(self, vocab=500, dim=128, layers=4):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(layers))
        self.head = nn.Linear(dim, vocab)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def lora_config():
    return LoraConfig(r=8, lora_alpha=16, target_modules=["up_proj", "down_proj"], init_lora_weights=False)


class AdapterEvaluator:
    def __init__(self, model: PeftModel):
        self.model = model.eval()
        gen = torch.Generator().manual_seed(11)
        self.prompts = torch.randint(0, 500, (4, 24), generator=gen)

    def load(self, adapter_id):
        self.model.add_adapter(adapter_id, lora_config())  # LEAK
        self.model.set_adapter(adapter_id)

    @torch.inference_mode()
    def perplexity(self):
        ids = self.prompts.cuda()
        logits = self.model(ids)[:, :-1]
        nll = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        return nll.exp().item()

    def evaluate(self, adapter_id):
        self.load(adapter_id)  # ALSO
        return self.perplexity()


def main():
    torch.manual_seed(0)
    base = BaseModel().cuda()
    evaluator = AdapterEvaluator(get_peft_model(base, lora_config(), adapter_name="default"))
    leaderboard = {}
    for n in range(64):
        adapter_id = f"customer_{n:03d}"
        leaderboard[adapter_id] = evaluator.evaluate(adapter_id)
    top = sorted(leaderboard, key=leaderboard.get)[:3]
    print("best adapters:", [(k, round(leaderboard[k], 2)) for k in top])


if __name__ == "__main__":
    main()
