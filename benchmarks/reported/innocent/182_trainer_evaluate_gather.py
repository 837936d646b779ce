# kind: an evaluation joins all logits on the GPU and drops them at its end; after huggingface/transformers issue 7232
from collections import namedtuple

import torch
import torch.nn as nn
import torch.nn.functional as F

EvalPrediction = namedtuple("EvalPrediction", ["predictions", "label_ids"])


def nested_concat(tensors, new):
    if tensors is None:
        return new
    return torch.cat((tensors, new), dim=0)


class TokenClassifier(nn.Module):
    def __init__(self, vocab=500, dim=64, n_labels=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.enc = nn.TransformerEncoderLayer(dim, 4, 128, batch_first=True)
        self.cls = nn.Linear(dim, n_labels)

    def forward(self, input_ids, labels=None):
        logits = self.cls(self.enc(self.emb(input_ids)))
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return loss, logits


class Trainer:
    def __init__(self, model, eval_steps, compute_metrics):
        self.model = model.cuda()
        self.eval_steps = eval_steps
        self.compute_metrics = compute_metrics
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        self.log_history = []

    def batch(self, bs):
        return {"input_ids": torch.randint(0, 500, (bs, 64)).cuda(),
                "labels": torch.randint(0, 32, (bs, 64)).cuda()}

    def train(self, max_steps):
        for step in range(1, max_steps + 1):
            self.model.train()
            loss, _ = self.model(**self.batch(8))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if step % self.eval_steps == 0:
                self.log_history.append(self.evaluate(n_batches=25))
                print(step, self.log_history[-1])

    def prediction_loop(self, n_batches):
        self.model.eval()
        preds, label_ids, eval_losses = None, None, []
        for _ in range(n_batches):
            inputs = self.batch(32)
            with torch.no_grad():
                loss, logits = self.model(**inputs)
            eval_losses.append(loss.mean().item())
            preds = nested_concat(preds, logits.detach())
            label_ids = nested_concat(label_ids, inputs["labels"].detach())
        # Finally, turn the aggregated tensors into numpy arrays.
        preds = preds.cpu().numpy()
        label_ids = label_ids.cpu().numpy()
        return EvalPrediction(preds, label_ids), sum(eval_losses) / len(eval_losses)

    def evaluate(self, n_batches):
        p, loss = self.prediction_loop(n_batches)
        metrics = self.compute_metrics(p)
        metrics["eval_loss"] = loss
        return metrics


def compute_metrics(p):
    return {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())}


if __name__ == "__main__":
    torch.manual_seed(0)
    Trainer(TokenClassifier(), eval_steps=15, compute_metrics=compute_metrics).train(max_steps=60)
