# kind: the prefilled prompt cache is handed to the model without a copy and each question extends it in place; from huggingface/transformers issue 37078 and PR 32929
import torch
from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM


class FAQBot:
    def __init__(self, model, system_prompt):
        self.model = model
        self.system_prompt = system_prompt
        self.prompt_cache = self.prefill()

    @torch.no_grad()
    def prefill(self):
        ids = torch.tensor([self.system_prompt], device="cuda")
        return self.model(input_ids=ids, past_key_values=DynamicCache(), use_cache=True).past_key_values

    @torch.no_grad()
    def relevance(self, question):
        ids = torch.tensor([question], device="cuda")
        position = torch.arange(len(self.system_prompt), len(self.system_prompt) + len(question), device="cuda")
        out = self.model(input_ids=ids, past_key_values=self.prompt_cache, position_ids=position[None], use_cache=True)  # LEAK
        logits = out.logits[0, :-1].log_softmax(-1)
        return logits.gather(-1, ids[0, 1:, None]).mean().item()


def build_model():
    config = Qwen2Config(vocab_size=300, hidden_size=192, intermediate_size=256, num_hidden_layers=3,
                         num_attention_heads=6, num_key_value_heads=6, max_position_embeddings=512)
    return Qwen2ForCausalLM(config).cuda().eval()


def encode(text):
    return [2 + b % 256 for b in text.encode()]


torch.manual_seed(0)
bot = FAQBot(build_model(), encode("You answer questions about our opening hours, prices and parking. "))
topics = ["parking", "prices", "dogs", "opening hours on sunday", "a lost umbrella"]
scores = []
for n in range(110):
    scores.append(bot.relevance(encode(f"question {n:04d}: what about {topics[n % 5]}?")))
print(f"mean log likelihood {sum(scores) / len(scores):.3f}")
