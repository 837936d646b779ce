# kind: huggingface/peft issue #738: adapters are loaded one after the other, and never unloaded
import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

config = GPT2Config(n_layer=4, n_embd=256, n_head=4, vocab_size=4000, n_positions=256)
base = GPT2LMHeadModel(config)
lora = LoraConfig(r=32, lora_alpha=32, target_modules=["c_attn", "c_fc"], task_type="CAUSAL_LM")
model = get_peft_model(base, lora, adapter_name="base-user").cuda().eval()


def switch_to(user):
    name = "user_%d" % user
    if name not in model.peft_config:
        model.add_adapter(name, lora)  # LEAK
    model.set_adapter(name)
    model.to("cuda")
    return name


def score(user, texts):
    switch_to(user)
    with torch.no_grad():
        out = model(input_ids=texts, labels=texts)
    return out.loss.item()


# every visitor of our demo gets an id of his own
results = {}
for user in range(130):
    tokens = torch.randint(0, 4000, (2, 64), device="cuda")
    results[user] = score(user, tokens)
    if user % 20 == 0:
        print("user", user, "%.1f MiB" % (torch.cuda.memory_allocated() / 2**20))
