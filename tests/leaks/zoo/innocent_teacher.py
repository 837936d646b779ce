"""CNN: learns from a teacher in evaluation whose outputs have a graph that is used."""

import torch
from models import CNN, DEVICE, STEPS, images
from torch.nn import functional

teacher, student = CNN().to(DEVICE), CNN().to(DEVICE)
optimizer = torch.optim.Adam([*student.parameters(), *teacher.head.parameters()])
for _ in range(STEPS):
    batch = images()
    teacher.eval()
    wanted = teacher(batch)
    student.train()
    loss = functional.mse_loss(student(batch), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
