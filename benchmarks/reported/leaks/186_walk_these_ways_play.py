# kind: the policy is run without no_grad and the environment's state and observation history are computed from the previous ones, so the graph of all steps is kept; after Improbable-AI/walk-these-ways issue 10
import torch
import torch.nn as nn


class VelocityTrackingEnv:
    def __init__(self, num_envs, device, num_obs=42, num_actions=12, decimation=4):
        self.num_envs, self.device = num_envs, device
        self.num_obs, self.num_actions = num_obs, num_actions
        self.decimation = decimation
        self.p_gains = 20.0
        self.d_gains = 0.5
        self.dt = 0.005
        self.dof_pos = torch.zeros(num_envs, num_actions, device=device)
        self.dof_vel = torch.zeros(num_envs, num_actions, device=device)
        self.actions = torch.zeros(num_envs, num_actions, device=device)
        self.last_actions = torch.zeros(num_envs, num_actions, device=device)
        self.commands = torch.rand(num_envs, 6, device=device)

    def _compute_torques(self, actions):
        return self.p_gains * (actions * 0.25 - self.dof_pos) - self.d_gains * self.dof_vel

    def step(self, actions):
        self.last_actions = self.actions  # LEAK
        self.actions = torch.clip(actions, -10.0, 10.0)  # ALSO
        for _ in range(self.decimation):
            torques = self._compute_torques(self.actions)
            acc = torch.tanh(torques)
            self.dof_vel = self.dof_vel + self.dt * acc  # ALSO
            self.dof_pos = self.dof_pos + self.dt * self.dof_vel  # ALSO
        rew = -((self.actions - self.last_actions) ** 2).sum(dim=1)
        return self.get_observations(), rew.detach()

    def get_observations(self):
        return torch.cat([self.commands, self.dof_pos, self.dof_vel, self.actions], dim=1)


class HistoryWrapper:
    def __init__(self, env, history=5):
        self.env = env
        self.obs_history = torch.zeros(env.num_envs, env.num_obs * history, device=env.device)

    def step(self, action):
        obs, rew = self.env.step(action)
        self.obs_history = torch.cat((self.obs_history[:, self.env.num_obs:], obs), dim=-1)  # ALSO
        return {"obs": obs, "obs_history": self.obs_history}, rew

    def reset(self):
        obs = self.env.get_observations()
        self.obs_history = torch.cat((self.obs_history[:, self.env.num_obs:], obs), dim=-1)
        return {"obs": obs, "obs_history": self.obs_history}


def mlp(i, h, o):
    return nn.Sequential(nn.Linear(i, h), nn.ELU(), nn.Linear(h, h), nn.ELU(), nn.Linear(h, o))


def load_policy(env):
    adaptation_module = mlp(env.env.num_obs * 5, 128, 2).to(env.env.device)
    body = mlp(env.env.num_obs * 5 + 2, 128, env.env.num_actions).to(env.env.device)

    def policy(obs, info={}):
        latent = adaptation_module(obs["obs_history"])
        action = body(torch.cat((obs["obs_history"], latent), dim=-1))
        info["latent"] = latent
        return action

    return policy


def play(num_eval_steps=100):
    env = HistoryWrapper(VelocityTrackingEnv(num_envs=128, device="cuda"))
    policy = load_policy(env)
    obs = env.reset()
    measured = []
    for i in range(num_eval_steps):
        actions = policy(obs)
        obs, rew = env.step(actions)  # ALSO
        measured.append(rew.mean().item())
    print("mean reward", sum(measured) / len(measured))


if __name__ == "__main__":
    torch.manual_seed(0)
    play()
