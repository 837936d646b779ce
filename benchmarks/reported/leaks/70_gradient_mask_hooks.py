# kind: a hook that masks the embedding's gradient is registered on the parameter anew for each batch and holds that batch's mask; from forum threads on freezing rows with register_hook inside of the training loop
import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self, vocab, tags, dim=80):
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, 40, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(80, tags)

    def forward(self, ids):
        return self.fc(self.rnn(self.embedding(ids))[0])


def sentence_batch(vocab, tags, batch=16, length=20):
    ids = torch.randint(1, vocab, (batch, length))
    return ids, ids % tags


def unfreeze_only(weight, ids):
    mask = torch.zeros_like(weight)
    mask[ids.unique()] = 1.0
    mask[0] = 0.0
    weight.register_hook(lambda grad: grad * mask)  # LEAK


def evaluate(model, vocab, tags):
    model.eval()
    with torch.no_grad():
        ids, gold = sentence_batch(vocab, tags, 64)
        acc = (model(ids.cuda()).argmax(-1).cpu() == gold).float().mean()
    model.train()
    return acc.item()


vocab, tags = 1000, 7
torch.manual_seed(3)
model = Tagger(vocab, tags).cuda()
pretrained = torch.randn(vocab, 80)
model.embedding.weight.data.copy_(pretrained)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)

for step in range(1, 91):
    ids, gold = sentence_batch(vocab, tags)
    ids, gold = ids.cuda(), gold.cuda()
    unfreeze_only(model.embedding.weight, ids)
    loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), gold.flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 1.0)
    optimizer.step()
    if step % 30 == 0:
        print(f"step {step} loss {loss.item():.3f} accuracy {evaluate(model, vocab, tags):.3f}")
