# kind: backward hook appends the embedding gradients to a module-level list that is not emptied; from pytorch/pytorch issue 4661 (comment of 2020-03-07), Eric-Wallace/universal-triggers
import torch
import torch.nn as nn
import torch.nn.functional as F

extracted_grads = []


def extract_grad_hook(module, grad_in, grad_out):
    extracted_grads.append(grad_out[0])  # LEAK


def add_hooks(model, vocab_size):
    for module in model.modules():
        if isinstance(module, nn.Embedding) and module.weight.shape[0] == vocab_size:
            module.weight.requires_grad = True
            module.register_full_backward_hook(extract_grad_hook)  # ALSO


class SentimentLSTM(nn.Module):
    def __init__(self, vocab=800, emb=48, hidden=64):
        super().__init__()
        self.embedding = nn.Embedding(vocab, emb)
        self.lstm = nn.LSTM(emb, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 2)

    def forward(self, tokens):
        hidden, _ = self.lstm(self.embedding(tokens))
        return self.out(hidden[:, -1])


def get_average_grad(model, tokens, labels, trigger_len):
    model.zero_grad()
    loss = F.cross_entropy(model(tokens), labels)
    loss.backward()
    grads = extracted_grads[-1]
    return grads.sum(0)[:trigger_len], loss.item()


def hotflip_attack(averaged_grad, embedding_matrix, increase_loss=True, num_candidates=8):
    scores = averaged_grad @ embedding_matrix.t()
    if not increase_loss:
        scores = -scores
    return scores.topk(num_candidates, dim=1).indices


@torch.no_grad()
def best_candidate(model, batch, labels, trigger, candidates):
    best, best_loss = trigger, -1.0
    for pos in range(len(trigger)):
        for cand in candidates[pos, :1]:
            trial = trigger.clone()
            trial[pos] = cand
            tokens = torch.cat((trial.expand(len(batch), -1), batch), 1)
            loss = F.cross_entropy(model(tokens), labels).item()
            if loss > best_loss:
                best, best_loss = trial, loss
    return best


def main(num_batches=80, trigger_len=3):
    torch.manual_seed(0)
    model = SentimentLSTM().cuda()
    add_hooks(model, 800)
    model.train()
    trigger = torch.zeros(trigger_len, dtype=torch.long, device="cuda")
    gen = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(num_batches):
        batch = torch.randint(1, 800, (64, 16), generator=gen).cuda()
        labels = (batch[:, 0] > 400).long()
        tokens = torch.cat((trigger.expand(len(batch), -1), batch), 1)
        grad, loss = get_average_grad(model, tokens, labels, trigger_len)
        losses.append(loss)
        candidates = hotflip_attack(grad, model.embedding.weight.detach())
        trigger = best_candidate(model, batch, labels, trigger, candidates)
    print("trigger", trigger.tolist(), "loss %.4f -> %.4f" % (losses[0], losses[-1]))


if __name__ == "__main__":
    main()
