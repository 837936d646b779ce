# kind: the reporter's tensor_name dict has every tensor it has ever seen as a key; after Stonesjtu/pytorch_memlab issue 17
import gc
import math
import warnings
from collections import defaultdict

import torch
import torch.nn as nn

warnings.filterwarnings("ignore")


def readable_size(num_bytes):
    if num_bytes == 0:
        return "0.00B"
    units = ["B", "K", "M", "G"]
    order = int(math.log(num_bytes, 1024))
    return "%.2f%s" % (num_bytes / 1024 ** order, units[order])


class MemReporter:
    def __init__(self, model=None):
        self.tensor_name = {}
        self.device_mapping = defaultdict(list)
        self.device_tensor_stat = {}
        self.numbering = 0
        if model is not None:
            for name, param in model.named_parameters():
                self.tensor_name[param] = name

    def _get_tensor_name(self, tensor):
        if tensor in self.tensor_name:
            name = self.tensor_name[tensor]
        # use numbering if no name can be inferred
        else:
            name = type(tensor).__name__ + str(self.numbering)
            self.tensor_name[tensor] = name  # LEAK
            self.numbering += 1
        return name

    def collect_tensor(self):
        """Collect all tensor objects tracked by python"""
        for obj in gc.get_objects():
            if type(obj) in (torch.Tensor, nn.Parameter):
                self.device_mapping[obj.device].append(obj)

    def get_stats(self):
        visited_data = set()
        self.device_tensor_stat.clear()
        for device, tensors in self.device_mapping.items():
            stats = []
            for tensor in tensors:
                name = self._get_tensor_name(tensor)
                ptr = tensor.untyped_storage().data_ptr() if tensor.numel() else 0
                size = 0 if ptr in visited_data else tensor.numel() * tensor.element_size()
                visited_data.add(ptr)
                stats.append((name, tuple(tensor.size()), size))
            self.device_tensor_stat[device] = stats
        self.device_mapping.clear()

    def report(self):
        self.collect_tensor()
        self.get_stats()
        return {str(d): (len(s), readable_size(sum(x[2] for x in s)))
                for d, s in self.device_tensor_stat.items()}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, x):
        return self.net(x)


def train():
    torch.manual_seed(0)
    model = Classifier().cuda()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    reporter = MemReporter(model)
    loss_fn = nn.CrossEntropyLoss()
    for step in range(60):
        x = torch.randn(512, 256).cuda()
        y = torch.randint(0, 10, (512,)).cuda()
        opt.zero_grad()
        logits = model(x)
        loss = loss_fn(logits, y)
        loss.backward()
        opt.step()
        stats = reporter.report()
        if step % 20 == 0:
            print(step, loss.item(), stats)


if __name__ == "__main__":
    train()
