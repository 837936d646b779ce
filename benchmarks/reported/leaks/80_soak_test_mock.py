# kind: a soak test counts calls with a MagicMock that wraps the model's method, the mock keeps the arguments of each call; from Stack Overflow and cpython issues on mock_calls and memory
import unittest
from unittest import mock

import torch
import torch.nn as nn


class Unet1d(nn.Module):
    def __init__(self, c=24):
        super().__init__()
        self.enc = nn.Conv1d(1, c, 8, stride=4, padding=2)
        self.mid = nn.GRU(c, c, batch_first=True)
        self.dec = nn.ConvTranspose1d(c, 1, 8, stride=4, padding=2)

    def forward(self, wave):
        h = torch.relu(self.enc(wave))
        m = self.mid(h.transpose(1, 2))[0].transpose(1, 2)
        return self.dec(h * m.sigmoid())


class Enhancer:
    def __init__(self, rate=8000, seconds=2):
        self.net = Unet1d().cuda().eval()
        self.block = rate * seconds

    def run_network(self, blocks):
        with torch.inference_mode():
            return self.net(blocks)

    def enhance(self, wave):
        pad = -wave.numel() % self.block
        blocks = nn.functional.pad(wave, (0, pad)).view(-1, 1, self.block).cuda()
        out = self.run_network(blocks)  # ALSO
        return out.flatten()[:wave.numel()].cpu()


class SoakTest(unittest.TestCase):
    calls = 90

    def setUp(self):
        torch.manual_seed(0)
        self.enhancer = Enhancer()

    def test_many_files(self):
        spy = mock.MagicMock(wraps=self.enhancer.run_network)  # LEAK
        self.enhancer.run_network = spy  # ALSO
        for i in range(self.calls):
            wave = torch.randn(60000 + 37 * i)
            clean = self.enhancer.enhance(wave)
            self.assertEqual(clean.shape, wave.shape)
            self.assertTrue(bool(torch.isfinite(clean).all()))
            if i % 30 == 0:
                print("file", i, "network calls", spy.call_count)
        self.assertEqual(spy.call_count, self.calls)


if __name__ == "__main__":
    unittest.main(argv=["soak"], exit=False, verbosity=1)
