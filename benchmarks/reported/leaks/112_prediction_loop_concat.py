# kind: prediction loop concatenates the logits of the whole evaluation set on the GPU; from huggingface/transformers issues 7232, 12878
from dataclasses import dataclass
from typing import Callable, Optional

import torch
from transformers import BertConfig, BertForMaskedLM


@dataclass
class EvalPrediction:
    predictions: torch.Tensor
    label_ids: torch.Tensor


def nested_concat(tensors, new_tensors):
    if isinstance(tensors, (list, tuple)):
        return type(tensors)(nested_concat(t, n) for t, n in zip(tensors, new_tensors))
    return torch.cat((tensors, new_tensors), dim=0)


@dataclass
class DataCollatorForLanguageModeling:
    vocab_size: int
    mask_id: int = 4
    mlm_probability: float = 0.15

    def __call__(self, ids, gen):
        labels = ids.clone()
        masked = torch.rand(ids.shape, generator=gen) < self.mlm_probability
        labels[~masked] = -100
        ids = ids.masked_fill(masked, self.mask_id)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


class EvalDataloader:
    def __init__(self, collator, num_batches=150, batch_size=4, length=24):
        self.collator, self.num_batches = collator, num_batches
        self.shape = (batch_size, length)

    def __iter__(self):
        gen = torch.Generator().manual_seed(42)
        for _ in range(self.num_batches):
            yield self.collator(torch.randint(5, self.collator.vocab_size, self.shape, generator=gen), gen)


class Evaluator:
    def __init__(self, model, compute_metrics: Optional[Callable] = None):
        self.model = model.cuda()
        self.compute_metrics = compute_metrics

    def _prepare_inputs(self, inputs):
        return {k: v.to("cuda") for k, v in inputs.items()}

    @torch.no_grad()
    def prediction_step(self, inputs):
        inputs = self._prepare_inputs(inputs)
        outputs = self.model(**inputs)
        return outputs.loss.mean(), outputs.logits, inputs["labels"]

    def prediction_loop(self, dataloader, description):
        self.model.eval()
        losses, preds, label_ids = [], None, None
        for step, inputs in enumerate(dataloader):
            loss, logits, labels = self.prediction_step(inputs)
            losses.append(loss.item())
            preds = logits if preds is None else nested_concat(preds, logits)  # LEAK
            label_ids = labels if label_ids is None else nested_concat(label_ids, labels)
        metrics = {"eval_loss": sum(losses) / len(losses)}
        if self.compute_metrics is not None:
            metrics.update(self.compute_metrics(EvalPrediction(preds, label_ids)))
        print(description, {k: round(v, 4) for k, v in metrics.items()})
        return metrics


def masked_accuracy(p: EvalPrediction):
    keep = p.label_ids != -100
    return {"accuracy": (p.predictions.argmax(-1)[keep] == p.label_ids[keep]).float().mean().item()}


def main():
    torch.manual_seed(0)
    config = BertConfig(vocab_size=600, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=128, max_position_embeddings=64)
    evaluator = Evaluator(BertForMaskedLM(config), compute_metrics=masked_accuracy)
    evaluator.prediction_loop(EvalDataloader(DataCollatorForLanguageModeling(600)), description="Evaluation")


if __name__ == "__main__":
    main()
