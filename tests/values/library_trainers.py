"""Programs of libraries that train by themselves, and of PyTorch's rarer ways to."""

from __future__ import annotations

import copy
import itertools
import random
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from library_loop import STEPS, Outcome, learn, place, seed
from torch import nn

SPECIAL = ["[UNK]", "[PAD]", "[EOS]"]
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog"]


def text(length: int) -> str:
    return " ".join(random.choice(WORDS) for _ in range(length))


def tokenizer() -> Any:
    """One that knows the words above, each by its place."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    places = {word: place for place, word in enumerate([*SPECIAL, *WORDS])}
    made = Tokenizer(models.WordLevel(places, unk_token=SPECIAL[0]))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    unknown, padding, end = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token=unknown, pad_token=padding, eos_token=end
    )


# ---- TRL, whose losses are kernels of Triton on a GPU


def writer() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        pad_token_id=1,
        bos_token_id=None,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config)


def trained(trainer: Any) -> Outcome:
    trainer.train()
    history = trainer.state.log_history
    losses = [torch.tensor(row["loss"]) for row in history if "loss" in row]
    return Outcome(losses, trainer.model.state_dict())


def arguments(folder: str) -> dict[str, Any]:
    return {
        "output_dir": folder,
        "max_steps": STEPS,
        "per_device_train_batch_size": 2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "bf16": False,
        "use_cpu": place() == "cpu",
    }


def supervised() -> Outcome:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    seed()  # importing TRL has drawn
    texts = Dataset.from_dict({"text": [text(12) for _ in range(2 * STEPS)]})
    with tempfile.TemporaryDirectory() as folder:
        return trained(
            SFTTrainer(
                writer(),
                SFTConfig(**arguments(folder)),
                train_dataset=texts,
                processing_class=tokenizer(),
            )
        )


def preferred() -> Outcome:
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    lengths = {"prompt": 3, "chosen": 6, "rejected": 6}
    texts = {k: [text(n) for _ in range(2 * STEPS)] for k, n in lengths.items()}
    model = writer()
    with tempfile.TemporaryDirectory() as folder:
        return trained(
            DPOTrainer(
                model,
                copy.deepcopy(model),
                DPOConfig(**arguments(folder)),
                train_dataset=Dataset.from_dict(texts),
                processing_class=tokenizer(),
            )
        )


# ---- sentence-transformers and Lightning


def sentences() -> Outcome:
    """Embeds what belongs together to the same place."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.losses import MultipleNegativesRankingLoss
    from sentence_transformers.models import Pooling, Transformer
    from sentence_transformers.util import batch_to_device
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=32,
        hidden_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        pad_token_id=1,
    )
    with tempfile.TemporaryDirectory() as folder:
        BertModel(config).save_pretrained(folder)
        tokenizer().save_pretrained(folder)
        parts = Transformer(folder), Pooling(config.hidden_size)
    model = SentenceTransformer(modules=list(parts), device=place())
    loss = MultipleNegativesRankingLoss(model)

    def batch() -> list[dict[str, Any]]:
        sides = [model.preprocess([text(16) for _ in range(16)]) for _ in range(2)]
        return [batch_to_device(side, torch.device(place())) for side in sides]

    return learn(model, (batch() for _ in range(STEPS)), lambda b: loss(b, None))


def lightning() -> Outcome:
    import lightning

    class Network(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            sizes = itertools.pairwise([64, 512, 512, 8])
            self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in sizes)
            self.losses: list[torch.Tensor] = []

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            x, wanted = batch
            for layer in self.layers:
                x = layer(F.gelu(x))
            loss = F.cross_entropy(x, wanted)
            self.losses.append(loss.detach())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    rows = 256 * STEPS
    data = torch.utils.data.TensorDataset(
        torch.randn(rows, 64), torch.randint(8, (rows,))
    )
    model = Network()
    with tempfile.TemporaryDirectory() as folder:
        lightning.Trainer(
            accelerator="cpu" if place() == "cpu" else "gpu",
            devices=1,
            max_epochs=1,
            gradient_clip_val=1.0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        ).fit(model, torch.utils.data.DataLoader(data, 256))
    return Outcome(model.losses, model.state_dict())


# ---- PyTorch itself


class Reader(nn.Module):
    """A recurrent network over sequences of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(64, 96)
        self.cells = nn.LSTM(96, 128, num_layers=2, bidirectional=True)
        self.head = nn.Linear(256, 8)

    def forward(self, rows: list[torch.Tensor]) -> torch.Tensor:
        packed = nn.utils.rnn.pack_sequence(rows, enforce_sorted=False)
        x = packed._replace(data=self.words(packed.data))
        _, (last, _) = self.cells(x)
        return self.head(torch.cat([last[-2], last[-1]], 1))


def packed_rows() -> Outcome:
    model = Reader().to(place())

    def batch() -> tuple[list[torch.Tensor], torch.Tensor]:
        lengths = [random.randint(4, 40) for _ in range(16)]
        rows = [torch.randint(64, (n,)).to(place()) for n in lengths]
        return rows, torch.randint(8, (16,)).to(place())

    return learn(
        model,
        (batch() for _ in range(STEPS)),
        lambda b: F.cross_entropy(model(b[0]), b[1]),
    )


def layers(width: int = 512) -> nn.Module:
    pairs = itertools.pairwise([64, width, width, 8])
    return nn.Sequential(
        *(part for a, b in pairs for part in (nn.Linear(a, b, bias=False), nn.Tanh()))
    )


def examples(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 64).to(place()), torch.randint(8, (rows,)).to(place())


def orthogonal() -> Outcome:
    """Muon, which makes the momentum of each matrix orthogonal."""
    model = layers(128).to(place())  # narrow: the CPU has no library for 16 bits
    return learn(
        model,
        (examples(2048) for _ in range(STEPS)),
        lambda b: F.cross_entropy(model(b[0]), b[1]),
        torch.optim.Muon(model.parameters(), lr=1e-2),
    )


def ensemble() -> Outcome:
    """Several networks at once: functional calls, mapped and differentiated."""
    from torch.func import functional_call, grad_and_value, stack_module_state, vmap

    models = [layers().to(place()) for _ in range(4)]
    weights, buffers = stack_module_state(models)
    base = copy.deepcopy(models[0])

    def loss_of(own: dict[str, Any], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(functional_call(base, (own, buffers), (x,)), y)

    losses = []
    for _ in range(STEPS):
        found = vmap(grad_and_value(loss_of), in_dims=(0, None, None))
        gradients, loss = found(
            {k: v.detach() for k, v in weights.items()}, *examples(256)
        )
        weights = {k: v.detach() - 0.1 * gradients[k] for k, v in weights.items()}
        losses.append(loss.detach().sum())
    return Outcome(losses, weights)


TRAINERS: dict[str, Callable[[], Outcome]] = {
    "trl, SFT": supervised,
    "trl, DPO": preferred,
    "sentence_transformers": sentences,
    "lightning": lightning,
    "torch, packed LSTM": packed_rows,
    "torch, Muon": orthogonal,
    "torch.func, ensemble": ensemble,
}
