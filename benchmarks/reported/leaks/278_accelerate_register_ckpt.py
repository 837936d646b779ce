# kind: an object registered for checkpointing anew in each round (accelerate); in the manner of a discuss.huggingface.co thread "memory not released between rounds of self-training"
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator


class TeacherEMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = {k: v.detach().clone() for k, v in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model):
        for k, v in model.state_dict().items():
            self.shadow[k].lerp_(v, 1 - self.decay)

    def state_dict(self):
        return self.shadow

    def load_state_dict(self, sd):
        self.shadow = sd


def make_model():
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 8))


def self_training_round(accelerator, model, optimizer, steps=6):
    ema = TeacherEMA(model, 0.9)
    accelerator.register_for_checkpointing(ema)  # LEAK
    for _ in range(steps):
        x = torch.randn(64, 64, device=accelerator.device)
        with torch.no_grad():
            pseudo = torch.func.functional_call(model, ema.shadow, (x,)).softmax(-1)
        loss = -(pseudo * F.log_softmax(model(x + 0.1 * torch.randn_like(x)), -1)).sum(-1).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        ema.update(model)
    return loss.item()


def main():
    accelerator = Accelerator()
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    for rnd in range(60):
        loss = self_training_round(accelerator, model, optimizer)
    accelerator.print("last", loss)


if __name__ == "__main__":
    main()
