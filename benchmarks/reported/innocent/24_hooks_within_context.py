# kind: context manager registers hooks to record activations for a report each few steps and takes them off again; from forum threads on forgotten hooks (done right)
from contextlib import contextmanager
import timm
import torch
import torch.nn.functional as F


@contextmanager
def recorded(model, wanted):
    acts, handles = {}, []

    def saver(name):
        def hook(mod, args, out):
            acts.setdefault(name, []).append(out.detach().clone())
        return hook

    for name, mod in model.named_modules():
        if wanted(name):
            handles.append(mod.register_forward_hook(saver(name)))
    try:
        yield acts
    finally:
        for h in handles:
            h.remove()
        acts.clear()


def dead_units(acts):
    return {n: float((torch.cat(a).amax(dim=(0, 2, 3)) <= 0).float().mean()) for n, a in acts.items()}


def main(steps=60):
    model = timm.create_model("resnet18", pretrained=False, num_classes=7, in_chans=3).cuda()
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    reports = []
    for step in range(steps):
        x, y = torch.rand(2, 3, 64, 64).cuda(), torch.randint(0, 7, (2,)).cuda()
        if step % 5 == 4:
            with recorded(model, lambda n: n.endswith(("act1", "act2"))) as acts, torch.no_grad():
                for _ in range(3):
                    model(torch.rand(12, 3, 64, 64).cuda())
                reports.append((step, dead_units(acts)))
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(len(reports), "reports, last:", max(reports[-1][1].items(), key=lambda kv: kv[1]))


main()
