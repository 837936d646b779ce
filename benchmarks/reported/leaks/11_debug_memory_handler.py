# kind: logging.MemoryHandler keeps records whose arguments are GPU tensors; from Stack Overflow
import logging
import logging.handlers
import torch
from torch import nn

log = logging.getLogger("seq2seq.debug")


def setup_logging(path="/dev/null"):
    target = logging.FileHandler(path)
    target.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    # write only when something went wrong, with everything that led to it
    buffered = logging.handlers.MemoryHandler(capacity=50_000, flushLevel=logging.ERROR, target=target)  # ALSO
    log.setLevel(logging.DEBUG)
    log.propagate = False
    log.addHandler(buffered)


class Tagger(nn.Module):
    def __init__(self, vocab=500, dim=128, tags=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.conv = nn.Conv1d(dim, dim, 3, padding=1)
        self.out = nn.Linear(dim, tags)

    def forward(self, ids):
        h = self.emb(ids).transpose(1, 2)
        h = torch.relu(self.conv(h)).transpose(1, 2)
        return self.out(h)


def train(args):
    device = torch.device(args["device"])
    model = Tagger().to(device)
    opt = torch.optim.Adam(model.parameters(), lr=args["lr"])
    for step in range(args["steps"]):
        ids = torch.randint(0, 500, (64, 64), device=device)
        tags = ids % 32
        logits = model(ids)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tags.flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        log.debug("step %d loss %.4f logits %s", step, loss.item(), logits)  # LEAK
        if step % 25 == 0:
            print(f"[{step:4d}] {loss.item():.4f}")
        if loss.item() != loss.item():
            log.error("nan at step %d", step)
            break


if __name__ == "__main__":
    setup_logging()
    train({"device": "cuda", "lr": 2e-3, "steps": 130})
