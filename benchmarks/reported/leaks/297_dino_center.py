# kind: facebookresearch/dino style self-distillation, "memory explodes after some iterations": the centre is updated without no_grad
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
import timm

OUT = 1024


class DINOHead(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(dim, 512), nn.GELU(), nn.Linear(512, 128))
        self.last = nn.Linear(128, OUT, bias=False)

    def forward(self, x):
        return self.last(F.normalize(self.mlp(x), dim=-1))


class DINOLoss(nn.Module):
    def __init__(self, warmup=0.04, student_temp=0.1, momentum=0.9):
        super().__init__()
        self.student_temp, self.teacher_temp, self.momentum = student_temp, warmup, momentum
        self.center = torch.zeros(1, OUT, device="cuda")

    def forward(self, student, teacher):
        s = F.log_softmax(student / self.student_temp, -1)
        t = F.softmax((teacher - self.center) / self.teacher_temp, -1).detach()
        loss = -(t * s).sum(-1).mean()
        self.update_center(teacher)
        return loss

    def update_center(self, teacher):
        batch_center = teacher.mean(0, keepdim=True)
        self.center = self.center * self.momentum + batch_center * (1 - self.momentum)  # LEAK


def build():
    body = timm.create_model("vit_tiny_patch16_224", pretrained=False, num_classes=0, img_size=96, depth=4)
    return nn.Sequential(body, DINOHead(body.num_features)).cuda()


student = build()
teacher = copy.deepcopy(student)
criterion = DINOLoss()
optimizer = torch.optim.AdamW(student.parameters(), lr=5e-4)

for it in range(45):
    view1 = torch.randn(8, 3, 96, 96, device="cuda")
    view2 = torch.randn(8, 3, 96, 96, device="cuda")
    loss = criterion(student(view1), teacher(view2))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(student.parameters(), 3.0)
    optimizer.step()
    with torch.no_grad():
        for ps, pt in zip(student.parameters(), teacher.parameters()):
            pt.mul_(0.996).add_(ps, alpha=0.004)
    if it % 10 == 0:
        print(it, loss.item(), torch.cuda.memory_allocated() >> 20, "MiB")
