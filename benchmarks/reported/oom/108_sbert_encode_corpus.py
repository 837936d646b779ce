# CARD: 3GiB
# KNOBS: TO_NUMPY CHUNK=0 SENTENCES=500000 BATCH=512
# EXPERT: encode(convert_to_tensor=True) leaves every embedding on the GPU (500000 x 768 floats, 1.4 GiB) and stacks them at the end, so twice; convert_to_numpy, or encode in chunks and move each to the CPU; the batch size does not matter
# after huggingface/sentence-transformers issue 1244 (https://github.com/huggingface/sentence-transformers/issues/1244)
import os
import random
import tempfile

import torch
from sentence_transformers import SentenceTransformer, util
from sentence_transformers import models
from transformers import BertConfig, BertModel, BertTokenizerFast

import knobs

N = int(os.environ.get("SENTENCES", 500000))
CHUNK = int(os.environ.get("CHUNK", 0))
TO_NUMPY = os.environ.get("TO_NUMPY") == "1"
WORDS = ["red", "blue", "shoe", "shirt", "phone", "case", "for", "men", "women", "kids", "new", "large", "small",
         "cotton", "steel", "black", "white", "cable", "usb", "lamp", "desk", "chair", "mug", "tea", "coffee"]


def make_model():
    """an all-mpnet-base-sized bi-encoder with a vocabulary of its own"""
    path = tempfile.mkdtemp()
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + WORDS
    tokenizer = BertTokenizerFast(vocab={w: i for i, w in enumerate(vocab)})
    tokenizer.save_pretrained(path)
    BertModel(BertConfig(vocab_size=30522)).save_pretrained(path)
    word = models.Transformer(path, max_seq_length=32)
    pooling = models.Pooling(768, pooling_mode="mean")
    return SentenceTransformer(modules=[word, pooling], device="cuda")


def encode(model, sentences):
    batch_size = int(os.environ.get("BATCH", 512))
    if TO_NUMPY:
        return torch.from_numpy(model.encode(sentences, batch_size=batch_size, convert_to_numpy=True))
    if CHUNK:
        parts = [model.encode(sentences[i:i + CHUNK], batch_size=batch_size, convert_to_tensor=True).cpu()
                 for i in range(0, len(sentences), CHUNK)]
        return torch.cat(parts)
    return model.encode(sentences, batch_size=batch_size, convert_to_tensor=True)


def main():
    model = make_model()
    knobs.apply(model)
    random.seed(0)
    records = [" ".join(random.choices(WORDS, k=random.randint(3, 5))) for _ in range(N)]
    print("weights: MiB", torch.cuda.memory_allocated() // 2 ** 20)
    corpus = encode(model, records)
    print("corpus", tuple(corpus.shape), corpus.device, "allocated MiB", torch.cuda.memory_allocated() // 2 ** 20)
    queries = model.encode(records[:8], convert_to_tensor=True)
    for start in range(0, len(corpus), 100000):
        hits = util.semantic_search(queries, corpus[start:start + 100000].to("cuda"), top_k=5)
    print("hits", len(hits), len(hits[0]))
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
