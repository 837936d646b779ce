# kind: https://github.com/huggingface/peft/issues/738: each job adds its own LoRA adapter to a shared base model and none is deleted
import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

device = "cuda"


def base_model():
    config = GPT2Config(vocab_size=2000, n_positions=128, n_embd=384, n_layer=3, n_head=6)
    return GPT2LMHeadModel(config)


def lora(rank=16):
    return LoraConfig(r=rank, lora_alpha=32, lora_dropout=0.0, target_modules=["c_attn", "c_proj"], task_type="CAUSAL_LM", fan_in_fan_out=True)


class AdapterService:
    """Fine-tunes one small adapter for a customer and answers with it."""

    def __init__(self):
        self.model = get_peft_model(base_model(), lora(), adapter_name="warmup").to(device)

    def start(self, tenant):
        name = f"tenant_{tenant:04d}"
        self.model.add_adapter(name, lora())  # LEAK
        self.model.set_adapter(name)
        return name

    def tune(self, ids):
        self.model.train()
        params = [p for p in self.model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(params, lr=1e-3)
        loss = self.model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    @torch.no_grad()
    def answer(self, prompt, length=4):
        self.model.eval()
        for _ in range(length):
            logits = self.model(input_ids=prompt).logits[:, -1]
            prompt = torch.cat([prompt, logits.argmax(-1, keepdim=True)], 1)
        return prompt.tolist()


def main():
    service = AdapterService()
    for tenant in range(50):
        name = service.start(tenant)
        ids = torch.randint(0, 2000, (4, 64), device=device)
        loss = service.tune(ids)
        reply = service.answer(ids[:1, :8])
        if tenant % 10 == 0:
            print(name, f"loss {loss:.3f}, {len(reply[0])} tokens, {torch.cuda.memory_allocated() / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
