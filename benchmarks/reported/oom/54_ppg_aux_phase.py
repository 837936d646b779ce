# CARD: 12GiB
# KNOBS: BATCH=8192 N_PI=8 DATA_ON_CPU AUTOCAST CHECKPOINT=ResidualBlock,ConvSequence,Impala OPT FUSED
# EXPERT: the policy phases (minibatch 1024) fit; the auxiliary phase sends minibatches of 8192 observations (64 x 64 x 3) through two Impala networks at once, the first convolution alone makes 2 GiB for each; auxiliary minibatches of 4096 or 2048, or checkpoint the convolution sequences (or each network); the stored observations (1.5 GiB of uint8) are not the cause: keeping them on the CPU or fewer policy phases is not enough, nor is autocast, checkpointing only the residual blocks or the optimizer
# Source: openai/phasic-policy-gradient 2 (out of memory; 'in the aux phase you load 32768 observations to the GPU'); written by hand
import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical, kl_divergence

import knobs


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--num-envs", type=int, default=1024)
    p.add_argument("--num-steps", type=int, default=16)
    p.add_argument("--n-pi", type=int, default=int(os.environ.get("N_PI", 8)), help="policy phases before an auxiliary phase")
    p.add_argument("--minibatch", type=int, default=1024)
    p.add_argument("--aux-minibatch", type=int, default=int(os.environ.get("BATCH", 8192)), help="observations per auxiliary minibatch")
    p.add_argument("--lr", type=float, default=5e-4)
    p.add_argument("--beta-clone", type=float, default=1.0)
    p.add_argument("--clip", type=float, default=0.2)
    return p.parse_args()


class ResidualBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv0, self.conv1 = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        return x + self.conv1(F.relu(self.conv0(F.relu(x))))


class ConvSequence(nn.Module):
    def __init__(self, cin, c):
        super().__init__()
        self.conv = nn.Conv2d(cin, c, 3, padding=1)
        self.res0, self.res1 = ResidualBlock(c), ResidualBlock(c)

    def forward(self, x):
        x = F.max_pool2d(self.conv(x), 3, stride=2, padding=1)
        return self.res1(self.res0(x))


class Impala(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.stack = nn.Sequential(ConvSequence(3, 16), ConvSequence(16, 32), ConvSequence(32, 32))
        self.fc = nn.Linear(32 * 8 * 8, 256)
        self.heads = nn.ModuleList(nn.Linear(256, n) for n in outputs)

    def forward(self, x):
        x = self.stack(x.permute(0, 3, 1, 2).float() / 255.0)
        x = F.relu(self.fc(F.relu(x.flatten(1))))
        return [h(x) for h in self.heads]


class Agent(nn.Module):
    def __init__(self, actions=15):
        super().__init__()
        self.pi = Impala([actions, 1])   # policy and auxiliary value
        self.vf = Impala([1])

    def act(self, obs):
        logits, _ = self.pi(obs)
        dist = Categorical(logits=logits)
        action = dist.sample()
        return action, dist.log_prob(action), self.vf(obs)[0].squeeze(1)


args = get_args()
device = torch.device("cuda")
agent = knobs.apply(Agent().to(device))
optimizer = torch.optim.Adam(agent.parameters(), lr=args.lr, eps=1e-8)
E, T = args.num_envs, args.num_steps
aux_obs, aux_ret = [], []

for phase in range(args.n_pi):
    obs = torch.zeros(T, E, 64, 64, 3, dtype=torch.uint8, device=device)
    actions = torch.zeros(T, E, dtype=torch.long, device=device)
    logprobs, rewards, dones, values = (torch.zeros(T, E, device=device) for _ in range(4))
    with torch.no_grad():
        for t in range(T):
            obs[t] = torch.randint(0, 255, (E, 64, 64, 3), dtype=torch.uint8, device=device)  # the GPU environment
            actions[t], logprobs[t], values[t] = agent.act(obs[t])
            rewards[t] = torch.rand(E, device=device)
        last = torch.zeros(E, device=device)
        adv = torch.zeros_like(rewards)
        nxt = values[-1]
        for t in reversed(range(T)):
            delta = rewards[t] + 0.999 * nxt * (1 - dones[t]) - values[t]
            adv[t] = last = delta + 0.999 * 0.95 * (1 - dones[t]) * last
            nxt = values[t]
        returns = adv + values
    flat = [x.flatten(0, 1) for x in (obs, actions, logprobs, adv, returns)]
    order = torch.randperm(E * T)
    for mb in order[: 4 * args.minibatch].split(args.minibatch):
        o, a, lp, ad, ret = [x[mb.to(device)] for x in flat]
        with knobs.autocast():
            logits, _ = agent.pi(o)
            v = agent.vf(o)[0].squeeze(1)
        dist = Categorical(logits=logits.float())
        ratio = (dist.log_prob(a) - lp).exp()
        ad = (ad - ad.mean()) / (ad.std() + 1e-8)
        pg = torch.max(-ad * ratio, -ad * ratio.clamp(1 - args.clip, 1 + args.clip)).mean()
        loss = pg + 0.5 * (v.float() - ret).pow(2).mean() - 0.01 * dist.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    aux_obs.append(obs.flatten(0, 1).cpu() if knobs._on("DATA_ON_CPU") else obs.flatten(0, 1))
    aux_ret.append(returns.flatten())
    print(f"policy phase {phase}: loss {loss.item():.4f}")
    del obs, flat, o

# ---- auxiliary phase
aux_obs, aux_ret = torch.cat(aux_obs), torch.cat(aux_ret)
with torch.no_grad():
    old = torch.cat([agent.pi(o.to(device))[0] for o in aux_obs.split(args.minibatch)])
order = torch.randperm(aux_obs.shape[0])
for step, mb in enumerate(order.split(args.aux_minibatch)[:3]):
    o, ret, prior = aux_obs[mb.to(aux_obs.device)].to(device), aux_ret[mb.to(device)], old[mb.to(device)]
    with knobs.autocast():
        logits, aux_v = agent.pi(o)
        v, = agent.vf(o)
    kl = kl_divergence(Categorical(logits=prior), Categorical(logits=logits.float())).mean()
    loss = 0.5 * (aux_v.squeeze(1).float() - ret).pow(2).mean() + args.beta_clone * kl + 0.5 * (v.squeeze(1).float() - ret).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"aux {step}: kl {kl.item():.4f} loss {loss.item():.4f}")
