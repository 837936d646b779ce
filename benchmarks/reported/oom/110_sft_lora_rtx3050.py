# CARD: 3.8GiB
# KNOBS: BATCH=1 MAX_LENGTH=2048 CHECKPOINT=Qwen2DecoderLayer GRAD_CKPT LORA_R=16
# EXPERT: LoRA on a half-billion model, batch 1: the weights (1 GB in bf16) fit, but the activations of 24 layers for 2048 tokens, with the inputs that every LoRA pair keeps besides, do not without gradient checkpointing; gradient checkpointing (with enable_input_require_grads), shorter max_length; a smaller rank does not help
# after huggingface/trl issue 2819 (https://github.com/huggingface/trl/issues/2819)
import os
import random
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import SFTConfig, SFTTrainer

import knobs

MAX_LENGTH = int(os.environ.get("MAX_LENGTH", 2048))
GRAD_CKPT = os.environ.get("GRAD_CKPT") == "1"


def get_tokenizer():
    vocab = {f"w{i}": i for i in range(2000)}
    vocab.update({"<pad>": 2000, "<eos>": 2001, "<unk>": 2002})
    tok = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def get_model():
    config = Qwen2Config(vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
                         num_attention_heads=14, num_key_value_heads=2, max_position_embeddings=32768,
                         tie_word_embeddings=True, eos_token_id=2001, pad_token_id=2000, bos_token_id=None)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Qwen2ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return model


def get_dataset(n):
    random.seed(0)
    text = [" ".join(f"w{random.randrange(2000)}" for _ in range(random.randint(MAX_LENGTH, MAX_LENGTH + 300)))
            for _ in range(n)]
    return Dataset.from_dict({"text": text})


def main():
    tokenizer = get_tokenizer()
    model = get_model()
    knobs.apply(model)
    if GRAD_CKPT:
        model.enable_input_require_grads()
    model = get_peft_model(model, LoraConfig(
        r=int(os.environ.get("LORA_R", 16)), lora_alpha=32, lora_dropout=0.05, bias="none", task_type="CAUSAL_LM",
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]))
    model.print_trainable_parameters()
    args = SFTConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=int(os.environ.get("BATCH", 1)),
        gradient_accumulation_steps=1,
        gradient_checkpointing=GRAD_CKPT,
        max_length=MAX_LENGTH,
        max_steps=3,
        learning_rate=2e-4,
        logging_steps=1,
        bf16=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataset_num_proc=None,
    )
    trainer = SFTTrainer(model=model, args=args, train_dataset=get_dataset(16), processing_class=tokenizer)
    trainer.train()
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
