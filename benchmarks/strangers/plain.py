"""Programs of PyTorch alone, as its tutorials write them."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn


def resnet_like_mlp() -> None:
    """A deep perceptron with residuals."""
    model = nn.Sequential(
        nn.Linear(1024, 4096),
        *(nn.Sequential(nn.Linear(4096, 4096), nn.GELU()) for _ in range(12)),
        nn.Linear(4096, 1000),
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(12):
        x = torch.randn(16384, 1024, device="cuda")
        y = torch.randint(1000, (16384,), device="cuda")
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()


def raw_functions() -> None:
    """An MLP without a module: tensors and functions."""
    sizes = [2048] + [6144] * 10 + [256]
    weights = [
        (torch.randn(a, b, device="cuda") / a**0.5).requires_grad_()
        for a, b in itertools.pairwise(sizes)
    ]
    biases = [torch.zeros(b, device="cuda", requires_grad=True) for b in sizes[1:]]
    optimizer = torch.optim.Adam([*weights, *biases], lr=1e-3)
    for _ in range(12):
        x = torch.randn(8192, 2048, device="cuda")
        y = torch.randn(8192, 256, device="cuda")
        for w, b in zip(weights, biases, strict=True):
            x = torch.tanh(x @ w + b)
        loss = (x - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def encoder_decoder() -> None:
    """Translation with nn.Transformer."""

    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.source = nn.Embedding(16000, 768)
            self.target = nn.Embedding(16000, 768)
            self.places = nn.Parameter(torch.zeros(1, 256, 768))
            self.transformer = nn.Transformer(
                768, 12, 6, 6, 3072, dropout=0.1, batch_first=True
            )
            self.generator = nn.Linear(768, 16000)

        def forward(self, src: torch.Tensor, tgt: torch.Tensor) -> torch.Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(
                tgt.shape[1], device=tgt.device
            )
            x = self.source(src) + self.places[:, : src.shape[1]]
            y = self.target(tgt) + self.places[:, : tgt.shape[1]]
            return self.generator(self.transformer(x, y, tgt_mask=mask))

    model = Translator().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98))
    for _ in range(12):
        src = torch.randint(16000, (32, 192), device="cuda")
        tgt = torch.randint(16000, (32, 193), device="cuda")
        logits = model(src, tgt[:, :-1])
        optimizer.zero_grad()
        loss = F.cross_entropy(logits.reshape(-1, 16000), tgt[:, 1:].reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def lstm_language_model() -> None:
    """Word by word, with the state carried from batch to batch."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.3)
            self.encoder = nn.Embedding(33000, 1024)
            self.rnn = nn.LSTM(1024, 1024, 3, dropout=0.3)
            self.decoder = nn.Linear(1024, 33000)

        def forward(self, x, hidden):
            out, hidden = self.rnn(self.drop(self.encoder(x)), hidden)
            return self.decoder(self.drop(out)), hidden

    model = Model().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=20.0, momentum=0.9)
    hidden = None
    for _ in range(12):
        x = torch.randint(33000, (128, 128), device="cuda")
        y = torch.randint(33000, (128 * 128,), device="cuda")
        if hidden is not None:
            hidden = tuple(h.detach() for h in hidden)
        logits, hidden = model(x, hidden)
        loss = F.cross_entropy(logits.view(-1, 33000), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()


def dcgan() -> None:
    """A generator and what judges it, each with its optimizer."""

    def up(a: int, b: int) -> nn.Sequential:
        return nn.Sequential(
            nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False),
            nn.BatchNorm2d(b),
            nn.ReLU(True),
        )

    def down(a: int, b: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(a, b, 4, 2, 1, bias=False),
            nn.BatchNorm2d(b),
            nn.LeakyReLU(0.2, inplace=True),
        )

    make = nn.Sequential(
        nn.ConvTranspose2d(128, 1024, 4, 1, 0),
        *(up(1024, 512), up(512, 256), up(256, 128), up(128, 64)),
        nn.ConvTranspose2d(64, 3, 4, 2, 1),
        nn.Tanh(),
    ).cuda()
    judge = nn.Sequential(
        nn.Conv2d(3, 64, 4, 2, 1),
        nn.LeakyReLU(0.2, inplace=True),
        *(down(64, 128), down(128, 256), down(256, 512), down(512, 1024)),
        nn.Conv2d(1024, 1, 4, 1, 0),
    ).cuda()
    criterion = nn.BCEWithLogitsLoss()
    optimizer_d = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizer_g = torch.optim.Adam(make.parameters(), lr=2e-4, betas=(0.5, 0.999))
    for _ in range(14):
        real = torch.randn(512, 3, 128, 128, device="cuda")
        label = torch.ones(512, device="cuda")
        judge.zero_grad()
        criterion(judge(real).view(-1), label).backward()
        fake = make(torch.randn(512, 128, 1, 1, device="cuda"))
        criterion(judge(fake.detach()).view(-1), torch.zeros_like(label)).backward()
        optimizer_d.step()
        make.zero_grad()
        criterion(judge(fake).view(-1), label).backward()
        optimizer_g.step()


def pinn() -> None:
    """Burgers' equation: derivatives of the network in its loss."""
    layers: list[nn.Module] = [nn.Linear(2, 256), nn.Tanh()]
    for _ in range(6):
        layers += [nn.Linear(256, 256), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(256, 1)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def gradient(u: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        ones = torch.ones_like(u)
        return torch.autograd.grad(u, x, ones, create_graph=True, retain_graph=True)[0]

    for _ in range(12):
        x = torch.rand(100_000, 1, device="cuda", requires_grad=True)
        t = torch.rand(100_000, 1, device="cuda", requires_grad=True)
        u = model(torch.cat([x, t], 1))
        u_t, u_x = gradient(u, t), gradient(u, x)
        u_xx = gradient(u_x, x)
        residual = u_t + u * u_x - 0.01 / torch.pi * u_xx
        start = torch.rand(20_000, 2, device="cuda")
        loss = residual.pow(2).mean() + model(start).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Block(nn.Module):
    """Attention and an MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.ln1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.ln2(x))


class Gpt(nn.Module):
    """As small repositories write it."""

    def __init__(self, vocab: int = 20000, width: int = 768, depth: int = 12) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(1024, width)
        self.blocks = nn.Sequential(*(Block(width, width // 64) for _ in range(depth)))
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.wte(x) + self.wpe(torch.arange(x.shape[1], device=x.device))
        return self.head(self.ln(self.blocks(x)))


def accumulation() -> None:
    """Four small batches before each step."""
    model = Gpt().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for _ in range(10):
        for _ in range(4):
            x = torch.randint(20000, (8, 512), device="cuda")
            with torch.autocast("cuda", torch.bfloat16):
                loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten()) / 4
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def evaluation() -> Iterator[str]:
    """Looks at other batches, larger ones, every three steps."""
    model = Gpt(depth=10).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(18):
        evaluates = step % 3 == 2
        if evaluates:
            model.eval()
            with torch.no_grad():
                for _ in range(2):
                    x = torch.randint(20000, (16, 512), device="cuda")
                    F.cross_entropy(model(x).flatten(0, 1), x.flatten())
            model.train()
        x = torch.randint(20000, (8, 512), device="cuda")
        loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield "evaluates" if evaluates else "trains"


def distillation() -> None:
    """A frozen teacher of twice the depth."""
    teacher = Gpt(depth=16).cuda().eval().requires_grad_(False)
    student = Gpt(depth=8).cuda()
    optimizer = torch.optim.AdamW(student.parameters(), lr=3e-4)
    for _ in range(10):
        x = torch.randint(20000, (8, 512), device="cuda")
        with torch.no_grad():
            target = F.softmax(teacher(x) / 2, -1)
        logits = student(x)
        soft = F.kl_div(F.log_softmax(logits / 2, -1), target, reduction="batchmean")
        loss = soft + F.cross_entropy(logits.flatten(0, 1), x.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def buckets() -> Iterator[str]:
    """Batches padded to one of three lengths."""
    model = Gpt(depth=8).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(20):
        length = (256, 512, 768)[(step * step + step // 3) % 3]
        x = torch.randint(20000, (8, length), device="cuda")
        loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield f"{length} long"


def full_finetune_ema() -> None:
    """All parameters with AdamW, and a running mean of them."""
    model = Gpt(depth=12, width=1024).cuda()
    mean = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for _ in range(10):
        x = torch.randint(20000, (4, 512), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for kept, new in zip(mean.parameters(), model.parameters(), strict=True):
                kept.lerp_(new, 0.001)


def checkpointed() -> None:
    """Every second block by hand under torch.utils.checkpoint."""
    from torch.utils.checkpoint import checkpoint

    model = Gpt(depth=16).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for _ in range(10):
        x = torch.randint(20000, (8, 512), device="cuda")
        h = model.wte(x) + model.wpe(torch.arange(512, device="cuda"))
        for i, block in enumerate(model.blocks):
            h = checkpoint(block, h, use_reentrant=False) if i % 2 else block(h)
        logits = model.head(model.ln(h))
        loss = F.cross_entropy(logits.flatten(0, 1), x.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def ppo() -> None:
    """Collects with the policy, then learns from that in several epochs."""

    class Agent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = nn.Sequential(
                *(nn.Conv2d(4, 32, 8, 4), nn.ReLU()),
                *(nn.Conv2d(32, 64, 4, 2), nn.ReLU()),
                *(nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten()),
                *(nn.Linear(3136, 512), nn.ReLU()),
            )
            self.actor, self.critic = nn.Linear(512, 18), nn.Linear(512, 1)

        def forward(self, x):
            hidden = self.network(x / 255.0)
            return self.actor(hidden), self.critic(hidden)

    agent = Agent().cuda()
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    steps, envs = 128, 256
    for _ in range(3):
        obs = torch.zeros(steps, envs, 4, 84, 84, device="cuda")
        returns = torch.zeros(steps, envs, device="cuda")
        for t in range(steps):
            with torch.no_grad():
                _, value = agent(obs[t])
            returns[t] = value.flatten()
        batch, gains = obs.flatten(0, 1), returns.flatten()
        for _ in range(4):
            for part in torch.randperm(steps * envs).split(8192):
                part = part.cuda()
                logits, value = agent(batch[part])
                policy = -F.log_softmax(logits, -1)[:, 0] * gains[part]
                loss = policy.mean() + (value.flatten() - gains[part]).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()


PROGRAMS = (
    *(resnet_like_mlp, raw_functions, encoder_decoder, lstm_language_model, dcgan),
    *(pinn, accumulation, evaluation, distillation, buckets, full_finetune_ema),
    *(checkpointed, ppo),
)
