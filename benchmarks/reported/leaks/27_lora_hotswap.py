# kind: unload only deactivates a LoRA adapter, its layers remain attached to the base layers under their name; from diffusers / ACE-Step issues
import torch
import torch.nn as nn


class LoraLayer(nn.Module):
    def __init__(self, d_in, d_out, rank, alpha):
        super().__init__()
        self.A = nn.Linear(d_in, rank, bias=False)
        self.B = nn.Linear(rank, d_out, bias=False)
        self.scale = alpha / rank

    def forward(self, x):
        return self.B(self.A(x)) * self.scale


class LoraLinear(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base_layer = base
        self.active = None

    def add(self, name, rank, alpha):
        layer = LoraLayer(self.base_layer.in_features, self.base_layer.out_features, rank, alpha)
        setattr(self, f"lora_{name}", layer.to(self.base_layer.weight.device))  # LEAK
        self.active = name

    def forward(self, x):
        y = self.base_layer(x)
        if self.active is not None:
            y = y + getattr(self, f"lora_{self.active}")(x)
        return y


def inject(module):
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            setattr(module, name, LoraLinear(child))
        else:
            inject(child)
    return module


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        return x + self.down(torch.nn.functional.silu(self.up(x)))


class Pipeline:
    def __init__(self, d=192, depth=3, device="cuda"):
        self.unet = inject(nn.Sequential(*[Block(d) for _ in range(depth)])).to(device).eval()
        self.d, self.device = d, device

    def _lora_targets(self):
        return (m for m in self.unet.modules() if isinstance(m, LoraLinear))

    def load_lora_weights(self, adapter_name, rank=32, alpha=32):
        for m in list(self._lora_targets()):
            m.add(adapter_name, rank, alpha)  # ALSO

    def unload_lora_weights(self):
        for m in self._lora_targets():
            m.active = None

    @torch.inference_mode()
    def __call__(self, steps=3):
        x = torch.randn(2, 64, self.d, device=self.device)
        for _ in range(steps):
            x = x - 0.1 * self.unet(x)
        return x.float().cpu().numpy()


def handle(pipe, job_id):
    # the name comes from the job, the front end uploads the file again each time
    pipe.load_lora_weights(f"user_{job_id}")
    try:
        return pipe()
    finally:
        pipe.unload_lora_weights()


if __name__ == "__main__":
    pipe = Pipeline()
    for job in range(75):
        out = handle(pipe, job)
        if job % 25 == 0:
            print("job", job, out.shape)
