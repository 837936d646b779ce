# CARD: 14.76GiB
# KNOBS: CPU_OUTPUTS SEGMENT=44 TRACK=4356 MODELS=4
# EXPERT: the network only sees 44-second pieces; the separated sources of the whole 73-minute track (4 x 2 channels, 5.7 GiB) lie on the GPU, once for the model at work and once for the bag's sum, beside the mix; keep the track and the estimates in CPU memory, cut the track into shorter files; the segment length does not help
# after facebookresearch/demucs issue 231 (https://github.com/facebookresearch/demucs/issues/231)
import os
import random

import torch as th
from torch import nn
from torch.nn import functional as F

import knobs

SECONDS = int(os.environ.get("TRACK", 4356))
SEGMENT = int(os.environ.get("SEGMENT", 44))
CPU_OUTPUTS = os.environ.get("CPU_OUTPUTS") == "1"
SAMPLERATE = 44100


class BLSTM(nn.Module):
    def __init__(self, dim, layers=2):
        super().__init__()
        self.lstm = nn.LSTM(bidirectional=True, num_layers=layers, hidden_size=dim, input_size=dim)
        self.linear = nn.Linear(2 * dim, dim)

    def forward(self, x):
        y = self.lstm(x.permute(2, 0, 1))[0]
        return self.linear(y).permute(1, 2, 0) + x


class Demucs(nn.Module):
    def __init__(self, sources=4, audio_channels=2, channels=64, depth=6, kernel_size=8, stride=4):
        super().__init__()
        self.sources, self.audio_channels, self.stride, self.kernel, self.depth = sources, audio_channels, stride, kernel_size, depth
        self.encoder, self.decoder = nn.ModuleList(), nn.ModuleList()
        in_ch, ch = audio_channels, channels
        for i in range(depth):
            self.encoder.append(nn.Sequential(nn.Conv1d(in_ch, ch, kernel_size, stride), nn.ReLU(),
                                              nn.Conv1d(ch, 2 * ch, 1), nn.GLU(1)))
            out = sources * audio_channels if i == 0 else in_ch
            dec = [nn.Conv1d(ch, 2 * ch, 3, padding=1), nn.GLU(1), nn.ConvTranspose1d(ch, out, kernel_size, stride)]
            self.decoder.insert(0, nn.Sequential(*(dec + ([nn.ReLU()] if i else []))))
            in_ch, ch = ch, min(ch * 2, 768)
        self.lstm = BLSTM(in_ch)

    def valid_length(self, n):
        for _ in range(self.depth):
            n = max(1, -(-(n - self.kernel) // self.stride) + 1)
        for _ in range(self.depth):
            n = (n - 1) * self.stride + self.kernel
        return n

    def forward(self, mix):
        n = mix.shape[-1]
        x = F.pad(mix, (0, self.valid_length(n) - n))
        saved = []
        for e in self.encoder:
            x = e(x)
            saved.append(x)
        x = self.lstm(x)
        for d in self.decoder:
            s = saved.pop()
            x = d(x + s[..., :x.shape[-1]])
        return x[..., :n].view(mix.shape[0], self.sources, self.audio_channels, n)


class BagOfModels(nn.Module):
    def __init__(self, models):
        super().__init__()
        self.models = nn.ModuleList(models)
        self.weights = [[1.] * 4 for _ in models]


def apply_model(model, mix, shifts=1, split=True, overlap=0.25, transition_power=1.):
    if isinstance(model, BagOfModels):
        estimates = 0
        totals = [0] * 4
        for sub_model, weight in zip(model.models, model.weights):
            out = apply_model(sub_model, mix, shifts, split, overlap, transition_power)
            for k, inst_weight in enumerate(weight):
                out[:, k, :, :] *= inst_weight
                totals[k] += inst_weight
            estimates += out
            del out
        for k in range(estimates.shape[1]):
            estimates[:, k, :, :] /= totals[k]
        return estimates

    batch, channels, length = mix.shape
    where = "cpu" if CPU_OUTPUTS else mix.device
    if split:
        out = th.zeros(batch, 4, channels, length, device=where)
        sum_weight = th.zeros(length, device=where)
        segment = SAMPLERATE * SEGMENT
        stride = int((1 - overlap) * segment)
        weight = th.cat([th.arange(1, segment // 2 + 1), th.arange(segment - segment // 2, 0, -1)]).float().to(where)
        weight = (weight / weight.max()) ** transition_power
        for offset in range(0, length, stride):
            chunk = mix[..., offset:offset + segment]
            chunk_out = apply_model(model, chunk, shifts, split=False).to(where)
            n = chunk_out.shape[-1]
            out[..., offset:offset + segment] += weight[:n] * chunk_out
            sum_weight[offset:offset + segment] += weight[:n]
        out /= sum_weight
        return out
    elif shifts:
        max_shift = SAMPLERATE // 2
        padded = F.pad(mix.cuda(), (max_shift, max_shift))
        out = 0
        for _ in range(shifts):
            offset = random.randint(0, max_shift)
            shifted = padded[..., offset:offset + length + max_shift - offset]
            shifted_out = apply_model(model, shifted, shifts=0, split=False)
            out += shifted_out[..., max_shift - offset:]
        return out / shifts
    with th.no_grad():
        return model(mix)


def main():
    model = BagOfModels([Demucs() for _ in range(int(os.environ.get("MODELS", 4)))]).cuda().eval()
    knobs.apply(model)
    print(f"Selected model is a bag of {len(model.models)} models. You will see that many progress bars per track.")
    wav = th.randn(2, 10 * SAMPLERATE).repeat(1, SECONDS // 10 + 1)[:, :SECONDS * SAMPLERATE]
    if not CPU_OUTPUTS:
        wav = wav.cuda()
    ref = wav.mean(0)
    wav = (wav - ref.mean()) / ref.std()
    print("Separating track audio.mp3")
    sources = apply_model(model, wav[None])[0]
    sources = sources * ref.std().to(sources.device) + ref.mean().to(sources.device)
    for name, source in zip(("drums", "bass", "other", "vocals"), sources):
        print(name, tuple(source.cpu().shape))
    print("PEAK", th.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
