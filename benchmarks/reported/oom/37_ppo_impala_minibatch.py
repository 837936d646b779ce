# CARD: 12GiB
# KNOBS: MINIBATCHES=1 ENVS=64 STEPS=128 OBS_FLOAT=1 DATA_ON_CPU AUTOCAST CHECKPOINT=ResidualBlock,ConvSequence CHECKPOINT_PATHS=network.0,network.1,network.2 OPT FUSED
# EXPERT: the one minibatch has 64*128 = 8192 frames and the IMPALA residual blocks keep more than a dozen maps of 16 and 32 channels per frame; more minibatches (2 to 16); bf16 or checkpointing the residual sequences alone, rollouts on the CPU or as bytes or another optimizer are not enough
# Source: PPO with the IMPALA CNN and few minibatches on many environments (vwxyzjn/cleanrl ppo_procgen, DLR-RM/stable-baselines3 questions on batch_size and CUDA out of memory in the update); written by hand
import os

import torch
import torch.nn as nn
from torch.distributions import Categorical

import knobs


def cfg(name, default):
    return int(os.environ.get(name, default))


NUM_ENVS, NUM_STEPS, MINIBATCHES = cfg("ENVS", 64), cfg("STEPS", 128), cfg("MINIBATCHES", 1)
OBS_DTYPE = torch.float32 if cfg("OBS_FLOAT", 1) else torch.uint8
UPDATES, EPOCHS, ACTIONS = 2, 1, 15
SHAPE = (4, 84, 84)


class ResidualBlock(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.conv0, self.conv1 = nn.Conv2d(ch, ch, 3, padding=1), nn.Conv2d(ch, ch, 3, padding=1)

    def forward(self, x):
        y = self.conv0(nn.functional.relu(x))
        return x + self.conv1(nn.functional.relu(y))


class ConvSequence(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, padding=1)
        self.res0, self.res1 = ResidualBlock(cout), ResidualBlock(cout)

    def forward(self, x):
        x = nn.functional.max_pool2d(self.conv(x), 3, 2, 1)
        return self.res1(self.res0(x))


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(ConvSequence(4, 16), ConvSequence(16, 32), ConvSequence(32, 32), nn.Flatten(), nn.ReLU(),
                                     nn.Linear(32 * 11 * 11, 256), nn.ReLU())
        self.actor, self.critic = nn.Linear(256, ACTIONS), nn.Linear(256, 1)

    def get_value(self, x):
        return self.critic(self.network(x.float() / 255.0))

    def get_action_and_value(self, x, action=None):
        hidden = self.network(x.float() / 255.0)
        probs = Categorical(logits=self.actor(hidden).float(), validate_args=False)
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(hidden).float()


class VecEnv:
    def reset(self):
        return torch.zeros(NUM_ENVS, *SHAPE, dtype=OBS_DTYPE)

    def step(self, action):
        return self.reset(), torch.zeros(NUM_ENVS), torch.zeros(NUM_ENVS)


def main():
    device = torch.device("cuda")
    agent = knobs.apply(Agent().to(device))
    optimizer = torch.optim.Adam(agent.parameters(), lr=5e-4, eps=1e-5)
    env = VecEnv()

    obs = knobs.data(torch.zeros((NUM_STEPS, NUM_ENVS) + SHAPE, dtype=OBS_DTYPE))
    actions, logprobs, rewards, dones, values = (torch.zeros(NUM_STEPS, NUM_ENVS, device=device) for _ in range(5))
    next_obs, next_done = env.reset(), torch.zeros(NUM_ENVS, device=device)

    for update in range(UPDATES):
        for step in range(NUM_STEPS):
            obs[step] = next_obs.to(obs.device)
            dones[step] = next_done
            with torch.no_grad(), knobs.autocast():
                action, logprob, _, value = agent.get_action_and_value(next_obs.to(device))
            values[step], actions[step], logprobs[step] = value.flatten(), action, logprob
            next_obs, reward, done = env.step(action)
            rewards[step], next_done = reward.to(device), done.to(device)

        with torch.no_grad():
            next_value = agent.get_value(next_obs.to(device)).view(-1)
            advantages, last = torch.zeros_like(rewards), 0
            for t in reversed(range(NUM_STEPS)):
                alive = 1.0 - (next_done if t == NUM_STEPS - 1 else dones[t + 1])
                after = next_value if t == NUM_STEPS - 1 else values[t + 1]
                delta = rewards[t] + 0.999 * after * alive - values[t]
                advantages[t] = last = delta + 0.999 * 0.95 * alive * last
            returns = advantages + values

        b_obs = obs.reshape((-1,) + SHAPE)
        b_act, b_logp, b_adv, b_ret = (t.reshape(-1) for t in (actions, logprobs, advantages, returns))
        size = NUM_ENVS * NUM_STEPS // MINIBATCHES
        for _ in range(EPOCHS):
            order = torch.randperm(NUM_ENVS * NUM_STEPS)
            for start in range(0, NUM_ENVS * NUM_STEPS, size):
                mb = order[start:start + size]
                x = b_obs[mb.to(b_obs.device)].to(device)
                mb = mb.to(device)
                with knobs.autocast():
                    _, newlogp, entropy, newvalue = agent.get_action_and_value(x, b_act[mb])
                ratio = (newlogp - b_logp[mb]).exp()
                adv = (b_adv[mb] - b_adv[mb].mean()) / (b_adv[mb].std() + 1e-8)
                pg = torch.max(-adv * ratio, -adv * ratio.clamp(0.8, 1.2)).mean()
                v = 0.5 * (newvalue.view(-1) - b_ret[mb]).pow(2).mean()
                loss = pg - 0.01 * entropy.mean() + 0.5 * v
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        print("update", update, "loss", loss.item())
    print("PEAK", torch.cuda.max_memory_allocated())


main()
