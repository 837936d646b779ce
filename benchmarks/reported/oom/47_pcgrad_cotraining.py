# CARD: 24GiB
# KNOBS: BATCH=8 OBJECTIVES=15 AUTOCAST CHECKPOINT=Layer CHECKPOINT_PATHS=nets.*.layers.* OPT FUSED
# EXPERT: PCGrad holds a flat gradient of all 5 networks for each of the 15 losses, a mask of the same size and a projected copy, 45 times the parameters, and more when they are stacked; give it one loss per task (3 objectives) instead of one per task and view; a smaller batch, checkpointing or autocast is not enough although retain_graph keeps the graphs, nor is another optimizer
# Source: WeiChengTseng/Pytorch-PCGrad 2 (5 co-trained sub-networks with 3 tasks each, 15 losses, out of memory, suspected retain_graph=True), tianheyu927/PCGrad 4 ("it consumes a lot of GPU memory"); written by hand
import copy
import os
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

import knobs

BATCH = int(os.environ.get("BATCH", 8))
OBJECTIVES = int(os.environ.get("OBJECTIVES", 15))
VIEWS, LENGTH = [256, 128, 64, 300, 512], 128
random.seed(0)


class PCGrad:
    def __init__(self, optimizer, reduction="mean"):
        self._optim, self._reduction = optimizer, reduction

    def zero_grad(self):
        return self._optim.zero_grad(set_to_none=True)

    def step(self):
        return self._optim.step()

    def pc_backward(self, objectives):
        grads, shapes, has_grads = self._pack_grad(objectives)
        pc_grad = self._project_conflicting(grads, has_grads)
        self._set_grad(self._unflatten_grad(pc_grad, shapes[0]))

    def _project_conflicting(self, grads, has_grads):
        pc_grad = copy.deepcopy(grads)
        for g_i in pc_grad:
            random.shuffle(grads)
            for g_j in grads:
                g_i_g_j = torch.dot(g_i, g_j)
                if g_i_g_j < 0:
                    g_i -= g_i_g_j * g_j / (g_j.norm() ** 2)
        count = torch.stack(has_grads).sum(0).clamp(min=1)
        merged = torch.stack(pc_grad).sum(0)
        return merged / count if self._reduction == "mean" else merged

    def _pack_grad(self, objectives):
        grads, shapes, has_grads = [], [], []
        for obj in objectives:
            self._optim.zero_grad(set_to_none=True)
            obj.backward(retain_graph=True)
            grad, shape, has_grad = self._retrieve_grad()
            grads.append(self._flatten_grad(grad))
            has_grads.append(self._flatten_grad(has_grad))
            shapes.append(shape)
        return grads, shapes, has_grads

    def _retrieve_grad(self):
        grad, shape, has_grad = [], [], []
        for group in self._optim.param_groups:
            for p in group["params"]:
                shape.append(p.shape)
                if p.grad is None:
                    grad.append(torch.zeros_like(p))
                    has_grad.append(torch.zeros_like(p))
                else:
                    grad.append(p.grad.clone())
                    has_grad.append(torch.ones_like(p))
        return grad, shape, has_grad

    def _flatten_grad(self, grads):
        return torch.cat([g.detach().flatten() for g in grads])

    def _unflatten_grad(self, grads, shapes):
        out, idx = [], 0
        for shape in shapes:
            n = shape.numel()
            out.append(grads[idx:idx + n].view(shape).clone())
            idx += n
        return out

    def _set_grad(self, grads):
        idx = 0
        for group in self._optim.param_groups:
            for p in group["params"]:
                p.grad = grads[idx]
                idx += 1


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.ln1, self.att = nn.LayerNorm(dim), nn.MultiheadAttention(dim, 8, dropout=0.1, batch_first=True)
        self.ln2 = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * dim, dim))

    def forward(self, x):
        y = self.ln1(x)
        x = x + self.att(y, y, y, need_weights=False)[0]
        return x + self.ffn(self.ln2(x))


class ViewNet(nn.Module):
    def __init__(self, in_dim, dim=640, depth=6):
        super().__init__()
        self.inp = nn.Linear(in_dim, dim)
        self.pos = nn.Parameter(torch.zeros(1, LENGTH, dim))
        self.layers = nn.ModuleList(Layer(dim) for _ in range(depth))
        self.heads = nn.ModuleDict({"emotion": nn.Linear(dim, 7), "valence": nn.Linear(dim, 1), "speaker": nn.Linear(dim, 1251)})

    def forward(self, x):
        x = self.inp(x) + self.pos
        for layer in self.layers:
            x = layer(x)
        x = x.mean(1)
        return {k: head(x) for k, head in self.heads.items()}


class CoTraining(nn.Module):
    def __init__(self):
        super().__init__()
        self.nets = nn.ModuleList(ViewNet(d) for d in VIEWS)

    def forward(self, views):
        return [net(v) for net, v in zip(self.nets, views)]


def losses_of(outs, y):
    per = {"emotion": [], "valence": [], "speaker": []}
    consensus = torch.stack([o["emotion"].float().softmax(-1) for o in outs]).mean(0).detach()
    for o in outs:
        logp = F.log_softmax(o["emotion"].float(), -1)
        per["emotion"].append(F.nll_loss(logp, y["emotion"]) + 0.1 * F.kl_div(logp, consensus, reduction="batchmean"))
        per["valence"].append(F.mse_loss(o["valence"].float().squeeze(1), y["valence"]))
        per["speaker"].append(F.cross_entropy(o["speaker"].float(), y["speaker"]))
    if OBJECTIVES == 3:
        return [sum(v) for v in per.values()]
    return [loss for v in per.values() for loss in v]


def main():
    model = knobs.apply(CoTraining().cuda())
    optimizer = PCGrad(torch.optim.Adam(model.parameters(), lr=1e-4))
    for it in range(3):
        views = [torch.randn(BATCH, LENGTH, d).cuda() for d in VIEWS]
        y = {"emotion": torch.randint(0, 7, (BATCH,)).cuda(), "valence": torch.rand(BATCH).cuda(), "speaker": torch.randint(0, 1251, (BATCH,)).cuda()}
        with knobs.autocast():
            outs = model(views)
        losses = losses_of(outs, y)
        optimizer.zero_grad()
        optimizer.pc_backward(losses)
        optimizer.step()
        print("iter", it, "losses", ["%.3f" % l.item() for l in losses[:3]])


main()
