"""GPT, cell by cell as in a notebook, which keeps the value of each cell."""

import linecache

import torch
from models import DEVICE, GPT, STEPS

Out = {}


def run_cell(number, source):
    """What IPython does: the value of the last expression goes to Out[]."""
    file = f"<ipython-input-{number}-0>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    *body, last = source.strip().splitlines()
    exec(compile("\n".join(body), file, "exec"), globals())
    code = compile("\n" * len(body) + last.rstrip(";"), file, "eval")
    value = eval(code, globals())
    if not last.endswith(";"):
        Out[number] = value


model = GPT().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters())
for cell in range(1, STEPS + 1):
    run_cell(
        cell,
        """
from models import next_token_loss, tokens
batch = tokens()
loss = next_token_loss(model(batch), batch)
optimizer.zero_grad()
loss.backward()
optimizer.step()
# fixed: model(batch);
model(batch)  # <- leak: notebook
""",
    )
