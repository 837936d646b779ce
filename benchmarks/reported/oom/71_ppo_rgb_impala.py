# CARD: 12GiB
# KNOBS: NUM_ENVS=256 MINIBATCHES=8 OBS_UINT8 AUTOCAST CHECKPOINT=ResidualBlock,ConvSequence
# EXPERT: activations of the IMPALA network for minibatches of 1760 pictures of 128 x 128 in the update, beside a rollout buffer of 2.6 GiB in fp32; enough: MINIBATCHES=16, NUM_ENVS=128, AUTOCAST with OBS_UINT8; not enough: OBS_UINT8, AUTOCAST alone, CHECKPOINT (the first ConvSequence at full resolution is recomputed as a whole)
# Source: mani-skill/ManiSkill 716 (ppo_rgb with num_envs 256 and num_minibatches 8 on an 11 GB RTX 2080: CUDA out of memory); plain PyTorch (CleanRL style)
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Normal

import knobs

NUM_ENVS = int(os.environ.get("NUM_ENVS", 256))
MINIBATCHES = int(os.environ.get("MINIBATCHES", 8))
OBS_DTYPE = torch.uint8 if os.environ.get("OBS_UINT8") == "1" else torch.float32
NUM_STEPS, UPDATE_EPOCHS, ITERATIONS = 55, 1, 3
ACTIONS, STATE, SIZE = 8, 29, 128
device = torch.device("cuda")


class ResidualBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv0, self.conv1 = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        return x + self.conv1(F.relu(self.conv0(F.relu(x))))


class ConvSequence(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.conv = nn.Conv2d(a, b, 3, padding=1)
        self.res0, self.res1 = ResidualBlock(b), ResidualBlock(b)

    def forward(self, x):
        x = F.max_pool2d(self.conv(x), 3, 2, 1)
        return self.res1(self.res0(x))


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.Sequential(ConvSequence(3, 32), ConvSequence(32, 64), ConvSequence(64, 64))
        self.fc = nn.Linear(64 * (SIZE // 8) ** 2 + STATE, 256)
        self.critic = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1))
        self.actor = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, ACTIONS))
        self.logstd = nn.Parameter(torch.ones(1, ACTIONS) * -0.5)

    def features(self, rgb, state):
        x = rgb.float() / 255.0
        x = F.relu(self.convs(x.permute(0, 3, 1, 2))).flatten(1)
        return F.relu(self.fc(torch.cat([x, state], 1)))

    def get_action_and_value(self, rgb, state, action=None):
        x = self.features(rgb, state)
        dist = Normal(self.actor(x).float(), self.logstd.exp().expand(len(x), -1), validate_args=False)
        if action is None:
            action = dist.sample()
        return action, dist.log_prob(action).sum(1), dist.entropy().sum(1), self.critic(x).flatten()


class FakeEnvs:
    """Stands in for the GPU simulation: camera pictures and robot states on the GPU."""

    def step(self, action=None):
        rgb = torch.randint(0, 256, (NUM_ENVS, SIZE, SIZE, 3), dtype=torch.uint8, device=device)
        state = torch.randn(NUM_ENVS, STATE, device=device)
        return rgb, state, torch.rand(NUM_ENVS, device=device), torch.zeros(NUM_ENVS, device=device)


torch.manual_seed(0)
envs = FakeEnvs()
agent = Agent().to(device)
knobs.apply(agent)
optimizer = torch.optim.Adam(agent.parameters(), lr=3e-4, eps=1e-5)

obs_rgb = torch.zeros(NUM_STEPS, NUM_ENVS, SIZE, SIZE, 3, dtype=OBS_DTYPE, device=device)
obs_state = torch.zeros(NUM_STEPS, NUM_ENVS, STATE, device=device)
actions = torch.zeros(NUM_STEPS, NUM_ENVS, ACTIONS, device=device)
logprobs, rewards, dones, values = (torch.zeros(NUM_STEPS, NUM_ENVS, device=device) for _ in range(4))

rgb, state, _, done = envs.step()
batch_size = NUM_ENVS * NUM_STEPS
minibatch_size = batch_size // MINIBATCHES
for iteration in range(ITERATIONS):
    for step in range(NUM_STEPS):
        obs_rgb[step], obs_state[step], dones[step] = rgb, state, done
        with torch.no_grad(), knobs.autocast():
            action, logprob, _, value = agent.get_action_and_value(rgb, state)
        actions[step], logprobs[step], values[step] = action, logprob, value
        rgb, state, reward, done = envs.step(action)
        rewards[step] = reward

    with torch.no_grad():
        next_value = agent.critic(agent.features(rgb, state)).flatten()
        advantages, last = torch.zeros_like(rewards), 0
        for t in reversed(range(NUM_STEPS)):
            nonterminal = 1.0 - (done if t == NUM_STEPS - 1 else dones[t + 1])
            following = next_value if t == NUM_STEPS - 1 else values[t + 1]
            delta = rewards[t] + 0.8 * following * nonterminal - values[t]
            advantages[t] = last = delta + 0.8 * 0.9 * nonterminal * last
        returns = advantages + values

    b_rgb, b_state = obs_rgb.reshape(-1, SIZE, SIZE, 3), obs_state.reshape(-1, STATE)
    b_actions, b_logprobs = actions.reshape(-1, ACTIONS), logprobs.reshape(-1)
    b_adv, b_returns = advantages.reshape(-1), returns.reshape(-1)
    for epoch in range(UPDATE_EPOCHS):
        order = torch.randperm(batch_size, device=device)
        for start in range(0, batch_size, minibatch_size):
            idx = order[start:start + minibatch_size]
            with knobs.autocast():
                _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_rgb[idx], b_state[idx], b_actions[idx])
            ratio = (newlogprob - b_logprobs[idx]).exp()
            adv = (b_adv[idx] - b_adv[idx].mean()) / (b_adv[idx].std() + 1e-8)
            pg_loss = torch.max(-adv * ratio, -adv * ratio.clamp(0.8, 1.2)).mean()
            v_loss = 0.5 * ((newvalue.float() - b_returns[idx]) ** 2).mean()
            loss = pg_loss + 0.5 * v_loss - 0.0 * entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
    print(f"step {iteration}: loss {loss.item():.4f}")
