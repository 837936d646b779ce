# kind: scikit-learn's BaggingRegressor with warm_start=True gets some more members at every refit on new data and never loses one, its estimators are small networks on the GPU; from skorch / scikit-learn questions on ensembles of GPU models
import warnings

import numpy as np
import torch
import torch.nn as nn
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.ensemble import BaggingRegressor


class MLPRegressorTorch(RegressorMixin, BaseEstimator):
    """Minimal scikit-learn wrapper of a two-layer network."""

    def __init__(self, hidden=512, epochs=4, lr=5e-3, device="cuda"):
        self.hidden = hidden
        self.epochs = epochs
        self.lr = lr
        self.device = device

    def _build(self, n_features):
        return nn.Sequential(
            nn.Linear(n_features, self.hidden), nn.ReLU(),
            nn.Linear(self.hidden, 64), nn.ReLU(),
            nn.Linear(64, 1)).to(self.device)

    def _tensor(self, a):
        return torch.as_tensor(np.asarray(a), dtype=torch.float32).to(self.device)

    def fit(self, X, y):
        X, y = self._tensor(X), self._tensor(y)
        self.module_ = self._build(X.shape[1])
        opt = torch.optim.Adam(self.module_.parameters(), lr=self.lr)
        for _ in range(self.epochs):
            for idx in torch.randperm(len(X)).split(64):
                loss = (self.module_(X[idx])[:, 0] - y[idx]).square().mean()
                opt.zero_grad()
                loss.backward()
                opt.step()
        return self

    @torch.no_grad()
    def predict(self, X):
        return self.module_(self._tensor(X))[:, 0].cpu().numpy()


class LoadForecaster:
    """Refits every day on the last two weeks; uncertainty is the spread of the ensemble."""

    def __init__(self, members_per_day=1, window=336):
        self.window = window
        self.members_per_day = members_per_day
        self.ensemble = BaggingRegressor(
            MLPRegressorTorch(), n_estimators=members_per_day, max_samples=0.8, warm_start=True, random_state=0)
        self.fitted = False

    def _features(self, series, t):
        lags = np.stack([series[i - 24:i] for i in range(t - self.window, t)])
        hour = (np.arange(t - self.window, t) % 24)[:, None] / 24
        return np.hstack([lags, np.sin(2 * np.pi * hour), np.cos(2 * np.pi * hour)])

    def _grow(self):
        if self.fitted:
            self.ensemble.n_estimators += self.members_per_day
        self.fitted = True

    def refit(self, series, t):
        X = self._features(series, t)
        y = series[t - self.window:t]
        self._grow()
        self.ensemble.fit(X, y)  # LEAK

    def forecast(self, series, t, recent=10):
        X = self._features(series, t)[-24:]
        votes = np.stack([m.predict(X) for m in self.ensemble.estimators_[-recent:]])
        return votes.mean(0), votes.std(0)


def household(days, rng):
    t = np.arange(24 * days)
    return 1 + 0.5 * np.sin(2 * np.pi * t / 24) + 0.2 * np.sin(2 * np.pi * t / 168) + 0.1 * rng.standard_normal(len(t))


def main(days=110):
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    series = household(days, np.random.default_rng(0))
    model, errors = LoadForecaster(), []
    for day in range(16, days):
        t = 24 * day
        if model.fitted:
            mean, spread = model.forecast(series, t)
            errors.append(np.abs(mean - series[t - 24:t]).mean())
        model.refit(series, t)
        if day % 25 == 0:
            print(f"day {day}: mean error {np.mean(errors):.3f}, spread {spread.mean():.3f}")


if __name__ == "__main__":
    main()
