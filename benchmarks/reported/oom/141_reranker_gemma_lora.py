# CARD: 22.03GiB
# KNOBS: KEEP_LAST GROUP=16 PASSAGE_MAX=512 LORA_R=32
# EXPERT: only the last position's logit of the word Yes is needed, but the model makes those of all positions for 256000 words: 16 x 846 x 256000 in bf16 (6.5 GiB), which accelerate turns into floats (12.9 GiB) after the forward pass; LoRA and its optimizer are tiny, checkpointing is on, shorter groups fit; enough: KEEP_LAST (logits_to_keep=1), GROUP=12 or 8 (fewer negatives), PASSAGE_MAX=256; not enough: PASSAGE_MAX=384, LORA_R=8
# after FlagOpen/FlagEmbedding issue 837 (https://github.com/FlagOpen/FlagEmbedding/issues/837: bge-reranker-v2-gemma with LoRA on A10Gs of 24 GB, train_group_size 16, query and passage up to 512 tokens each, gradient checkpointing, batch 1, out of memory "shortly into the training", after some steps)
import os
import tempfile

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch.utils.data import Dataset
from transformers import GemmaConfig, GemmaForCausalLM, Trainer, TrainingArguments

import knobs

KEEP_LAST = os.environ.get("KEEP_LAST") == "1"
GROUP = int(os.environ.get("GROUP", 16))
PASSAGE_MAX = int(os.environ.get("PASSAGE_MAX", 512))
QUERY_MAX, VOCAB, YES, PROMPT = 512, 256000, 3276, 24
LENGTHS = [(14, 180), (31, 233), (22, 297), (310, 590), (18, 260)]  # tokens of query and longest passage


class RerankData(Dataset):
    """A query with one positive and GROUP - 1 negative passages, left-padded."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        query, longest = LENGTHS[i % len(LENGTHS)]
        query = min(query, QUERY_MAX)
        passages = torch.randint(longest // 3, longest + 1, (GROUP,), generator=g).clamp(max=PASSAGE_MAX)
        passages[1] = min(longest, PASSAGE_MAX)
        length = query + int(passages.max()) + PROMPT
        ids = torch.randint(3, VOCAB, (GROUP, length), generator=g)
        mask = torch.ones_like(ids)
        for row, p in enumerate(passages):
            mask[row, :length - query - int(p) - PROMPT] = 0
        return {"input_ids": ids * mask, "attention_mask": mask}


def collate(groups):
    assert len(groups) == 1
    return groups[0]


class RerankTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        if KEEP_LAST:
            logits = model(**inputs, logits_to_keep=1).logits
        else:
            logits = model(**inputs).logits
        scores = logits[:, -1, YES].float()  # of the token "Yes" after the prompt
        loss = F.cross_entropy(scores[None], torch.zeros(1, dtype=torch.long, device=scores.device))
        return (loss, scores) if return_outputs else loss


def gemma_2b():
    config = GemmaConfig(vocab_size=VOCAB, hidden_size=2048, intermediate_size=16384, num_hidden_layers=18,
                         num_attention_heads=8, num_key_value_heads=1, head_dim=256, max_position_embeddings=8192,
                         use_cache=False, attn_implementation="sdpa")
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = GemmaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return model


def main():
    torch.manual_seed(0)
    model = knobs.apply(gemma_2b())
    model.enable_input_require_grads()
    model = get_peft_model(model, LoraConfig(
        r=int(os.environ.get("LORA_R", 32)), lora_alpha=64, lora_dropout=0.1, task_type="CAUSAL_LM",
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]))
    model.print_trainable_parameters()
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=1,
        gradient_accumulation_steps=1,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        max_steps=5,
        learning_rate=2e-4,
        warmup_steps=1,
        bf16=True,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        train_sampling_strategy="sequential",
    )
    trainer = RerankTrainer(model=model, args=args, train_dataset=RerankData(5), data_collator=collate)
    trainer.train()


if __name__ == "__main__":
    main()
