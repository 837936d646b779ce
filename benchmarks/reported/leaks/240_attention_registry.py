# kind: every document gets its own attention function with a bias from the page layout, it is entered into transformers' AttentionInterface under a name of its own, the registry never forgets one and the function closes over the bias; from transformers documentation and questions on AttentionInterface.register with extra arguments
import uuid
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface, LlamaConfig, LlamaForCausalLM


@dataclass
class Page:
    tokens: torch.Tensor
    boxes: torch.Tensor  # x and y of the words

    @classmethod
    def random(cls, words, vocab, generator):
        boxes = torch.rand(words, 2, generator=generator)
        order = (boxes[:, 1] * 20).floor() * 10 + boxes[:, 0]
        return cls(torch.randint(0, vocab, (words,), generator=generator), boxes[order.argsort()])


def layout_bias(boxes, slopes):
    """Words that are far from each other on the page attend less to each other."""
    d = torch.cdist(boxes, boxes)
    bias = -slopes[:, None, None] * d
    n = len(boxes)
    future = torch.ones(n, n, dtype=torch.bool, device=boxes.device).triu(1)
    return bias.masked_fill(future, float("-inf"))[None]


def attention_with(bias):
    def attend(module, query, key, value, attention_mask=None, scaling=None, dropout=0.0, **kwargs):
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scaling)
        return out.transpose(1, 2).contiguous(), None
    return attend


class LayoutReader:
    def __init__(self, heads=8, vocab=512):
        config = LlamaConfig(
            vocab_size=vocab, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=heads,
            num_key_value_heads=2, max_position_embeddings=256, use_cache=False)
        self.model = LlamaForCausalLM(config).to("cuda").eval()
        self.slopes = 2.0 ** -torch.arange(heads, device="cuda", dtype=torch.float32)

    def _implementation(self, page):
        name = f"layout-{uuid.uuid4().hex[:8]}"
        bias = layout_bias(page.boxes.to("cuda"), self.slopes)
        AttentionInterface.register(name, attention_with(bias))  # LEAK
        AttentionMaskInterface.register(name, lambda *args, **kwargs: None)
        return name

    @torch.inference_mode()
    def perplexity(self, page):
        self.model.set_attn_implementation(self._implementation(page))
        ids = page.tokens.to("cuda")[None]
        return self.model(input_ids=ids, labels=ids).loss.exp().item()


def main(documents=60):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(3)
    reader = LayoutReader()
    total = 0.0
    for i in range(documents):
        total += reader.perplexity(Page.random(168, 512, generator))
        if i % 15 == 0:
            print(f"document {i}: mean perplexity {total / (i + 1):.1f}")


if __name__ == "__main__":
    main()
