# kind: voice agent that collects encoder frames until a pause; why it is none: at the pause the utterance is decoded and the buffer emptied
import torch
import torch.nn as nn


class Encoder(nn.Module):
    def __init__(self, mel=40, d=96):
        super().__init__()
        self.conv = nn.Conv1d(mel, d, 5, stride=2, padding=2)
        self.rnn = nn.LSTM(d, d, batch_first=True)

    def forward(self, mel, state):
        h, state = self.rnn(self.conv(mel).relu().transpose(1, 2), state)
        return h, state


class VoiceAgent:
    def __init__(self):
        self.enc = Encoder().cuda().eval()
        self.lm = nn.Linear(96, 200).cuda()
        self.reset()
        self.turns = []

    def reset(self):
        self.pending, self.state = [], None

    def on_audio(self, mel, speaking):
        if speaking:
            h, self.state = self.enc(mel, self.state)
            self.pending.append(h)
        elif self.pending:
            whole = torch.cat(self.pending, 1)
            weights = torch.softmax(whole @ whole.transpose(1, 2) / 10, -1)
            self.turns.append(self.lm(weights @ whole).argmax(-1).unique().numel())
            self.reset()


def microphone(packets):
    for i in range(packets):
        yield torch.randn(1, 40, 60).cuda(), i % 17 < 13


@torch.inference_mode()
def main():
    torch.manual_seed(0)
    agent = VoiceAgent()
    for mel, speaking in microphone(4500):
        agent.on_audio(mel, speaking)
    print(len(agent.turns), "turns,", sum(agent.turns), "words")


main()
