"""Libraries that run the loop: the Trainer, accelerate, trl, peft, lightning."""

from __future__ import annotations

import itertools
import random
import tempfile
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 12
WORDS = [f"w{i}" for i in range(1000)]


def tokenizer() -> Any:
    """One that knows the words above."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    places = {word: i for i, word in enumerate(["[UNK]", "[PAD]", "[EOS]", *WORDS])}
    made = Tokenizer(models.WordLevel(places, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]", eos_token="[EOS]"
    )


def text(words: int) -> str:
    return " ".join(random.choices(WORDS, k=words))


def llama(width: int, depth: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=width,
        intermediate_size=width * 8 // 3,
        num_hidden_layers=depth,
        num_attention_heads=width // 64,
        pad_token_id=1,
        eos_token_id=2,
    )
    with torch.device("cuda"):
        return LlamaForCausalLM(config)


def quiet(folder: str, rows: int) -> dict[str, Any]:
    """Arguments of a Trainer that says and keeps nothing."""
    return {
        "output_dir": folder,
        "max_steps": STEPS,
        "per_device_train_batch_size": rows,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "logging_steps": 4,
    }


def trainer_gpt2() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    data = [torch.randint(50000, (1024,)) for _ in range(64)]
    rows = [{"input_ids": x, "labels": x} for x in data]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(**quiet(folder, 8), bf16=True)
        model = GPT2LMHeadModel(GPT2Config())
        Trainer(model, arguments, train_dataset=rows).train()


def trainer_accumulates() -> None:
    """Two batches a step, checkpointing, and an evaluation in the midst."""
    from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments

    data = [torch.randint(30000, (384,)) for _ in range(128)]
    rows = [{"input_ids": x, "labels": x} for x in data]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            **quiet(folder, 16),
            gradient_accumulation_steps=2,
            eval_strategy="steps",
            eval_steps=6,
            prediction_loss_only=True,
        )
        Trainer(
            BertForMaskedLM(BertConfig()),
            arguments,
            train_dataset=rows,
            eval_dataset=rows[:16],
        ).train()


def lora() -> None:
    """Adapters on a frozen model in bfloat16."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=16,
        lora_alpha=32,
        target_modules="all-linear",
        lora_dropout=0.05,
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(llama(2048, 16).to(torch.bfloat16), config)
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-4)
    for _ in range(STEPS):
        x = torch.randint(32000, (4, 512), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=x, labels=x).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def accelerate_accumulation() -> None:
    from accelerate import Accelerator
    from torch.utils.data import DataLoader, TensorDataset
    from transformers import OPTConfig, OPTForCausalLM

    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
    model = OPTForCausalLM(OPTConfig())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = TensorDataset(torch.randint(50000, (8 * 2 * STEPS, 768)))
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(data, batch_size=8, shuffle=True)
    )
    model.train()
    for (x,) in loader:
        with accelerator.accumulate(model):
            loss = model(input_ids=x, labels=x).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


def trl_sft() -> None:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    random.seed(0)
    data = Dataset.from_dict({"text": [text(512) for _ in range(8 * STEPS)]})
    with tempfile.TemporaryDirectory() as folder:
        arguments = SFTConfig(**quiet(folder, 8), bf16=True, max_length=512)
        SFTTrainer(
            llama(1024, 12),
            arguments,
            train_dataset=data,
            processing_class=tokenizer(),
        ).train()


def trl_dpo() -> None:
    """What is preferred and what is not, seen by the model and by its frozen start."""
    import copy

    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    random.seed(0)
    lengths = {"prompt": 64, "chosen": 192, "rejected": 192}
    rows = {k: [text(n) for _ in range(8 * STEPS)] for k, n in lengths.items()}
    model = llama(768, 12)
    with tempfile.TemporaryDirectory() as folder:
        arguments = DPOConfig(**quiet(folder, 8), bf16=True)
        DPOTrainer(
            model,
            copy.deepcopy(model),
            arguments,
            train_dataset=Dataset.from_dict(rows),
            processing_class=tokenizer(),
        ).train()


def sentence_embeddings() -> None:
    """Pairs that belong together against all others of the batch."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.losses import MultipleNegativesRankingLoss
    from sentence_transformers.models import Pooling, Transformer
    from sentence_transformers.util import batch_to_device
    from transformers import BertConfig, BertModel

    random.seed(0)
    with tempfile.TemporaryDirectory() as folder:
        BertModel(BertConfig(vocab_size=1024, pad_token_id=1)).save_pretrained(folder)
        tokenizer().save_pretrained(folder)
        parts = [Transformer(folder), Pooling(768)]
    model = SentenceTransformer(modules=parts, device="cuda").train()
    loss_of = MultipleNegativesRankingLoss(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    device = torch.device("cuda")
    for _ in range(STEPS):
        sides = [model.preprocess([text(128) for _ in range(48)]) for _ in range(2)]
        loss = loss_of([batch_to_device(side, device) for side in sides], None)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def lightning_unet() -> None:
    """A network for segments, by hand, in lightning's loop."""
    import lightning

    def twice(a: int, b: int) -> nn.Sequential:
        parts = []
        for i in (a, b):
            parts += [nn.Conv2d(i, b, 3, padding=1, bias=False), nn.BatchNorm2d(b)]
            parts.append(nn.ReLU(inplace=True))
        return nn.Sequential(*parts)

    class UNet(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            widths = [3, 64, 128, 256, 512]
            pairs = list(itertools.pairwise(widths))
            self.down = nn.ModuleList(twice(a, b) for a, b in pairs)
            self.up = nn.ModuleList(
                nn.ConvTranspose2d(b, b // 2, 2, 2) for b in (512, 256, 128)
            )
            self.joined = nn.ModuleList(twice(b, b // 2) for b in (512, 256, 128))
            self.head = nn.Conv2d(64, 19, 1)

        def forward(self, x):
            kept = []
            for i, block in enumerate(self.down):
                x = block(F.max_pool2d(x, 2) if i else x)
                kept.append(x)
            kept.pop()
            for up, block in zip(self.up, self.joined, strict=True):
                x = block(torch.cat([up(x), kept.pop()], 1))
            return self.head(x)

        def training_step(self, batch, _):
            x, y = batch
            return F.cross_entropy(self(x), y)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    rows = 16 * STEPS
    data = torch.utils.data.TensorDataset(
        torch.randn(rows, 3, 256, 256), torch.randint(19, (rows, 256, 256))
    )
    with tempfile.TemporaryDirectory() as folder:
        lightning.Trainer(
            accelerator="gpu",
            devices=1,
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        ).fit(UNet(), torch.utils.data.DataLoader(data, 16))


PROGRAMS = (
    *(trainer_gpt2, trainer_accumulates, lora, accelerate_accumulation),
    *(trl_sft, trl_dpo, sentence_embeddings, lightning_unet),
)
