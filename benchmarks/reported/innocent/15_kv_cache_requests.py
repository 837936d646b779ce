# kind: key/value cache grows during a request and is given up with it; from questions on generate() memory in servers
import asyncio
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        cfg = GPT2Config(vocab_size=300, n_positions=256, n_embd=192, n_layer=2, n_head=4,
                         bos_token_id=0, eos_token_id=0)
        self.lm = GPT2LMHeadModel(cfg)

    @torch.no_grad()
    def complete(self, prompts, n):
        ids = torch.tensor(prompts, device="cuda")
        past, tokens = None, []
        for _ in range(n):
            out = self.lm(input_ids=ids, past_key_values=past, use_cache=True)
            past = out.past_key_values
            probs = torch.softmax(out.logits[:, -1] / 0.8, dim=-1)
            ids = torch.multinomial(probs, 1)
            tokens.append(ids)
        return torch.cat(tokens, dim=1).tolist()


async def worker(model, inbox, results):
    while True:
        rid, prompts, n = await inbox.get()
        results[rid] = model.complete(prompts, n)
        inbox.task_done()
        if rid % 4 == 0:
            print("request", rid, "prompt", len(prompts[0]), "->", results[rid][0][:6])


async def main():
    torch.manual_seed(0)
    model = Generator().to("cuda").eval()
    inbox, results = asyncio.Queue(maxsize=3), {}
    task = asyncio.create_task(worker(model, inbox, results))
    lengths = [20, 60, 40, 90, 30]
    for rid in range(13):
        t = lengths[rid % len(lengths)]
        prompts = torch.randint(1, 300, (4, t)).tolist()
        await inbox.put((rid, prompts, 10))
    await inbox.join()
    task.cancel()
    print(len(results), "requests answered")


if __name__ == "__main__":
    asyncio.run(main())
