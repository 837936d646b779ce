# kind: compute_loss of a transformers Trainer logs a matrix of token agreement with self.log(), the entry goes into state.log_history as a GPU tensor and stays there for the whole run; from transformers forum questions on logging extra values from compute_loss
import os
import tempfile

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

os.environ["TOKENIZERS_PARALLELISM"] = "false"


class CopyTask(Dataset):
    """Second half of the sequence repeats the first one."""

    def __init__(self, n, length=64, vocab=128):
        g = torch.Generator().manual_seed(0)
        half = torch.randint(0, vocab, (n, length // 2), generator=g)
        self.ids = torch.cat([half, half], dim=1)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


class PrintLoss(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs and state.global_step % 30 == 0:
            print(f"step {state.global_step}: loss {float(logs['loss']):.3f}")


class DistillTrainer(Trainer):
    def __init__(self, *args, teacher, temperature=2.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.teacher = teacher.to(self.args.device).eval()
        self.temperature = temperature

    def _agreement(self, student, teacher):
        """Which token the student says where the teacher says another one."""
        classes = student.shape[-1]
        pairs = teacher.argmax(-1) * classes + student.argmax(-1)
        counts = torch.bincount(pairs.flatten(), minlength=classes * classes)
        return counts.view(classes, classes).float() / pairs.numel()

    def _report(self, student, teacher):
        agreement = self._agreement(student, teacher)
        self.log({"agreement": agreement, "agree": agreement.trace().item()})  # LEAK

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        outputs = model(**inputs)
        with torch.no_grad():
            target = self.teacher(input_ids=inputs["input_ids"]).logits
        t = self.temperature
        kd = nn.functional.kl_div(
            (outputs.logits / t).log_softmax(-1), (target / t).softmax(-1), reduction="batchmean") * t * t
        loss = outputs.loss + 0.01 * kd
        if model.training:
            self._report(outputs.logits.detach(), target)
        return (loss, outputs) if return_outputs else loss


def gpt2(layers, width):
    return GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=width, n_layer=layers, n_head=2,
                                      bos_token_id=0, eos_token_id=0))


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out, per_device_train_batch_size=4, max_steps=120, learning_rate=1e-3, logging_steps=10,
            save_strategy="no", report_to=[], disable_tqdm=True, dataloader_pin_memory=False)
        trainer = DistillTrainer(
            model=gpt2(1, 32), args=args, train_dataset=CopyTask(800), teacher=gpt2(2, 48), callbacks=[PrintLoss()])
        trainer.train()
    agree = [row["agree"] for row in trainer.state.log_history if "agree" in row]
    print("agreement with the teacher", sum(agree[-20:]) / 20)


if __name__ == "__main__":
    main()
