# kind: feature distillation with hooks, discuss.pytorch.org "CUDA out of memory after some iterations with register_forward_hook"
import torch
import torch.nn as nn
import torch.nn.functional as F
import timm


def attach(model, names):
    """Returns a dict with a list of outputs for each layer."""
    bank = {name: [] for name in names}

    def hook_for(name):
        def hook(module, args, output):
            bank[name].append(output)  # LEAK
        return hook

    for name, module in model.named_modules():
        if name in names:
            module.register_forward_hook(hook_for(name))
    return bank


def train(steps=50):
    teacher = timm.create_model("resnet34", pretrained=False, num_classes=10).cuda().eval()
    student = timm.create_model("resnet18", pretrained=False, num_classes=10).cuda()
    for p in teacher.parameters():
        p.requires_grad = False
    layers = ["layer2", "layer3"]
    t_feats, s_feats = attach(teacher, layers), attach(student, layers)
    opt = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    T = 4.0
    for step in range(steps):
        x = torch.randn(16, 3, 96, 96, device="cuda")
        y = torch.randint(0, 10, (16,), device="cuda")
        with torch.no_grad():
            t_out = teacher(x)
        s_out = student(x)
        loss = F.cross_entropy(s_out, y)
        loss = loss + T * T * F.kl_div(F.log_softmax(s_out / T, 1), F.softmax(t_out / T, 1), reduction="batchmean")
        for name in layers:
            loss = loss + 0.1 * F.mse_loss(s_feats[name][-1], t_feats[name][-1])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        for name in layers:
            s_feats[name].clear()
    print("loss", loss.item(), torch.cuda.memory_allocated() >> 20, "MiB")


train()
