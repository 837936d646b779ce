# CARD: 16GiB
# KNOBS: BATCH=1 SECONDS_MAX=120 GRAD_CKPT FREEZE BF16 ATTN=sdpa AUTOCAST CHECKPOINT=Wav2Vec2LayerNormConvLayer,Wav2Vec2EncoderLayerStableLayerNorm OPT FUSED
# EXPERT: weights, gradients and Adam states are about 5 GiB; a clip of 120 s becomes 512 channels x 384 thousand frames in the first convolution (0.73 GiB for each of the kept copies), and 6000 tokens in each of 24 layers; the batch is 1 already; cut the clips to 60 s, gradient checkpointing (or of the 24 encoder layers); freezing the feature encoder, bf16, autocast, checkpointing only the convolutions, eager attention, SGD/Adafactor or a fused optimizer is not enough alone
# Source: huggingface/transformers 10965 (Wav2Vec2 on long recordings does not fit even with batch_size=1), 13651 ('can you try filtering out sequences that are too long or chunk them?'); transformers Trainer
import os
import tempfile

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, Wav2Vec2Config, Wav2Vec2ForCTC

import knobs

BATCH = int(os.environ.get("BATCH", 1))
SECONDS = int(os.environ.get("SECONDS_MAX", 120))
VOCAB = 32
on = lambda k: os.environ.get(k, "0") == "1"


class Meetings(Dataset):
    """16 kHz recordings; the longest has SECONDS seconds"""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        seconds = SECONDS * (10 - i % 3) // 10
        g = torch.Generator().manual_seed(i)
        return {"input_values": torch.randn(16000 * seconds, generator=g), "labels": torch.randint(3, VOCAB, (12 * seconds,), generator=g)}


def collate(features):
    pad = torch.nn.utils.rnn.pad_sequence
    values = pad([f["input_values"] for f in features], batch_first=True)
    mask = pad([torch.ones(len(f["input_values"]), dtype=torch.long) for f in features], batch_first=True)
    labels = pad([f["labels"] for f in features], batch_first=True, padding_value=-100)
    return {"input_values": values, "attention_mask": mask, "labels": labels,
            "frames": [frames(len(f["input_values"])) for f in features], "letters": [len(f["labels"]) for f in features]}


def frames(samples):
    for kernel, stride in zip(config.conv_kernel, config.conv_stride):
        samples = (samples - kernel) // stride + 1
    return samples


class CTCTrainer(Trainer):
    def compute_loss(self, model, inputs, **kwargs):
        letters, lengths, labels = inputs.pop("letters"), inputs.pop("frames"), inputs.pop("labels")
        with knobs.autocast():
            logits = model(**inputs).logits
        log_probs = F.log_softmax(logits, dim=-1, dtype=torch.float32).transpose(0, 1)
        return F.ctc_loss(log_probs, labels, tuple(lengths), tuple(letters), blank=0, reduction="mean", zero_infinity=True)

    def create_optimizer(self, model=None):
        if self.optimizer is None:
            self.optimizer = torch.optim.AdamW([p for p in self.model.parameters() if p.requires_grad], lr=self.args.learning_rate)
        return self.optimizer


# wav2vec2-large-xlsr-53
config = Wav2Vec2Config(
    vocab_size=VOCAB, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
    feat_extract_norm="layer", conv_bias=True, do_stable_layer_norm=True,
    attention_dropout=0.1, hidden_dropout=0.1, feat_proj_dropout=0.0, layerdrop=0.0, mask_time_prob=0.0, apply_spec_augment=False,
    pad_token_id=0,
)
config._attn_implementation = os.environ.get("ATTN", "sdpa")
with torch.device("cuda"):
    model = Wav2Vec2ForCTC(config)
if on("FREEZE"):
    model.freeze_feature_encoder()
knobs.apply(model)

training_args = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=BATCH,
    gradient_accumulation_steps=2,
    gradient_checkpointing=on("GRAD_CKPT"),
    bf16=on("BF16"),
    max_steps=2,
    learning_rate=3e-4,
    warmup_steps=1,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    remove_unused_columns=False,
    dataloader_num_workers=0,
)
trainer = CTCTrainer(model=model, args=training_args, train_dataset=Meetings(8 * BATCH), data_collator=collate)
trainer.train()
print(trainer.state.log_history[-1].get("train_loss"))
