# CARD: 9.77GiB
# KNOBS: BATCH=8 MAX_LENGTH=100 FREEZE_EMBEDS AUTOCAST CHECKPOINT=M2M100EncoderLayer,M2M100DecoderLayer OPT FUSED DTYPE=bf16
# EXPERT: forward and backward fit; the first optimizer.step() makes two moments for 615 M fp32 weights (16 bytes each in all, 9.2 GiB), and its temporaries; 262 M of them are the embeddings of 256206 tokens; enough: OPT=adafactor, FREEZE_EMBEDS, DTYPE=bf16, OPT=sgd; not enough: FUSED (11.0 GiB: no temporaries, but the next backward needs more than is left beside the states), BATCH=4 or 1, MAX_LENGTH=50, AUTOCAST, CHECKPOINT, FUSED with BATCH=1
# after facebookresearch/fairseq issue 4930 (https://github.com/facebookresearch/fairseq/issues/4930: "OOM during optimization" when fine-tuning NLLB), rebuilt with the 600M model of transformers
import math
import os

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from transformers import M2M100Config, M2M100ForConditionalGeneration, get_inverse_sqrt_schedule

import knobs

BATCH = int(os.environ.get("BATCH", 8))
MAX_LENGTH = int(os.environ.get("MAX_LENGTH", 100))
FREEZE_EMBEDS = os.environ.get("FREEZE_EMBEDS") == "1"
VOCAB, PAD, EOS = 256206, 1, 2
ENGLISH, TIGRINYA = 256047, 256168


class Bitext(Dataset):
    """Pairs of sentences as numbers of the NLLB vocabulary, each with the tag of its language."""

    def __init__(self, n):
        g = torch.Generator().manual_seed(0)
        self.pairs = []
        for _ in range(n):
            source, target = (int(torch.randint(MAX_LENGTH // 2, MAX_LENGTH - 1, (1,), generator=g)) for _ in range(2))
            self.pairs.append((self.sentence(ENGLISH, source, g), self.sentence(TIGRINYA, target, g)))

    def sentence(self, tag, length, g):
        return torch.cat([torch.tensor([tag]), torch.randint(4, 250000, (length,), generator=g), torch.tensor([EOS])])

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return self.pairs[i]


def collate(pairs):
    source = pad_sequence([s for s, _ in pairs], batch_first=True, padding_value=PAD)
    target = pad_sequence([t for _, t in pairs], batch_first=True, padding_value=PAD)
    return {"input_ids": source, "attention_mask": (source != PAD).long(),
            "labels": target.masked_fill(target == PAD, -100)}


def nllb_600m():
    config = M2M100Config(vocab_size=VOCAB, d_model=1024, encoder_layers=12, decoder_layers=12,
                          encoder_attention_heads=16, decoder_attention_heads=16, encoder_ffn_dim=4096,
                          decoder_ffn_dim=4096, activation_function="relu", scale_embedding=True,
                          max_position_embeddings=1024, tie_word_embeddings=True, use_cache=False)
    with torch.device("cuda"):
        return M2M100ForConditionalGeneration(config)


def main():
    torch.manual_seed(2)
    model = nllb_600m()
    if FREEZE_EMBEDS:
        model.model.shared.requires_grad_(False)
    knobs.apply(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    print(f"{sum(p.numel() for p in trained) / 1e6:.0f} M of {model.num_parameters() / 1e6:.0f} M weights are trained")
    optimizer = torch.optim.AdamW(trained, lr=5e-5, betas=(0.9, 0.98), weight_decay=0.01)
    scheduler = get_inverse_sqrt_schedule(optimizer, num_warmup_steps=10)
    loader = DataLoader(Bitext(5 * BATCH), batch_size=BATCH, collate_fn=collate, shuffle=False)
    model.train()
    for update, batch in enumerate(loader):
        batch = {k: v.cuda() for k, v in batch.items()}
        with knobs.autocast():
            loss = model(**batch).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        print(f"update {update} loss {loss.item() / math.log(2):.3f} gnorm {norm.item():.2f} "
              f"train_wall peak MiB {torch.cuda.max_memory_allocated() >> 20}", flush=True)


if __name__ == "__main__":
    main()
