# kind: policy is run without no_grad in play loop and the actions flow into the env's state and its history, so the graph of every past step stays; from Improbable-AI/walk-these-ways issue 10
import torch
import torch.nn as nn


class ActorCritic(nn.Module):
    def __init__(self, num_obs, num_hist, num_actions):
        super().__init__()
        self.adaptation = nn.Sequential(nn.Linear(num_obs * num_hist, 64), nn.ELU(), nn.Linear(64, 8))
        self.actor_body = nn.Sequential(nn.Linear(num_obs + 8, 128), nn.ELU(), nn.Linear(128, 64), nn.ELU(),
                                        nn.Linear(64, num_actions))

    def act_inference(self, obs, obs_history):
        latent = self.adaptation(obs_history)
        return self.actor_body(torch.cat((obs, latent), dim=-1))


class VelocityTrackingEnv:
    """Point-mass stand-in for the simulator: joints follow the actions."""

    def __init__(self, num_envs=48, num_actions=12, device="cuda"):
        self.num_envs, self.num_actions, self.device = num_envs, num_actions, device
        self.num_obs = 3 * num_actions + 3
        self.decimation = 4
        self.dof_pos = torch.zeros(num_envs, num_actions, device=device)
        self.dof_vel = torch.zeros_like(self.dof_pos)
        self.last_actions = torch.zeros_like(self.dof_pos)
        self.commands = torch.zeros(num_envs, 3, device=device)
        self.gains = torch.full((num_actions,), 20.0, device=device)

    def _torques(self, actions):
        return self.gains * (0.25 * actions - self.dof_pos) - 0.5 * self.dof_vel

    def step(self, actions):
        actions = torch.clip(actions, -10.0, 10.0)
        for _ in range(self.decimation):
            self.dof_vel = (self.dof_vel + 0.005 * self._torques(actions)).clamp(-5, 5)  # ALSO
            self.dof_pos = self.dof_pos + 0.005 * self.dof_vel  # LEAK
        self.last_actions = actions  # ALSO
        reward = torch.exp(-self.dof_vel.pow(2).mean(1))
        return self.compute_observations(), reward

    def compute_observations(self):
        return torch.cat((self.commands, self.dof_pos, 0.05 * self.dof_vel, self.last_actions), dim=-1)


class HistoryWrapper:
    def __init__(self, env, history=5):
        self.env = env
        self.obs_history = torch.zeros(env.num_envs, history * env.num_obs, device=env.device)

    def reset(self):
        return {"obs": self.env.compute_observations(), "obs_history": self.obs_history}

    def step(self, actions):
        obs, reward = self.env.step(actions)
        self.obs_history = torch.cat((self.obs_history[:, self.env.num_obs:], obs), dim=-1)  # ALSO
        return {"obs": obs, "obs_history": self.obs_history}, reward


def load_policy(env):
    body = ActorCritic(env.num_obs, 5, env.num_actions).to(env.device)
    body.eval()

    def policy(obs):
        return body.act_inference(obs["obs"], obs["obs_history"])

    return policy


def play_go1(num_eval_steps=200):
    base = VelocityTrackingEnv()
    env = HistoryWrapper(base)
    policy = load_policy(base)
    measured = []
    obs = env.reset()
    for i in range(num_eval_steps):
        base.commands[:, 0] = 1.5
        actions = policy(obs)  # ALSO
        obs, rew = env.step(actions)  # ALSO
        measured.append(rew.mean().item())
    print(f"mean reward {sum(measured) / len(measured):.4f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    play_go1()
