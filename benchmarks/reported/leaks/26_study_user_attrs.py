# kind: every trial of a hyperparameter study holds its trainer (model and Adam state) in user_attrs; from optuna / hyperparameter_search issues
from dataclasses import dataclass, field
import random
import torch
from torch import nn


@dataclass
class Trial:
    number: int
    params: dict = field(default_factory=dict)
    value: float | None = None
    user_attrs: dict = field(default_factory=dict)

    def suggest_float(self, name, low, high):
        self.params[name] = random.Random(f"{name}{self.number}").uniform(low, high)
        return self.params[name]

    def suggest_categorical(self, name, choices):
        self.params[name] = choices[(self.number * 7 + len(name)) % len(choices)]
        return self.params[name]

    def set_user_attr(self, key, value):
        self.user_attrs[key] = value  # LEAK


class Study:
    def __init__(self, direction="minimize"):
        self.direction = direction
        self.trials: list[Trial] = []

    def optimize(self, objective, n_trials, callbacks=()):
        for n in range(n_trials):
            trial = Trial(n)
            trial.value = objective(trial)
            self.trials.append(trial)  # ALSO
            for cb in callbacks:
                cb(self, trial)

    @property
    def best_trial(self):
        return min(self.trials, key=lambda t: t.value)


class Trainer:
    def __init__(self, width, dropout, lr):
        self.model = nn.Sequential(
            nn.Linear(32, width), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1),
        ).cuda()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=lr)

    def train(self, steps=4):
        for _ in range(steps):
            x = torch.randn(64, 32, device="cuda")
            loss = nn.functional.mse_loss(self.model(x), x.sum(1, keepdim=True))
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        return loss.item()


def objective(trial):
    trainer = Trainer(
        width=trial.suggest_categorical("width", [224, 256, 288]),
        dropout=trial.suggest_float("dropout", 0.0, 0.5),
        lr=trial.suggest_float("lr", 1e-4, 1e-2),
    )
    value = trainer.train()
    # we want the model of the best trial afterwards
    trial.set_user_attr("trainer", trainer)  # ALSO
    return value


def report(study, trial):
    if trial.number % 20 == 0:
        print(f"trial {trial.number} value {trial.value:.4f} params {trial.params}")


study = Study()
study.optimize(objective, n_trials=80, callbacks=[report])
best = study.best_trial.user_attrs["trainer"].model
print("best trial", study.best_trial.number, sum(p.numel() for p in best.parameters()), "parameters")
