# kind: logits processor that tracks the scores of each token for analysis is made once and used for every completion, nobody calls its clear(); from dottxt-ai/outlines PR 1408 (LogitTrackingProcessor accumulates) and epfl-dlab/transformers-CFG issue 49
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LogitsProcessor, LogitsProcessorList


class ScoreTracker(LogitsProcessor):
    def __init__(self, floor=-1e4):
        self.floor = floor
        self.scores = []

    def __call__(self, input_ids, scores):
        scores = scores.clamp(min=self.floor)
        self.scores.append(scores)  # LEAK
        return scores

    def last_entropy(self):
        p = self.scores[-1].softmax(-1)
        return float(-(p * p.clamp(min=1e-9).log()).sum(-1).mean())

    def clear(self):
        self.scores.clear()


class Completer:
    def __init__(self):
        config = GPT2Config(vocab_size=2000, n_positions=96, n_embd=48, n_layer=2, n_head=2,
                            bos_token_id=0, eos_token_id=None, pad_token_id=0)
        self.model = GPT2LMHeadModel(config).cuda().eval()
        self.tracker = ScoreTracker()
        self.processors = LogitsProcessorList([self.tracker])

    @torch.inference_mode()
    def complete(self, prompts, new_tokens=12):
        ids, past, feed = prompts, None, prompts
        for _ in range(new_tokens):
            out = self.model(input_ids=feed, past_key_values=past, use_cache=True)
            past = out.past_key_values
            scores = self.processors(ids, out.logits[:, -1].float())
            feed = scores.argmax(-1, keepdim=True)
            ids = torch.cat([ids, feed], dim=-1)
        return ids[:, prompts.shape[1]:], self.tracker.last_entropy()


def main():
    torch.manual_seed(0)
    service = Completer()
    entropies = []
    for request in range(60):
        prompts = torch.randint(1, 2000, (6, 8 + request % 5), device="cuda")
        _, entropy = service.complete(prompts)
        entropies.append(entropy)


if __name__ == "__main__":
    main()
