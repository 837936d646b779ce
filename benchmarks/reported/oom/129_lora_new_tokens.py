# CARD: 5.75GiB
# KNOBS: BATCH=2 MAX_LENGTH=512 NEW_TOKENS=full GRAD_CKPT CHECKPOINT=LlamaDecoderLayer OPTIM=adamw_torch
# EXPERT: LoRA itself is tiny; modules_to_save copies embed_tokens and lm_head (2 x 128260 x 1536, 0.73 GiB together in bf16), which then have gradients and two Adam moments as well (2.9 GiB); train only the new rows (trainable_token_indices, NEW_TOKENS=indices), or none (NEW_TOKENS=frozen); not enough: OPTIM=adafactor (6.3 GiB), BATCH=1, MAX_LENGTH=256, gradient checkpointing (5.6 GiB remain, the optimizer step)
# after artidoro/qlora issue 214 (https://github.com/artidoro/qlora/issues/214: new tokens make the embeddings trainable, more memory than LoRA's paper says) and huggingface/peft pull request 337 (modules_to_save=["wte", "lm_head"])
import os
import tempfile

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import knobs

MAX_LENGTH = int(os.environ.get("MAX_LENGTH", 512))
NEW_TOKENS = os.environ.get("NEW_TOKENS", "full")  # full, indices or frozen
GRAD_CKPT = os.environ.get("GRAD_CKPT") == "1"
SPECIAL = ["<|patient|>", "<|doctor|>", "<|chart|>", "<|end_chart|>"]
VOCAB = 128256


class Dialogues(Dataset):
    """Consultations with the roles as new special tokens."""

    def __init__(self, n):
        g = torch.Generator().manual_seed(0)
        self.ids = torch.randint(0, VOCAB, (n, MAX_LENGTH), generator=g)
        self.ids[:, ::64] = VOCAB + torch.randint(0, len(SPECIAL), self.ids[:, ::64].shape, generator=g)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": torch.ones_like(self.ids[i]), "labels": self.ids[i]}


def base_model():
    config = LlamaConfig(vocab_size=VOCAB, hidden_size=1536, intermediate_size=6144, num_hidden_layers=16,
                         num_attention_heads=24, num_key_value_heads=8, max_position_embeddings=8192,
                         tie_word_embeddings=False, use_cache=False)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model.resize_token_embeddings(VOCAB + len(SPECIAL), mean_resizing=False)
    return model


def lora(model):
    extra = {}
    if NEW_TOKENS == "full":  # as the guides say: the new rows have to be learned
        extra["modules_to_save"] = ["embed_tokens", "lm_head"]
    elif NEW_TOKENS == "indices":
        rows = list(range(VOCAB, VOCAB + len(SPECIAL)))
        extra["trainable_token_indices"] = {"embed_tokens": rows, "lm_head": rows}
    config = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, task_type="CAUSAL_LM",
                        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], **extra)
    return get_peft_model(model, config)


def training_args():
    return TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=int(os.environ.get("BATCH", 2)),
        gradient_checkpointing=GRAD_CKPT,
        max_steps=3,
        learning_rate=1e-4,
        warmup_steps=1,
        bf16=True,
        optim=os.environ.get("OPTIM", "adamw_torch"),
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
    )


def main():
    torch.manual_seed(0)
    model = knobs.apply(base_model())
    model.enable_input_require_grads()
    model = lora(model)
    model.print_trainable_parameters()
    trainer = Trainer(model=model, args=training_args(), train_dataset=Dialogues(12))
    trainer.train()


if __name__ == "__main__":
    main()
