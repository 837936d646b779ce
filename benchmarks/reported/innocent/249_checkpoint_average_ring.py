# kind: innocent, copies of the weights are kept for checkpoint averaging, but only the last 6; in the manner of fairseq --keep-last-epochs / average_checkpoints.py done in memory
import collections

import torch
from transformers import GPT2Config, GPT2LMHeadModel


class LastCheckpoints:
    """fairseq's average_checkpoints, without the disk."""

    def __init__(self, n):
        self.ring = collections.deque(maxlen=n)

    def store(self, model, updates):
        self.ring.append((updates, {k: v.detach().clone() for k, v in model.named_parameters()}))

    def average(self):
        mean = collections.OrderedDict()
        for _, params in self.ring:
            for k, p in params.items():
                if k not in mean:
                    mean[k] = p.clone()
                else:
                    mean[k].add_(p)
        for k in mean:
            mean[k].div_(len(self.ring))
        return mean

    def __len__(self):
        return len(self.ring)


class swapped_in:
    def __init__(self, model, params):
        self.model, self.params = model, params

    def __enter__(self):
        self.saved = {k: p.detach().clone() for k, p in self.model.named_parameters()}
        with torch.no_grad():
            for k, p in self.model.named_parameters():
                p.copy_(self.params[k])

    def __exit__(self, *exc):
        with torch.no_grad():
            for k, p in self.model.named_parameters():
                p.copy_(self.saved[k])
        del self.saved


def batch(n=2, length=24):
    return torch.randint(0, 300, (n, length), device="cuda")


def main(updates=70, store_every=3, eval_every=20):
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=300, n_positions=32, n_embd=48, n_layer=2, n_head=4,
                        bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).to("cuda")
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    checkpoints = LastCheckpoints(6)
    for update in range(1, updates + 1):
        ids = batch()
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % store_every == 0:
            checkpoints.store(model, update)
        if update % eval_every == 0:
            with swapped_in(model, checkpoints.average()), torch.no_grad():
                ids = batch()
                valid = model(input_ids=ids, labels=ids).loss.item()
            print(f"update {update} train {loss.item():.3f} valid(avg of {len(checkpoints)}) {valid:.3f}")


if __name__ == "__main__":
    main()
