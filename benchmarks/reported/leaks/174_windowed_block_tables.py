# kind: with a sliding window a block can stand several times in a block table, fork() counts it up for every entry and free() down only once, so forked prompts' blocks never come back; after vllm-project/vllm PR 3347 (issue 1556)
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

DEVICE = "cuda"
BLOCK = 16
WINDOW_BLOCKS = 3
LAYERS, HEADS, HEAD_DIM = 2, 4, 64
DIM = HEADS * HEAD_DIM


class BlockPool:
    """Key/value pages with reference counts; pages exist only while in use."""

    def __init__(self):
        self.pages = {}
        self.refs = {}
        self.next_id = 0

    def allocate(self):
        block, self.next_id = self.next_id, self.next_id + 1
        self.pages[block] = torch.zeros(LAYERS, 2, HEADS, BLOCK, HEAD_DIM, device=DEVICE)  # ALSO
        self.refs[block] = 1
        return block

    def release(self, block):
        self.refs[block] -= 1
        if self.refs[block] == 0:
            del self.refs[block], self.pages[block]

    def fork(self, table):
        for block in table:
            self.refs[block] += 1  # LEAK
        return list(table)

    def free(self, table):
        for block in set(table):
            self.release(block)


class Sequence:
    def __init__(self, pool, table=None, length=0):
        self.pool = pool
        self.table = table or []
        self.length = length

    def slot(self):
        """Page and offset of the next token; beyond the window pages are reused."""
        index, offset = divmod(self.length, BLOCK)
        if index == len(self.table):
            reuse = index >= WINDOW_BLOCKS
            self.table.append(self.table[index - WINDOW_BLOCKS] if reuse else self.pool.allocate())
        block = self.table[index]
        if self.pool.refs[block] > 1:
            fresh = self.pool.allocate()
            self.pool.pages[fresh].copy_(self.pool.pages[block])
            self.table = [fresh if b == block else b for b in self.table]
            self.pool.release(block)
            block = fresh
        self.length += 1
        return self.pool.pages[block], offset

    def window(self):
        return [self.pool.pages[b] for b in dict.fromkeys(self.table[-WINDOW_BLOCKS:])]


class TinyLM(nn.Module):
    def __init__(self, vocab=256):
        super().__init__()
        self.embed = nn.Embedding(vocab, DIM)
        self.qkv = nn.ModuleList(nn.Linear(DIM, 3 * DIM) for _ in range(LAYERS))
        self.head = nn.Linear(DIM, vocab)

    def forward(self, token, sequence):
        page, offset = sequence.slot()
        h = self.embed(token)
        for layer, proj in enumerate(self.qkv):
            q, k, v = proj(h).view(3, HEADS, 1, HEAD_DIM)
            page[layer, 0, :, offset], page[layer, 1, :, offset] = k[:, 0], v[:, 0]
            pages = sequence.window()
            keys = torch.cat([p[layer, 0] for p in pages], 1)
            values = torch.cat([p[layer, 1] for p in pages], 1)
            h = h + F.scaled_dot_product_attention(q, keys, values).reshape(1, DIM)
        return self.head(h)[0]


@torch.inference_mode()
def complete(model, pool, prompt, samples=2, new_tokens=6):
    parent = Sequence(pool)
    for token in prompt:
        logits = model(torch.tensor([token], device=DEVICE), parent)
    answers = []
    for _ in range(samples):
        child = Sequence(pool, pool.fork(parent.table), parent.length)
        step, tokens = logits, []
        for _ in range(new_tokens):
            token = torch.multinomial(step.softmax(-1), 1)
            tokens.append(token.item())
            step = model(token, child)
        answers.append(tokens)
        pool.free(child.table)
    pool.free(parent.table)
    return answers


def main():
    torch.manual_seed(0)
    rng = random.Random(2)
    model, pool = TinyLM().to(DEVICE).eval(), BlockPool()
    for request in range(70):
        prompt = [rng.randrange(256) for _ in range(rng.randint(84, 120))]
        answers = complete(model, pool, prompt)
        if request % 10 == 0:
            print(f"request {request}: {len(prompt)} tokens -> {answers[0]}")


main()
