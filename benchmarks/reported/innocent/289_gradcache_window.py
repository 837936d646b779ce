# kind: luyug/GradCache style contrastive training: representations of 24 small batches are collected before one optimizer step
import torch
import torch.nn.functional as F
from transformers import BertConfig, BertModel

config = BertConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, vocab_size=2000)


class DualEncoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.query = BertModel(config, add_pooling_layer=False)
        self.passage = BertModel(config, add_pooling_layer=False)

    def encode(self, tower, ids):
        return F.normalize(getattr(self, tower)(input_ids=ids).last_hidden_state[:, 0], dim=-1)


class GradCache:
    def __init__(self, model, chunks):
        self.model, self.chunks = model, chunks
        self.states = []

    def step(self, opt):
        self.states = []
        batches = [(torch.randint(0, 2000, (8, 32), device="cuda"), torch.randint(0, 2000, (8, 64), device="cuda"))
                   for _ in range(self.chunks)]
        qs, ps = [], []
        with torch.no_grad():
            for q, p in batches:
                self.states.append(torch.cuda.get_rng_state())
                qs.append(self.model.encode("query", q))
                ps.append(self.model.encode("passage", p))
        q_all, p_all = torch.cat(qs).requires_grad_(), torch.cat(ps).requires_grad_()
        loss = F.cross_entropy(q_all @ p_all.t() / 0.05, torch.arange(len(q_all), device="cuda"))
        loss.backward()
        for (q, p), gq, gp in zip(batches, q_all.grad.split(8), p_all.grad.split(8)):
            surrogate = (self.model.encode("query", q) * gq).sum() + (self.model.encode("passage", p) * gp).sum()
            surrogate.backward()
        opt.step()
        opt.zero_grad()
        return loss.detach()


model = DualEncoder().cuda()
opt = torch.optim.AdamW(model.parameters(), lr=2e-5)
trainer = GradCache(model, chunks=24)
window = []
for step in range(25):
    window.append(trainer.step(opt))
    if len(window) == 10:
        print("loss", torch.stack(window).mean().item())
        window = []
