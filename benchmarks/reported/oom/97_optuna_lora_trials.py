# CARD: 21.98GiB
# KNOBS: FREE_TRIAL DTYPE BATCH=1 CHECKPOINT=LlamaDecoderLayer AUTOCAST
# EXPERT: one trial fits (12 GB of float32 weights); the trainer of the trial before is still referenced (kept for the best one) when the next trial loads its model, so two models are on the GPU; drop model and trainer and gc.collect() before torch.cuda.empty_cache(), or load the base model once, in bfloat16
# after optuna/optuna issue 5931 (https://github.com/optuna/optuna/issues/5931)
import gc
import os
import random
import tempfile

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import knobs

model_path = "Llama-3.2-3B-instruct"
N_TRIALS = 3


class ChatDataset(Dataset):
    def __init__(self, n, length=256):
        self.n, self.length = n, length

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        ids = torch.randint(0, 128000, (self.length,))
        return dict(input_ids=ids, labels=ids.clone(), attention_mask=torch.ones_like(ids))


def load_model():
    config = LlamaConfig(
        vocab_size=128256, hidden_size=3072, intermediate_size=8192, num_hidden_layers=28, num_attention_heads=24,
        num_key_value_heads=8, head_dim=128, tie_word_embeddings=True, max_position_embeddings=131072, use_cache=False)
    torch.set_default_dtype(knobs.dtype())
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return model


class Trial:
    def __init__(self, number):
        self.number, self.params, self.attrs = number, {}, {}

    def suggest_float(self, name, a, b):
        self.params[name] = random.uniform(a, b)
        return self.params[name]

    def suggest_categorical(self, name, choices):
        self.params[name] = random.choice(choices)
        return self.params[name]

    def set_user_attr(self, name, value):
        self.attrs[name] = value


class Study:
    def __init__(self):
        self.trials, self.best = [], None

    def optimize(self, objective, n_trials):
        for i in range(n_trials):
            trial = Trial(i)
            trial.value = objective(trial)
            self.trials.append(trial)
            if self.best is None or trial.value < self.best.value:
                self.best = trial
            print(f"Trial {i} finished with value: {trial.value} and parameters: {trial.params}")


def objective(trial):
    learning_rate = trial.suggest_float("learning_rate", 1e-5, 1e-4)
    accumulation = trial.suggest_categorical("gradient_accumulation_steps", [1, 2])
    rank = trial.suggest_categorical("lora_r", [8, 16])
    model = load_model()
    knobs.apply(model)
    model = get_peft_model(model, LoraConfig(
        r=rank, lora_alpha=32, lora_dropout=0.05, task_type="CAUSAL_LM",
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]))
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=int(os.environ.get("BATCH", 1)),
        per_device_eval_batch_size=1, gradient_accumulation_steps=accumulation, learning_rate=learning_rate,
        max_steps=2, logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True,
        bf16=os.environ.get("AUTOCAST") == "1")
    trainer = Trainer(model=model, args=args, train_dataset=ChatDataset(32), eval_dataset=ChatDataset(4))
    trainer.train()
    loss = trainer.evaluate()["eval_loss"]
    if os.environ.get("FREE_TRIAL") != "1":
        trial.set_user_attr("trainer", trainer)  # to save the best one afterwards
    del model, trainer
    if os.environ.get("FREE_TRIAL") == "1":
        gc.collect()
    torch.cuda.empty_cache()
    print(f"after trial {trial.number}: allocated MiB {torch.cuda.memory_allocated() // 2 ** 20}")
    return loss


def main():
    study = Study()
    study.optimize(objective, n_trials=N_TRIALS)
    print("best", study.best.params)
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
