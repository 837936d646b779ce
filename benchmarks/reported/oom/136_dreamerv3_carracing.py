# CARD: 7.92GiB
# KNOBS: BATCH=16 SEQ=64 HORIZON=15 SIZE=XL AUTOCAST CHECKPOINT=Encoder,Decoder,MLP OPT FUSED
# EXPERT: the world model's update fits (5.9 GiB); the behaviour's starts from all 16 x 64 states and keeps the graph of 15 imagined steps (recurrent state 4096, gates of 12288) and of five-layer heads over 16 x 1024 latents, beside 200 M weights with Adam; enough: BATCH=8, SEQ=32, SIZE=L or smaller, BATCH=12 with HORIZON=8; not enough: BATCH=12, HORIZON=8 (7.8 GiB), CHECKPOINT=MLP (8.1 GiB), CHECKPOINT=Encoder,Decoder (of the world model's update, not where the peak is), AUTOCAST (10.9 GiB: copies of the large weights, distributions in fp32), OPT, FUSED, also not HORIZON=8 with AUTOCAST or with CHECKPOINT=MLP
# after Eclectic-Sheep/sheeprl issue 207 (https://github.com/Eclectic-Sheep/sheeprl/issues/207: exp=dreamer_v3 env.id=CarRacing-v2 with pixels on a GTX 1080 Ti, 10.91 GiB, "immediately"; sizes of its default, XL)
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Independent, Normal

import knobs

BATCH = int(os.environ.get("BATCH", 16))
SEQ = int(os.environ.get("SEQ", 64))
HORIZON = int(os.environ.get("HORIZON", 15))
SIZES = {"XL": (96, 1024, 5, 4096), "L": (64, 768, 4, 2048), "M": (48, 640, 3, 1024), "S": (32, 512, 2, 512)}
MULT, DENSE, LAYERS, RECURRENT = SIZES[os.environ.get("SIZE", "XL")]
STOCH, DISCRETE, ACTIONS, BINS = 32, 32, 3, 255
LATENT = RECURRENT + STOCH * DISCRETE


class ChannelNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layers, i = [], 3
        for k in range(4):
            o = MULT * 2 ** k
            layers += [nn.Conv2d(i, o, 4, 2, 1, bias=False), ChannelNorm(o, eps=1e-3), nn.SiLU()]
            i = o
        self.net = nn.Sequential(*layers)

    def forward(self, x):
        return self.net(x).flatten(1)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.start, layers, i = nn.Linear(LATENT, MULT * 8 * 16), [], MULT * 8
        for k in (4, 2, 1):
            o = MULT * k
            layers += [nn.ConvTranspose2d(i, o, 4, 2, 1, bias=False), ChannelNorm(o, eps=1e-3), nn.SiLU()]
            i = o
        self.net = nn.Sequential(*layers, nn.ConvTranspose2d(i, 3, 4, 2, 1))

    def forward(self, latent):
        return self.net(self.start(latent).unflatten(-1, (MULT * 8, 4, 4)))


class MLP(nn.Module):
    def __init__(self, i, o, layers=LAYERS):
        super().__init__()
        net = []
        for k in range(layers):
            net += [nn.Linear(i if k == 0 else DENSE, DENSE, bias=False), nn.LayerNorm(DENSE, eps=1e-3), nn.SiLU()]
        self.net = nn.Sequential(*net, nn.Linear(DENSE, o))

    def forward(self, x):
        return self.net(x)


class RSSM(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Sequential(nn.Linear(STOCH * DISCRETE + ACTIONS, DENSE), nn.LayerNorm(DENSE), nn.SiLU())
        self.gru = nn.Linear(DENSE + RECURRENT, 3 * RECURRENT, bias=False)
        self.norm = nn.LayerNorm(3 * RECURRENT)
        self.prior, self.posterior = MLP(RECURRENT, STOCH * DISCRETE, 1), MLP(RECURRENT + MULT * 128, STOCH * DISCRETE, 1)

    def sample(self, logits):
        """Straight-through sample of 32 categorical variables, with 1 % uniform."""
        probs = 0.99 * logits.unflatten(-1, (STOCH, DISCRETE)).float().softmax(-1) + 0.01 / DISCRETE
        index = torch.multinomial(probs.detach().flatten(0, -2), 1)
        hard = torch.zeros_like(probs).flatten(0, -2).scatter_(1, index, 1.0).view_as(probs)
        return probs.log(), (hard + probs - probs.detach()).flatten(-2)

    def recur(self, h, z, action):
        reset, cand, update = self.norm(self.gru(torch.cat([self.mix(torch.cat([z, action], -1)), h], -1))).chunk(3, -1)
        update = torch.sigmoid(update - 1)
        return update * torch.tanh(torch.sigmoid(reset) * cand) + (1 - update) * h

    def dynamic(self, h, z, action, embed):
        h = self.recur(h, z, action)
        prior, _ = self.sample(self.prior(h))
        posterior, z = self.sample(self.posterior(torch.cat([h, embed], -1)))
        return h, z, prior, posterior

    def imagine(self, h, z, action):
        h = self.recur(h, z, action)
        return h, self.sample(self.prior(h))[1]


class WorldModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.rssm, self.decoder = Encoder(), RSSM(), Decoder()
        self.reward, self.cont = MLP(LATENT, BINS), MLP(LATENT, 1)


def kl(p, q):
    return (p.exp() * (p - q)).sum((-1, -2)).clamp(min=1.0).mean()


def train_world(world, opt, data):
    obs, action, reward, done = data
    with knobs.autocast():
        embed = world.encoder(obs.flatten(0, 1)).unflatten(0, (SEQ, BATCH))
        h, z = obs.new_zeros(BATCH, RECURRENT), obs.new_zeros(BATCH, STOCH * DISCRETE)
        latents, priors, posteriors = [], [], []
        for t in range(SEQ):
            h, z, prior, posterior = world.rssm.dynamic(h, z, action[t], embed[t])
            latents.append(torch.cat([h, z], -1))
            priors.append(prior)
            posteriors.append(posterior)
        latent, prior, posterior = torch.stack(latents), torch.stack(priors), torch.stack(posteriors)
        flat = latent.flatten(0, 1)
        image_loss = (world.decoder(flat) - obs.flatten(0, 1)).square().sum((1, 2, 3)).mean()
        reward_loss = F.cross_entropy(world.reward(flat).float(), reward.flatten())
        cont_loss = F.binary_cross_entropy_with_logits(world.cont(flat).float().flatten(), 1 - done.flatten())
        kl_loss = 0.5 * kl(posterior.detach(), prior) + 0.1 * kl(posterior, prior.detach())
    opt.zero_grad()
    loss = image_loss + reward_loss + cont_loss + kl_loss
    loss.backward()
    nn.utils.clip_grad_norm_(world.parameters(), 1000)
    opt.step()
    return latent.detach().flatten(0, 1), loss.item()


def train_behaviour(world, actor, critic, opts, start):
    h, z = start.split([RECURRENT, STOCH * DISCRETE], -1)
    bins = torch.linspace(-20, 20, BINS, device=h.device)
    with knobs.autocast():
        latents, dists = [start], []
        for _ in range(HORIZON):
            mean, std = actor(latents[-1].detach()).float().chunk(2, -1)
            dists.append(Independent(Normal(torch.tanh(mean), F.softplus(std) + 0.1), 1))
            h, z = world.rssm.imagine(h, z, dists[-1].rsample())
            latents.append(torch.cat([h, z], -1))
        trajectory = torch.stack(latents)
        values = (critic(trajectory).float().softmax(-1) * bins).sum(-1)
        rewards = (world.reward(trajectory).float().softmax(-1) * bins).sum(-1)
        discount = 0.997 * torch.sigmoid(world.cont(trajectory).float()).squeeze(-1)
        returns, last = [], values[-1]
        for t in reversed(range(HORIZON)):
            last = rewards[t + 1] + discount[t + 1] * (0.05 * values[t + 1] + 0.95 * last)
            returns.append(last)
        returns = torch.stack(returns[::-1])
        entropy = torch.stack([d.entropy() for d in dists])
        actor_loss = -(returns + 3e-4 * entropy).mean()
    opts["actor"].zero_grad()
    actor_loss.backward()
    nn.utils.clip_grad_norm_(actor.parameters(), 100)
    opts["actor"].step()
    with knobs.autocast():
        target = torch.bucketize(returns.detach(), bins).clamp(max=BINS - 1)
        critic_loss = F.cross_entropy(critic(trajectory[:-1].detach()).float().flatten(0, 1), target.flatten())
    opts["critic"].zero_grad()
    critic_loss.backward()
    opts["critic"].step()
    return actor_loss.item(), critic_loss.item()


def replay():
    return (torch.rand(SEQ, BATCH, 3, 64, 64) - 0.5, torch.rand(SEQ, BATCH, ACTIONS),
            torch.randint(0, BINS, (SEQ, BATCH)), torch.zeros(SEQ, BATCH))


def main():
    torch.manual_seed(0)
    world, actor, critic = (knobs.apply(m.cuda()) for m in (WorldModel(), MLP(LATENT, 2 * ACTIONS), MLP(LATENT, BINS)))
    world_opt = torch.optim.Adam(world.parameters(), lr=1e-4)
    opts = {"actor": torch.optim.Adam(actor.parameters(), lr=8e-5), "critic": torch.optim.Adam(critic.parameters(), lr=8e-5)}
    for update in range(2):
        start, world_loss = train_world(world, world_opt, [t.cuda() for t in replay()])
        print(f"update {update} world {world_loss:.2f}, peak MiB {torch.cuda.max_memory_allocated() >> 20}", flush=True)
        losses = train_behaviour(world, actor, critic, opts, start)
        print(f"update {update} behaviour {losses}, peak MiB {torch.cuda.max_memory_allocated() >> 20}", flush=True)


if __name__ == "__main__":
    main()
