# CARD: 24GiB
# KNOBS: OPT FUSED DTYPE=bf16
# EXPERT: 1.5 B parameters with AdamW in fp32 take 16 bytes each, about 24 GB before any activation, batch 1 or not; 8-bit Adam/Adafactor, bf16, or freeze parts/LoRA
# after huggingface/transformers issue 20348
from dataclasses import dataclass

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import WhisperConfig, WhisperForConditionalGeneration

import knobs

MAX_STEPS = 2
DEVICE = "cuda"


class CommonVoice(Dataset):
    """Log-mel features, padded by the feature extractor to 30 s, and the transcript."""

    def __init__(self, n=16):
        self.n = n
        self.mel = torch.randn(80, 3000)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return {"input_features": self.mel.roll(i, -1), "labels": torch.randint(0, 50000, (12 + i % 9,)).tolist()}


@dataclass
class DataCollatorSpeechSeq2SeqWithPadding:
    pad: int = -100

    def __call__(self, features):
        longest = max(len(f["labels"]) for f in features)
        labels = torch.tensor([f["labels"] + [self.pad] * (longest - len(f["labels"])) for f in features])
        return {"input_features": torch.stack([f["input_features"] for f in features]), "labels": labels}


config = WhisperConfig(
    vocab_size=51865, num_mel_bins=80, d_model=1280,
    encoder_layers=32, encoder_attention_heads=20, encoder_ffn_dim=5120,
    decoder_layers=32, decoder_attention_heads=20, decoder_ffn_dim=5120,
)
with torch.device(DEVICE):
    model = WhisperForConditionalGeneration(config)
model.config.forced_decoder_ids = None
model.config.suppress_tokens = []
model.config.use_cache = False
knobs.apply(model)
model.train()
print("parameters:", sum(p.numel() for p in model.parameters()))

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
loader = DataLoader(CommonVoice(), batch_size=1, shuffle=True,
                    collate_fn=DataCollatorSpeechSeq2SeqWithPadding())
for step, batch in enumerate(loader):
    features = batch["input_features"].to(DEVICE, knobs.dtype())
    labels = batch["labels"].to(DEVICE)
    loss = model(input_features=features, labels=labels).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print({"step": step, "loss": loss.item()})
    if step + 1 == MAX_STEPS:
        break
print("PEAK", torch.cuda.max_memory_allocated())
