# kind: innocent, forward hooks collect activations of the first 60 batches for post-training quantisation, then the ranges are computed and all is released; in the manner of GPTQ/SmoothQuant calibration scripts
import torch
import torch.nn as nn


class InputRecorder:
    def __init__(self):
        self.inputs = []

    def __call__(self, module, args, output):
        self.inputs.append(args[0].detach())


class FakeQuantLinear(nn.Module):
    def __init__(self, linear, act_scale, n_bits=8):
        super().__init__()
        self.qmax = 2 ** (n_bits - 1) - 1
        w_scale = linear.weight.detach().abs().amax(1, keepdim=True).clamp(min=1e-6) / self.qmax
        self.register_buffer("qweight", (linear.weight.detach() / w_scale).round().to(torch.int8))
        self.register_buffer("w_scale", w_scale)
        self.register_buffer("act_scale", act_scale)
        self.register_buffer("bias", linear.bias.detach().clone())

    def forward(self, x):
        q = (x / self.act_scale).round().clamp(-self.qmax, self.qmax) * self.act_scale
        return nn.functional.linear(q, self.qweight.float() * self.w_scale, self.bias)


def linears(model):
    return {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}


def scale_from(inputs, n_bits=8, keep=0.999):
    """Percentile range over all the calibration inputs."""
    flat = torch.cat([x.reshape(-1) for x in inputs]).abs()
    k = max(1, int(keep * flat.numel()))
    top = flat.kthvalue(k).values
    return top.clamp(min=1e-6) / (2 ** (n_bits - 1) - 1)


@torch.no_grad()
def calibrate(model, batches):
    recorders, handles = {}, []
    for name, module in linears(model).items():
        recorders[name] = InputRecorder()
        handles.append(module.register_forward_hook(recorders[name]))
    for x in batches:
        model(x)
    for h in handles:
        h.remove()
    scales = {name: scale_from(r.inputs) for name, r in recorders.items()}
    return scales


def quantize(model, scales):
    for name, scale in scales.items():
        parent_name, _, child = name.rpartition(".")
        parent = model.get_submodule(parent_name) if parent_name else model
        setattr(parent, child, FakeQuantLinear(getattr(parent, child), scale))
    return model


def data(n, device="cuda"):
    for _ in range(n):
        yield torch.randn(32, 64, device=device)


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10))
    model.cuda().eval()
    scales = calibrate(model, data(60))
    print({k: round(v.item(), 5) for k, v in scales.items()})
    model = quantize(model, scales)
    norms = []
    with torch.no_grad():
        for x in data(120):
            norms.append(model(x).norm().item())
    print(f"mean output norm {sum(norms) / len(norms):.3f}, {torch.cuda.memory_allocated() / 2**20:.1f} MiB")
