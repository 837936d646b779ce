# kind: a metaclass shares instances with equal arguments through weak references, an instance lives as long as a session uses it and there are at most 24 sessions; after pyccel/pyccel PR 1760
import random
import weakref

import torch
from torch import nn

torch.manual_seed(3)
random.seed(3)


class WeakArgumentSingleton(type):
    _instances = weakref.WeakValueDictionary()

    def __call__(cls, *args):
        key = (cls, args)
        instance = WeakArgumentSingleton._instances.get(key)
        if instance is None:
            instance = super().__call__(*args)
            WeakArgumentSingleton._instances[key] = instance
        return instance


class RoomImpulse(metaclass=WeakArgumentSingleton):
    """Synthetic impulse responses for a room of the given size."""

    def __init__(self, width, depth, absorption):
        gen = torch.Generator().manual_seed(int(width * 1000 + depth * 10))
        t = torch.arange(16384) / 16000
        decay = torch.exp(-t * absorption * 40)
        self.taps = (torch.randn(16, 16384, generator=gen) * decay).cuda()
        self.spectrum = torch.fft.rfft(self.taps, n=32768)


class Session:
    def __init__(self, user):
        self.user = user
        self.rooms = []
        self.open_until = 0

    def enter(self, width, depth, absorption):
        self.rooms.append(RoomImpulse(width, depth, absorption))
        del self.rooms[:-2]

    @torch.no_grad()
    def process(self, audio, enhancer):
        spec = torch.fft.rfft(audio, n=32768)
        wet = torch.fft.irfft(spec * self.rooms[-1].spectrum[self.user % 16])[: audio.numel()]
        return enhancer(wet.view(-1, 64)).abs().mean().item()


def main():
    enhancer = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 64)).cuda()
    sessions = {}
    loudness = 0.0
    for tick in range(300):
        user = tick if tick % 2 else random.randrange(max(tick - 30, 0), tick + 1)
        session = sessions.pop(user, None) or Session(user)
        sessions[user] = session
        if not session.rooms or tick % 5 == 0:
            session.enter(round(random.uniform(2, 9), 2), round(random.uniform(2, 9), 1),
                          random.choice([0.2, 0.5]))
        while len(sessions) > 24:
            sessions.pop(next(iter(sessions)))
        loudness += session.process(torch.randn(16384).cuda(), enhancer)
        if tick % 60 == 59:
            alive = len(WeakArgumentSingleton._instances)
            print(f"tick {tick + 1}: {len(sessions)} sessions, {alive} rooms, loudness {loudness / (tick + 1):.3f}")


if __name__ == "__main__":
    main()
