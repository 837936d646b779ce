# kind: a circuit breaker remembers its last failure and gives it to the next one as its cause, so failures form a chain of __cause__ whose tracebacks hold the frames with their batches; after huggingface/trl PR 5776 (chained exceptions keep tensors) and retry helpers
import random
import time

import torch
import torch.nn as nn


class InvalidAudio(ValueError):
    pass


class BackendFailure(RuntimeError):
    def __init__(self, message, attempts):
        super().__init__(message)
        self.attempts = attempts


class CircuitBreaker:
    """Opens after too many failures in a row, reports what went wrong before."""

    def __init__(self, threshold=5):
        self.threshold = threshold
        self.failures = 0
        self.total = 0
        self.last_failure = None

    def _record(self, failure):
        self.failures += 1
        self.total += 1
        failure.__cause__ = self.last_failure  # LEAK
        self.last_failure = failure  # ALSO

    def _success(self):
        self.failures = 0

    def _fail(self, error):
        failure = BackendFailure(f"{type(error).__name__}: {error}", self.failures + 1)
        self._record(failure)
        return failure.with_traceback(error.__traceback__)

    def call(self, fn, *args):
        if self.failures >= self.threshold:
            time.sleep(0.001)
            self.failures = 0
        try:
            result = fn(*args)
        except InvalidAudio as e:
            raise self._fail(e)
        self._success()
        return result


class Separator(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.enc = nn.Conv1d(1, width, 16, stride=8)
        self.mask = nn.Sequential(nn.Conv1d(width, width, 3, padding=1), nn.Sigmoid())
        self.dec = nn.ConvTranspose1d(width, 1, 16, stride=8)

    def forward(self, mix):
        h = self.enc(mix)
        return self.dec(h * self.mask(h))


class Service:
    def __init__(self, breaker):
        self.model = Separator().to("cuda").eval()
        self.breaker = breaker
        self.rng = random.Random(5)

    def _load(self, clip):
        wave = torch.randn(2, 1, 16000, generator=torch.Generator().manual_seed(clip))
        if self.rng.random() < 0.5:
            wave[:, :, 100] = float("nan")
        return wave.to("cuda")

    @torch.inference_mode()
    def _separate(self, clip):
        mix = self._load(clip)
        voice = self.model(mix)
        peak = voice.abs().amax(dim=-1, keepdim=True)
        if not torch.isfinite(peak).all():
            raise InvalidAudio(f"clip {clip} gives non-finite output")
        return (voice / peak.clamp_min(1e-4)).cpu()

    def handle(self, clip):
        try:
            return self.breaker.call(self._separate, clip)
        except BackendFailure as e:
            return str(e)


def main():
    service = Service(CircuitBreaker())
    done = 0
    for clip in range(240):
        answer = service.handle(clip)
        done += torch.is_tensor(answer)
        if clip % 60 == 59:
            print(f"{clip + 1} clips: {done} separated, {service.breaker.total} failed")


if __name__ == "__main__":
    main()
