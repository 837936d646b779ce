# CARD: 40GiB
# KNOBS: BATCH=128 MAX_LEN=128 BF16 CACHED CHECKPOINT=MPNetLayer
# EXPERT: activations of MPNet for 5 texts (anchor, positive, three negatives) x 128 rows; weights with Adam are 1.7 GiB; enough: CACHED=32 (GradCache, keeps the batch of negatives), CHECKPOINT=MPNetLayer, BATCH=64 (changes the negatives), MAX_LEN=64, BF16 (just); the similarity matrix itself is negligible
# Source: huggingface/sentence-transformers 3134 (MultipleNegativesRankingLoss runs out of memory above batch 512; CachedMultipleNegativesRankingLoss, mini_batch_size) and 332 (a hard negative per pair costs further memory); sentence-transformers
import os
import random
import tempfile

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers import losses, models
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import MPNetConfig, MPNetModel, PreTrainedTokenizerFast

import knobs

BATCH = int(os.environ.get("BATCH", 128))
MAX_LEN = int(os.environ.get("MAX_LEN", 128))
BF16 = os.environ.get("BF16", "0") == "1"
CACHED = int(os.environ.get("CACHED", 0))  # mini batch of the cached loss

random.seed(0)
torch.manual_seed(0)
WORDS = [f"word{i}" for i in range(3000)]


def build_model(folder):
    specials = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]
    tok = Tokenizer(WordLevel({w: i for i, w in enumerate(specials + WORDS)}, unk_token="[UNK]"))
    tok.pre_tokenizer = Whitespace()
    tok.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    PreTrainedTokenizerFast(tokenizer_object=tok, bos_token="<s>", eos_token="</s>", cls_token="<s>", sep_token="</s>",
                            pad_token="<pad>", unk_token="[UNK]", mask_token="<mask>",
                            model_max_length=512).save_pretrained(folder)
    MPNetModel(MPNetConfig(vocab_size=30527)).save_pretrained(folder)  # the size of all-mpnet-base
    word = models.Transformer(folder, max_seq_length=MAX_LEN)
    pooling = models.Pooling(word.get_word_embedding_dimension(), "mean")
    return SentenceTransformer(modules=[word, pooling, models.Normalize()], device="cuda")


def text(n):
    return " ".join(random.choices(WORDS, k=n))


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = build_model(folder)
        knobs.apply(model)
        n = BATCH * 4
        train = Dataset.from_dict({
            "anchor": [text(random.randint(8, 24)) for _ in range(n)],
            "positive": [text(random.randint(150, 220)) for _ in range(n)],
            "negative_1": [text(random.randint(150, 220)) for _ in range(n)],
            "negative_2": [text(random.randint(150, 220)) for _ in range(n)],
            "negative_3": [text(random.randint(150, 220)) for _ in range(n)],
        })
        if CACHED:
            loss = losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=CACHED)
        else:
            loss = losses.MultipleNegativesRankingLoss(model)
        args = SentenceTransformerTrainingArguments(
            output_dir=os.path.join(folder, "out"), per_device_train_batch_size=BATCH, max_steps=4, learning_rate=2e-5,
            warmup_steps=1, bf16=BF16, logging_steps=1, save_strategy="no", report_to="none", dataloader_num_workers=0,
        )
        SentenceTransformerTrainer(model=model, args=args, train_dataset=train, loss=loss).train()


if __name__ == "__main__":
    main()
