"""Tests what train_gpt.py, made small, takes of GPU memory.

    python -m pytest examples --simulate-gpu 256MiB,context=0,memory=values

Without ``--simulate-gpu`` the tests want a GPU. ``BATCH=24`` trains with a larger
batch, as somebody might who does not think of memory: the tests tell.
"""

from __future__ import annotations

import argparse
import os

import pytest
import torch
import train_gpt

BATCH = int(os.environ.get("BATCH", "16"))
STEPS = 5  # of an epoch, here


def arguments(**changes: object) -> argparse.Namespace:
    """A GPT small enough to be computed on the CPU."""
    small = {
        **{"layers": 4, "heads": 4, "width": 64, "vocabulary": 256, "block": 64},
        **{"batch": BATCH, "dropout": 0.0, "checkpoint": False},
        **{"seed": 1337, "device": "cuda"},
    }
    return argparse.Namespace(**{**small, **changes})


class Training:
    """A model with its optimizer and batches."""

    def __init__(self, **changes: object) -> None:
        chosen = arguments(**changes)
        torch.manual_seed(chosen.seed)
        self.model = train_gpt.GPT(chosen).to(chosen.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=6e-4)
        self.batches = train_gpt.Batches(chosen)

    def step(self) -> torch.Tensor:
        """One step; gives its loss, which still holds the graph."""
        loss = self.model(*self.batches.next())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss


# ---- What must hold of any change: an epoch without OOM, a stable peak, no worse loss


@pytest.mark.no_cuda_oom
@pytest.mark.stable_cuda_peak(steps=STEPS - 1)
@pytest.mark.limit_cuda_memory("32 MiB")
def test_an_epoch():
    training = Training()
    for _ in range(STEPS):
        training.step().item()


@pytest.mark.no_worse_metric("loss", tolerance="2%", baseline=5.07)
def test_the_loss_after_an_epoch(cuda_memory):
    training = Training()
    for _ in range(STEPS):
        loss = training.step()
    cuda_memory.metric("loss", loss.item())


# ---- Leaks


@pytest.fixture
def training():
    return Training()


@pytest.mark.limit_cuda_leaks("0 B")
def test_evaluation_leaves_nothing(training):
    train_gpt.estimate_loss(training.model, training.batches, 2)


@pytest.mark.xfail(strict=True, reason="the classic mistake: a list of losses")
@pytest.mark.stable_cuda_peak(steps=STEPS - 1)
def test_losses_kept_without_item():
    training = Training()
    losses = [training.step() for _ in range(STEPS)]
    assert len(losses) == STEPS


# ---- Benchmarks: stored by --cuda-memory-save, compared by --cuda-memory-compare


@pytest.mark.parametrize("checkpoint", [False, True], ids=["plain", "checkpoint"])
def test_a_step(cuda_memory, checkpoint):
    training = Training(checkpoint=checkpoint)
    training.step()  # makes the optimizer's state
    cuda_memory(training.step)
