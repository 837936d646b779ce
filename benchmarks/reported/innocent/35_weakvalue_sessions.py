# kind: registry of sessions that refers weakly, the sessions live as long as their users do and at most 20 are online; from streaming speech server code
import itertools
import weakref
import torch
import torch.nn as nn

registry = weakref.WeakValueDictionary()
_ids = itertools.count(1)


class Session:
    def __init__(self, layers=2, hidden=256, context=160, mels=80):
        self.id = next(_ids)
        self.state = torch.zeros(layers, 1, hidden, device="cuda")
        self.ctx = torch.zeros(1, context, mels, device="cuda")
        self.heard = []
        registry[self.id] = self

    def push(self, mel, enc):
        self.ctx = torch.cat([self.ctx[:, mel.shape[1]:], mel], 1)
        self.heard.append(enc)


class ASR(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(80, 256, 3, padding=1)
        self.gru = nn.GRU(256, 256, num_layers=2, batch_first=True)
        self.out = nn.Linear(256, 40)

    def forward(self, ctx, state):
        h = torch.relu(self.conv(ctx.transpose(1, 2))).transpose(1, 2)
        y, state = self.gru(h, state)
        return self.out(y), h, state


class Caller:
    """Speaks for some turns, then puts the phone down."""

    def __init__(self, turns):
        self.turns = turns
        self.session = Session()

    @torch.no_grad()
    def speak(self, asr):
        mel = torch.randn(1, 40, 80, device="cuda")
        _, h, self.session.state = asr(self.session.ctx, self.session.state)
        self.session.push(mel, h)
        self.turns -= 1
        return self.turns > 0


asr = ASR().cuda().eval()
online = []
SEATS = 20
for tick in range(180):
    online = [c for c in online if c.speak(asr)]
    # one call can be accepted every third tick
    if tick % 3 == 0 and len(online) < SEATS:
        online.append(Caller(45))
    if tick % 45 == 0:
        print("tick", tick, "registered", len(registry), "newest", max(registry.keys()))
