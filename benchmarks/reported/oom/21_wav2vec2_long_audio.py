# CARD: 24GiB
# KNOBS: BATCH=8 MAX_SECONDS=30 AUTOCAST CHECKPOINT=Wav2Vec2EncoderLayerStableLayerNorm FREEZE_CNN OPT FUSED
# EXPERT: 30 s clips: 24 layers at 1500 frames with fp32 activations, then the first strided convolutions (512 channels at 3.2 kHz) and their layer norms; cut the clips, smaller batch with accumulation, checkpoint the encoder layers; bf16 autocast, freezing the feature extractor or another optimizer is not enough alone
# Source: people fine-tuning Wav2Vec2 with the HF Trainer on long recordings (huggingface/transformers 10965, 13651; answers there: filter or cut long clips)
import os
import random
from dataclasses import dataclass

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, Wav2Vec2Config, Wav2Vec2ForSequenceClassification

import knobs

SR = 16_000
EMOTIONS = ["neutral", "happy", "sad", "angry", "fear", "disgust", "calm"]
MAX_SECONDS = float(os.environ.get("MAX_SECONDS", 30))


class CallCenterDataset(Dataset):
    """waveforms after resampling to 16 kHz, with the emotion of the speaker"""

    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.seconds = [rng.uniform(12, 30) for _ in range(n)]
        for i in range(0, n, 5):
            self.seconds[i] = 30.0

    def __len__(self):
        return len(self.seconds)

    def __getitem__(self, i):
        sec = min(self.seconds[i], MAX_SECONDS)
        return {"input_values": torch.zeros(int(sec * SR)), "label": i % len(EMOTIONS)}


@dataclass
class PadToLongest:
    value: float = 0.0

    def __call__(self, features):
        waves = [f["input_values"] for f in features]
        x = torch.nn.utils.rnn.pad_sequence(waves, batch_first=True, padding_value=self.value)
        return {"input_values": x, "labels": torch.tensor([f["label"] for f in features])}


class OrderedTrainer(Trainer):
    """longest clips first came out of the csv, keep that order"""

    def _get_train_sampler(self, *args):
        return torch.utils.data.SequentialSampler(self.train_dataset)


config = Wav2Vec2Config(  # wav2vec2-large-robust
    num_labels=len(EMOTIONS),
    hidden_size=1024,
    num_hidden_layers=24,
    num_attention_heads=16,
    intermediate_size=4096,
    feat_extract_norm="layer",
    do_stable_layer_norm=True,
    conv_bias=True,
    apply_spec_augment=False,
    layerdrop=0.0,
)
with torch.device("cuda"):
    model = Wav2Vec2ForSequenceClassification(config)
if os.environ.get("FREEZE_CNN", "0") == "1":
    model.freeze_feature_encoder()
knobs.apply(model)

args = TrainingArguments(
    output_dir="/tmp/wav2vec2-emotion",
    per_device_train_batch_size=int(os.environ.get("BATCH", 8)),
    max_steps=2,
    bf16=os.environ.get("AUTOCAST", "0") == "1",
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    dataloader_num_workers=0,
    disable_tqdm=True,
    remove_unused_columns=False,
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.005)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1.0)

trainer = OrderedTrainer(
    model=model,
    args=args,
    data_collator=PadToLongest(),
    train_dataset=CallCenterDataset(64, 0),
    optimizers=(optimizer, scheduler),
)
trainer.train()
print("PEAK", torch.cuda.max_memory_allocated())
