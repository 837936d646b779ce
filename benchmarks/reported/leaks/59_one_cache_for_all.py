# kind: one DynamicCache object is made in the constructor and handed to every prompt, each answer makes it longer; from huggingface/transformers issue 37078 and PR 27612 (reusing past_key_values)
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM


class Classifier:
    """zero-shot yes/no questions with a common instruction in front"""

    def __init__(self, instruction_len=24):
        torch.manual_seed(0)
        config = LlamaConfig(vocab_size=800, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
                             num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=16384)
        self.model = LlamaForCausalLM(config).cuda().eval()
        self.prefix = DynamicCache()
        instruction = torch.randint(3, 800, (1, instruction_len), device="cuda")
        with torch.no_grad():
            self.model(instruction, past_key_values=self.prefix, use_cache=True)
        self.yes, self.no = 11, 12

    @torch.no_grad()
    def ask(self, ids):
        out = self.model(ids, past_key_values=self.prefix, use_cache=True)  # LEAK
        last = out.logits[0, -1]
        return (last[self.yes] > last[self.no]).item()


def reviews(n):
    g = torch.Generator().manual_seed(3)
    for _ in range(n):
        length = int(torch.randint(28, 44, (1,), generator=g))
        yield torch.randint(3, 800, (1, length), generator=g)


if __name__ == "__main__":
    clf = Classifier()
    positive = 0
    for i, ids in enumerate(reviews(75), 1):
        positive += clf.ask(ids.cuda())
        if i % 15 == 0:
            print(i, "reviews,", positive, "positive")
