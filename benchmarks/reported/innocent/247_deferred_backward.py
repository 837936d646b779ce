# kind: innocent, losses of 12 dialogue turns are collected with their graphs and back-propagated together at the end of each dialogue; own, in the manner of "loss += ... then loss.backward()" questions
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

TURNS = 12
VOCAB = 400


class TurnEncoder(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)

    def forward(self, ids):
        out, h = self.rnn(self.emb(ids))
        return h[-1]


class DialogueModel(nn.Module):
    def __init__(self, dim=64, acts=20):
        super().__init__()
        self.turn = TurnEncoder(dim)
        self.dialogue = nn.GRUCell(dim, dim)
        self.act = nn.Linear(dim, acts)

    def forward(self, ids, state):
        state = self.dialogue(self.turn(ids), state)
        return self.act(state), state


def dialogue(batch_size=8, words=20):
    for _ in range(TURNS):
        ids = torch.randint(0, VOCAB, (batch_size, words), device=device)
        yield ids, ids[:, 0] % 20


model = DialogueModel().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

turn_losses = []
history = []
for d in range(15):
    state = torch.zeros(8, 64, device=device)
    for ids, act in dialogue():
        logits, state = model(ids, state)
        turn_losses.append(F.cross_entropy(logits, act))
    total = torch.stack(turn_losses).sum()
    optimizer.zero_grad()
    total.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    history.append(total.item() / TURNS)
    turn_losses.clear()
    del total, logits, state
    if d % 5 == 0:
        print(f"dialogue {d}: loss per turn {history[-1]:.4f}")
print(f"best {min(history):.4f}")
