# CARD: 14.6GiB
# KNOBS: NO_GRAD SPLIT_WORDS=0 LONGEST=250 AUTOCAST CHECKPOINT=ResBlock
# EXPERT: the vocoder runs without torch.no_grad(), so each paragraph's waveform-length feature maps (three stages with 36 maps of 8192 floats a frame, about 0.36 GB per second of speech) are kept for a backward pass that never comes; paragraphs of 40 to 60 words fit, the one of 250 words (100 s) does not; torch.no_grad(), paragraphs split into sentences, checkpointing; half precision alone is not enough
# after yl4579/StyleTTS2 issue 222 (https://github.com/yl4579/StyleTTS2/issues/222), a PDF read aloud on a T4 with 15 GB, memory jumps in model.decode()
import os
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

import knobs

SPLIT_WORDS = int(os.environ.get("SPLIT_WORDS", 0))
LONGEST = int(os.environ.get("LONGEST", 250))
SAMPLE_RATE, HOP, SECONDS_PER_WORD = 24000, 256, 0.4


class ResBlock(nn.Module):
    def __init__(self, channels, kernel, dilations=(1, 3, 5)):
        super().__init__()
        self.convs1 = nn.ModuleList([nn.Conv1d(channels, channels, kernel, dilation=d, padding=d * (kernel - 1) // 2)
                                     for d in dilations])
        self.convs2 = nn.ModuleList([nn.Conv1d(channels, channels, kernel, padding=(kernel - 1) // 2)
                                     for _ in dilations])

    def forward(self, x):
        for c1, c2 in zip(self.convs1, self.convs2):
            xt = c1(F.leaky_relu(x, 0.1))
            xt = c2(F.leaky_relu(xt, 0.1))
            x = xt + x
        return x


class Decoder(nn.Module):
    """HiFi-GAN generator with a style vector added in."""

    def __init__(self, dim=512, style=128):
        super().__init__()
        rates, kernels = (8, 8, 2, 2), (16, 16, 4, 4)
        self.style = nn.Linear(style, dim)
        self.conv_pre = nn.Conv1d(dim, dim, 7, padding=3)
        self.ups, self.resblocks = nn.ModuleList(), nn.ModuleList()
        for i, (r, k) in enumerate(zip(rates, kernels)):
            ch = dim // 2 ** (i + 1)
            self.ups.append(nn.ConvTranspose1d(ch * 2, ch, k, r, padding=(k - r) // 2))
            self.resblocks.append(nn.ModuleList([ResBlock(ch, kk) for kk in (3, 7, 11)]))
        self.conv_post = nn.Conv1d(ch, 1, 7, padding=3)

    def forward(self, asr, ref_s):
        x = self.conv_pre(asr + self.style(ref_s)[:, :, None])
        for up, blocks in zip(self.ups, self.resblocks):
            x = up(F.leaky_relu(x, 0.1))
            x = sum(b(x) for b in blocks) / len(blocks)
        return torch.tanh(self.conv_post(F.leaky_relu(x)))


class TextEncoder(nn.Module):
    def __init__(self, dim=512, symbols=178):
        super().__init__()
        self.embedding = nn.Embedding(symbols, dim)
        self.cnn = nn.ModuleList([nn.Conv1d(dim, dim, 5, padding=2) for _ in range(3)])
        self.lstm = nn.LSTM(dim, dim // 2, batch_first=True, bidirectional=True)

    def forward(self, tokens):
        x = self.embedding(tokens).transpose(1, 2)
        for c in self.cnn:
            x = F.leaky_relu(c(x), 0.2)
        return self.lstm(x.transpose(1, 2))[0].transpose(1, 2)


@dataclass
class Paragraph:
    words: int

    def tokens(self):
        return torch.randint(0, 178, (1, 6 * self.words))

    def frames(self):
        return int(self.words * SECONDS_PER_WORD * SAMPLE_RATE / HOP)

    def sentences(self):
        if not SPLIT_WORDS:
            return [self]
        full, rest = divmod(self.words, SPLIT_WORDS)
        return [Paragraph(SPLIT_WORDS)] * full + ([Paragraph(rest)] if rest else [])


class Synthesizer:
    def __init__(self):
        self.text_encoder = TextEncoder().cuda().eval()
        self.decoder = knobs.apply(Decoder().cuda().eval())
        self.decode = knobs.no_grad(self._decode)

    def _decode(self, tokens, frames, ref_s):
        h = self.text_encoder(tokens)
        asr = F.interpolate(h, size=frames)
        return self.decoder(asr, ref_s)

    def inference(self, paragraph, ref_s):
        with knobs.autocast():
            out = self.decode(paragraph.tokens().cuda(), paragraph.frames(), ref_s)
        return out.squeeze().detach().float().cpu().numpy()


def read_pdf():
    for words in (40, 60, 50, LONGEST, 45):
        yield Paragraph(words)


def main():
    tts = Synthesizer()
    ref_s = torch.randn(1, 128, device="cuda")
    seconds = 0.0
    for page, paragraph in enumerate(read_pdf()):
        for sentence in paragraph.sentences():
            wav = tts.inference(sentence, ref_s)
            seconds += wav.shape[0] / SAMPLE_RATE
        print(f"paragraph {page}: {paragraph.words} words, {seconds:.0f} s so far, "
              f"peak MiB {torch.cuda.max_memory_allocated() // 2 ** 20}")
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
