# CARD: 16GiB
# KNOBS: BATCH=1 MAX_LENGTH=4096 GRAD_CKPT=1 LOSS_CHUNKS=1 OPT
# EXPERT: the distillation loss needs the logits of student and teacher over the whole vocabulary (4096 x 151936) and makes scaled copies, softmax and log-softmax of each: over a GiB a tensor in bf16; shorter max_length, the loss in chunks of the sequence; gradient checkpointing is on already
# after arcee-ai/DistillKit issue 4 (https://github.com/arcee-ai/DistillKit/issues/4), distil_logits.py with a smaller pair
import os
import tempfile

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset
from transformers import Qwen2Config, Qwen2ForCausalLM, Trainer, TrainingArguments

import knobs

config = {
    "tokenizer": {"max_length": int(os.environ.get("MAX_LENGTH", 4096))},
    "training": {
        "per_device_train_batch_size": int(os.environ.get("BATCH", 1)),
        "gradient_accumulation_steps": 1,
        "max_steps": 2,
        "logging_steps": 1,
        "save_strategy": "no",
        "learning_rate": 2e-5,
        "bf16": True,
        "gradient_checkpointing": os.environ.get("GRAD_CKPT", "1") == "1",
        "report_to": [],
        "disable_tqdm": True,
    },
    "distillation": {"temperature": 2.0, "alpha": 0.5},
    "loss_chunks": int(os.environ.get("LOSS_CHUNKS", 1)),
}


class ShareGPT(Dataset):
    """FineTome-100k, packed to the full length"""

    def __len__(self):
        return 64

    def __getitem__(self, i):
        ids = torch.randint(0, 151000, (config["tokenizer"]["max_length"],))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


def qwen2(hidden, inter, layers, heads, kv, vocab=151936):
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Qwen2ForCausalLM(Qwen2Config(
            vocab_size=vocab, hidden_size=hidden, intermediate_size=inter, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=kv, max_position_embeddings=32768, tie_word_embeddings=True,
            use_cache=False))
    torch.set_default_dtype(torch.float32)
    return model


def pad_logits(student_logits, teacher_logits):
    student_size, teacher_size = student_logits.size(-1), teacher_logits.size(-1)
    if student_size != teacher_size:
        pad_size = abs(student_size - teacher_size)
        pad_tensor = torch.zeros((*teacher_logits.shape[:-1], pad_size), dtype=teacher_logits.dtype, device=teacher_logits.device)
        return (torch.cat([student_logits, pad_tensor], dim=-1), teacher_logits) if student_size < teacher_size \
            else (student_logits, torch.cat([teacher_logits, pad_tensor], dim=-1))
    return student_logits, teacher_logits


class LogitsTrainer(Trainer):
    teacher_model = None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        inputs = {k: v.to(model.device) if hasattr(v, "to") else v for k, v in inputs.items()}
        student_model = model.module if hasattr(model, "module") else model
        student_outputs = student_model(**inputs)
        with torch.no_grad():
            teacher_outputs = self.teacher_model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        custom_loss = self.distillation_loss(student_outputs.logits, teacher_outputs.logits, student_outputs.loss)
        return (custom_loss, student_outputs) if return_outputs else custom_loss

    def kl(self, student_logits, teacher_logits):
        t = config["distillation"]["temperature"]
        student_logits_scaled = student_logits / t
        teacher_logits_scaled = teacher_logits / t
        return F.kl_div(F.log_softmax(student_logits_scaled, dim=-1), F.softmax(teacher_logits_scaled, dim=-1),
                        reduction="sum") * (t ** 2)

    def distillation_loss(self, student_logits, teacher_logits, original_loss):
        student_logits, teacher_logits = pad_logits(student_logits, teacher_logits)
        n = config["loss_chunks"]
        if n > 1:
            loss_kd = sum(checkpoint(self.kl, s, t, use_reentrant=False)
                          for s, t in zip(student_logits.chunk(n, 1), teacher_logits.chunk(n, 1)))
        else:
            loss_kd = self.kl(student_logits, teacher_logits)
        loss_kd = loss_kd / len(student_logits) / config["tokenizer"]["max_length"]
        alpha = config["distillation"]["alpha"]
        return alpha * loss_kd + (1 - alpha) * original_loss


def main():
    teacher_model = qwen2(1536, 8960, 28, 12, 2).eval().requires_grad_(False)
    student_model = qwen2(896, 4864, 24, 14, 2)
    knobs.apply(student_model)
    print("weights: MiB", torch.cuda.memory_allocated() // 2 ** 20)
    trainer = LogitsTrainer(
        model=student_model, train_dataset=ShareGPT(),
        args=TrainingArguments(output_dir=tempfile.mkdtemp(), **config["training"]),
        optimizers=(torch.optim.AdamW(student_model.parameters(), lr=2e-5), None))
    trainer.teacher_model = teacher_model
    trainer.train()
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
