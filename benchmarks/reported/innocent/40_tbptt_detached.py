# kind: hidden state carried from segment to segment with its graph, backward and detach every eight segments; from truncated BPTT threads
import torch
import torch.nn as nn

torch.manual_seed(7)
vocab, emb, hid, seg, k = 60, 64, 192, 5, 8


def repackage(h):
    return tuple(v.detach() for v in h)


class CharRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(vocab, emb)
        self.c1, self.c2 = nn.LSTMCell(emb, hid), nn.LSTMCell(hid, hid)
        self.o = nn.Linear(hid, vocab)

    def init(self, b, device):
        return tuple(torch.zeros(b, hid, device=device) for _ in range(4))

    def forward(self, x, s):
        h1, c1, h2, c2 = s
        logits = []
        for t in range(x.size(1)):
            h1, c1 = self.c1(self.e(x[:, t]), (h1, c1))
            h2, c2 = self.c2(h1, (h2, c2))
            logits.append(self.o(h2))
        return torch.stack(logits, 1), (h1, c1, h2, c2)


dev = torch.device("cuda")
text = torch.randint(0, vocab, (32, 4000))
net = CharRNN().to(dev)
opt = torch.optim.RMSprop(net.parameters(), lr=1e-3)
state = net.init(32, dev)
pending = []
shown = []
for n, i in enumerate(range(0, 160 * seg, seg)):
    x, y = text[:, i:i + seg].to(dev), text[:, i + 1:i + seg + 1].to(dev)
    logits, state = net(x, state)
    pending.append(nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten()))
    if len(pending) == k:
        loss = torch.stack(pending).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        state = repackage(state)
        pending = []
        shown.append(loss.item())
        if len(shown) % 5 == 0:
            print("segment", n + 1, "loss", round(shown[-1], 3))
