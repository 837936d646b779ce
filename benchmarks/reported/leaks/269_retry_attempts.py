# kind: a retry helper collects the exceptions of all attempts for the report, their tracebacks keep the frames and so the batches of the failed calls; in the manner of tenacity-like retry wrappers around transformers inference
import dataclasses
import random

import torch
from transformers import BertConfig, BertModel


class TooManyTokens(RuntimeError):
    pass


@dataclasses.dataclass
class Attempt:
    job: int
    number: int
    error: Exception


class Retrier:
    def __init__(self, max_attempts=3):
        self.max_attempts = max_attempts
        self.attempts = []

    def call(self, job, fn, *args):
        for number in range(1, self.max_attempts + 1):
            try:
                return fn(*args, shrink=number - 1)
            except TooManyTokens as error:
                self.attempts.append(Attempt(job, number, error))  # LEAK
        raise RuntimeError(f"job {job}: no success in {self.max_attempts} attempts")

    def summary(self):
        by_number = {}
        for a in self.attempts:
            by_number.setdefault(a.number, []).append(str(a.error))
        return {n: len(msgs) for n, msgs in by_number.items()}


class Embedder:
    MAX_TOKENS = 600

    def __init__(self, device="cuda"):
        config = BertConfig(vocab_size=1000, hidden_size=64, num_hidden_layers=2,
                            num_attention_heads=4, intermediate_size=128)
        self.device = device
        self.model = BertModel(config, add_pooling_layer=False).to(device).eval()
        self.table = self.model.get_input_embeddings()

    def pad(self, docs, shrink):
        longest = max(len(d) for d in docs) >> shrink
        ids = torch.zeros(len(docs), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for i, d in enumerate(docs):
            n = min(len(d), longest)
            ids[i, :n] = torch.tensor(d[:n])
            mask[i, :n] = 1
        return ids.to(self.device), mask.to(self.device)

    @torch.no_grad()
    def embed(self, docs, shrink=0):
        ids, mask = self.pad(docs, shrink)
        vectors = self.table(ids)
        if ids.numel() > self.MAX_TOKENS:
            raise TooManyTokens(f"{ids.numel()} tokens in the batch")  # ALSO
        hidden = self.model(inputs_embeds=vectors, attention_mask=mask).last_hidden_state
        pooled = (hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        return pooled.cpu()


def corpus(rng, jobs, docs_per_job=8):
    for job in range(jobs):
        n = 128 if job % 2 else 64
        yield job, [[rng.randrange(5, 1000) for _ in range(rng.randint(n // 2, n))] for _ in range(docs_per_job - 1)] + [[7] * n]


if __name__ == "__main__":
    torch.manual_seed(0)
    embedder, retrier = Embedder(), Retrier()
    vectors = []
    for job, docs in corpus(random.Random(2), 100):
        vectors.append(retrier.call(job, embedder.embed, docs))
        if job % 25 == 0:
            print(f"job {job}: {torch.cuda.memory_allocated() / 2**20:.2f} MiB")
    print(torch.cat(vectors).shape, "failed attempts:", retrier.summary())
