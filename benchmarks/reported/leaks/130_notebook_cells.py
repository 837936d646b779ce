# kind: the notebook's output history keeps the value of every cell that ends with an expression; from ipython/ipython issue 3452 and pytorch/pytorch issue 22684
import ast
import builtins

import torch
from torch import nn


class InteractiveShell:
    def __init__(self):
        self.user_ns = {"__builtins__": builtins, "Out": {}, "In": [""]}
        self.execution_count = 1

    def displayhook(self, value):
        if value is None:
            return
        self.user_ns["_"] = value
        self.user_ns["Out"][self.execution_count] = value  # LEAK

    def run_cell(self, source):
        tree = ast.parse(source)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<cell>", "exec"), self.user_ns)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), self.user_ns)
            self.displayhook(value)  # ALSO
        self.user_ns["In"].append(source)
        self.execution_count += 1


SETUP = """
torch.manual_seed(0)
vae = VAE().cuda()
opt = torch.optim.Adam(vae.parameters(), lr=1e-3)
"""

TRAIN = """
x = torch.rand(64, 784, device="cuda").round()
recon, mu, logvar = vae(x)
loss = nn.functional.binary_cross_entropy_with_logits(recon, x) - 1e-3 * (1 + logvar - mu ** 2 - logvar.exp()).mean()
opt.zero_grad()
loss.backward()
opt.step()
torch.sigmoid(recon.detach())
"""


class VAE(nn.Module):
    def __init__(self, latent=8):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 2 * latent))
        self.dec = nn.Sequential(nn.Linear(latent, 64), nn.ReLU(), nn.Linear(64, 784))

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, dim=1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(z), mu, logvar


shell = InteractiveShell()
shell.user_ns.update(torch=torch, nn=nn, VAE=VAE)
shell.run_cell(SETUP)
for rerun in range(120):
    shell.run_cell(TRAIN)
shell.run_cell("print('loss', loss.item())")
