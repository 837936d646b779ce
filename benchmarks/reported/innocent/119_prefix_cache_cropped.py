# kind: the prefilled prompt cache is extended by each question and cropped back to the prefix afterwards; after the transformers KV cache guide (huggingface/transformers PR 32929)
import torch
from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM


class PrefixScorer:
    def __init__(self, model, prefix):
        self.model = model
        self.prefix_len = len(prefix)
        with torch.no_grad():
            ids = torch.tensor([prefix], device="cuda")
            self.cache = model(input_ids=ids, past_key_values=DynamicCache(), use_cache=True).past_key_values

    @torch.no_grad()
    def score(self, candidate):
        ids = torch.tensor([candidate], device="cuda")
        out = self.model(input_ids=ids, past_key_values=self.cache, use_cache=True)
        logp = out.logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])
        self.cache.crop(-len(candidate))
        return logp.sum().item()


def encode(text):
    return [3 + b % 200 for b in text.encode()]


torch.manual_seed(0)
config = Qwen2Config(vocab_size=256, hidden_size=96, intermediate_size=192, num_hidden_layers=2,
                     num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512)
model = Qwen2ForCausalLM(config).cuda().eval()
context = ""
best = []
for document in range(3):
    context += f"Document {document} says that the shop opens at {8 + document} and closes at {17 + document}. "
    scorer = PrefixScorer(model, encode(context))
    first = 20 if document < 2 else 80
    answers = [f"it opens at {hour % 24} o'clock" for hour in range(first)]
    scores = [scorer.score(encode(answer)) for answer in answers]
    best.append(max(range(first), key=scores.__getitem__))
print("best answers", best)
