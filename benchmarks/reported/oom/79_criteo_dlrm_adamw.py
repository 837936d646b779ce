# CARD: 10GiB
# KNOBS: OPT FUSED DTYPE=bf16
# EXPERT: one 4M x 128 embedding table is 2 GiB, times weights, dense gradient, two Adam moments and the update's temporaries; sparse gradients (SparseAdam/Adagrad/SGD), fused optimizer, smaller table
# after mlcommons/algorithmic-efficiency issue 505
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

import knobs

NUM_DENSE, NUM_SPARSE = 13, 26
BATCH = int(os.environ.get("BATCH", 32768))


def dot_interact(concat_features):
    """Pairwise dot products of [B, F, D], lower triangle."""
    xact = torch.bmm(concat_features, concat_features.permute(0, 2, 1))
    f = concat_features.shape[1]
    li, lj = torch.tril_indices(f, f, device=xact.device)
    return xact[:, li, lj]


class DlrmSmall(nn.Module):
    def __init__(self, vocab_size=32 * 128 * 1024, embed_dim=128,
                 mlp_bottom_dims=(512, 256, 128), mlp_top_dims=(1024, 1024, 512, 256, 1)):
        super().__init__()
        self.vocab_size = vocab_size
        self.embed_dim = embed_dim
        layers, in_dim = [], NUM_DENSE
        for d in mlp_bottom_dims:
            layers += [nn.Linear(in_dim, d), nn.ReLU(inplace=True)]
            in_dim = d
        self.bot_mlp = nn.Sequential(*layers)
        self.embedding_table = nn.Parameter(torch.empty(vocab_size, embed_dim, device="cuda"))
        self.embedding_table.data.uniform_(0, 1)
        self.embedding_table.data.mul_(vocab_size ** -0.5)
        n = NUM_SPARSE + 1
        layers, in_dim = [], n * (n + 1) // 2 + embed_dim
        for i, d in enumerate(mlp_top_dims):
            layers.append(nn.Linear(in_dim, d))
            if i < len(mlp_top_dims) - 1:
                layers.append(nn.ReLU(inplace=True))
            in_dim = d
        self.top_mlp = nn.Sequential(*layers)

    def forward(self, dense, cat):
        bot = self.bot_mlp(dense)
        idx = cat.long() % self.vocab_size
        emb = self.embedding_table[idx.reshape(-1)].view(-1, NUM_SPARSE, self.embed_dim)
        inter = dot_interact(torch.cat([bot.unsqueeze(1), emb], dim=1))
        return self.top_mlp(torch.cat([bot, inter], dim=1))


def main():
    model = DlrmSmall().to("cuda")
    knobs.apply(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.999),
                                  weight_decay=1e-5, foreach=False)
    for step in range(3):
        dense = torch.rand(BATCH, NUM_DENSE).to("cuda", knobs.dtype())
        cat = torch.randint(0, 1 << 30, (BATCH, NUM_SPARSE), dtype=torch.int32).to("cuda")
        target = (torch.rand(BATCH) < 0.03).float().to("cuda")
        optimizer.zero_grad(set_to_none=True)
        logits = model(dense, cat).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(logits.float(), target)
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.5f}")
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
