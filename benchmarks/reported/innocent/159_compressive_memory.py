# kind: two-level memory of a language model, hidden states first fill the recent memory, what falls out of it is compressed 4:1 and fills a second one much more slowly, then the oldest compressed ones go; after long-range language models (Compressive Transformer repositories)
import torch
import torch.nn as nn
import torch.nn.functional as F

DEVICE = torch.device("cuda")
VOCAB, DIM, HEADS, LAYERS = 256, 128, 4, 2
SEGMENT, BATCH = 32, 16
MEM_LEN, CMEM_LEN, RATE = 256, 480, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.q = nn.Linear(DIM, DIM, bias=False)
        self.kv = nn.Linear(DIM, 2 * DIM, bias=False)
        self.out = nn.Linear(DIM, DIM)
        self.ff = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))
        self.squeeze = nn.Conv1d(DIM, DIM, RATE, stride=RATE)

    def heads(self, t):
        return t.view(t.shape[0], t.shape[1], HEADS, DIM // HEADS).transpose(1, 2)

    def forward(self, x, past):
        h = self.norm(x)
        context = torch.cat([past, h], dim=1)
        k, v = self.kv(context).chunk(2, dim=-1)
        n_past = past.shape[1]
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        mask = torch.cat([causal.new_ones(x.shape[1], n_past), causal], dim=1)
        y = F.scaled_dot_product_attention(self.heads(self.q(h)), self.heads(k), self.heads(v), attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.ff(x)


class CompressiveLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, tokens, memories):
        x = self.embed(tokens)
        updated, aux = [], 0.0
        for block, (mem, cmem) in zip(self.blocks, memories):
            entering = x.detach()
            x = block(x, torch.cat([cmem, mem], dim=1))
            mem = torch.cat([mem, entering], dim=1)
            if mem.shape[1] > MEM_LEN:
                overflow, mem = mem[:, :-MEM_LEN], mem[:, -MEM_LEN:].clone()
                packed = block.squeeze(overflow.transpose(1, 2)).transpose(1, 2)
                target = overflow.unflatten(1, (-1, RATE)).mean(2)
                aux = aux + F.mse_loss(packed, target)
                cmem = torch.cat([cmem, packed.detach()], dim=1)[:, -CMEM_LEN:]
            updated.append((mem, cmem))
        return self.head(x), updated, aux


def book_stream(seed):
    gen = torch.Generator().manual_seed(seed)
    table = torch.randint(0, VOCAB, (VOCAB, 4), generator=gen)
    current = torch.randint(0, VOCAB, (BATCH,), generator=gen)
    while True:
        rows = [current]
        for _ in range(SEGMENT):
            pick = torch.randint(0, 4, (BATCH,), generator=gen)
            current = table[current, pick]
            rows.append(current)
        yield torch.stack(rows, dim=1).to(DEVICE)


def main(segments=150):
    torch.manual_seed(11)
    model = CompressiveLM().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    empty = torch.zeros(BATCH, 0, DIM, device=DEVICE)
    memories = [(empty, empty) for _ in range(LAYERS)]
    running = None
    for i, chunk in zip(range(segments), book_stream(5)):
        logits, memories, aux = model(chunk[:, :-1], memories)
        loss = F.cross_entropy(logits.flatten(0, 1), chunk[:, 1:].flatten())
        optimizer.zero_grad()
        (loss + 0.1 * aux).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        running = loss.item() if running is None else 0.95 * running + 0.05 * loss.item()
        if i % 25 == 0:
            mem, cmem = memories[0]
            print(f"segment {i}: loss {running:.3f}, memory {mem.shape[1]} + {cmem.shape[1]}")


if __name__ == "__main__":
    main()
