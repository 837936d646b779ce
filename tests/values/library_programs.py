"""Programs that use libraries of other hands, as their users write them.

Each is called on the GPU and gives its losses and what it learned. Models are tiny and
random, made from configurations in code: nothing is downloaded.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from library_loop import STEPS, Outcome, learn, on_cpu, seed
from library_pictures import PICTURES
from library_trainers import TRAINERS
from torch import nn

WORDS = 199


def words(rows: int, length: int) -> torch.Tensor:
    return torch.randint(1, WORDS, (rows, length))


def sentences(rows: int, length: int, count: int = STEPS) -> Iterator[torch.Tensor]:
    for _ in range(count):
        yield words(rows, length).cuda()


# ---- transformers


def t5() -> Outcome:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=WORDS,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    model = T5ForConditionalGeneration(config).cuda()
    outcome = learn(
        model, sentences(16, 48), lambda x: model(input_ids=x, labels=x.flip(1)).loss
    )
    written = model.eval().generate(words(4, 8).cuda(), max_new_tokens=8, num_beams=2)
    return Outcome([*outcome.losses, written], outcome.learned)


def whisper() -> Outcome:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=WORDS,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_source_positions=100,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=3,
    )
    model = WhisperForConditionalGeneration(config).cuda()

    def loss_of(text: torch.Tensor) -> torch.Tensor:
        sound = torch.randn(len(text), 80, 200).cuda()
        return model(input_features=sound, labels=text).loss

    return learn(model, sentences(12, 24), loss_of)


def mixtral() -> Outcome:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=WORDS,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        output_router_logits=True,
    )
    model = MixtralForCausalLM(config).cuda()
    model.gradient_checkpointing_enable()
    return learn(model, sentences(16, 64), lambda x: model(input_ids=x, labels=x).loss)


def mamba() -> Outcome:
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(
        vocab_size=WORDS, hidden_size=48, state_size=8, num_hidden_layers=2
    )
    model = MambaForCausalLM(config).cuda()
    return learn(model, sentences(8, 24), lambda x: model(x, labels=x).loss)


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
    )
    return LlamaForCausalLM(config)


def trainer() -> Outcome:
    """The Trainer, which runs on accelerate: accumulates, clips, evaluates, saves."""
    from transformers import Trainer, TrainingArguments

    texts = [{"input_ids": row, "labels": row} for row in words(64, 64)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=STEPS,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            bf16=True,
            eval_strategy="steps",
            eval_steps=2,
            save_steps=2,
            logging_steps=1,
            report_to=[],
            disable_tqdm=True,
        )
        model = llama()
        found = Trainer(model, arguments, train_dataset=texts, eval_dataset=texts[:16])
        found.train()
    told = [entry for row in found.state.log_history for entry in row.items()]
    losses = [torch.tensor(v) for k, v in told if k in ("loss", "eval_loss")]
    return Outcome(losses, model.state_dict())


# ---- PEFT and accelerate


def lora() -> Outcome:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=4,
        lora_dropout=0.1,
        target_modules=["q_proj", "v_proj"],
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(llama(), config).cuda()
    trained = [p for p in model.parameters() if p.requires_grad]
    return learn(
        model,
        sentences(16, 64),
        lambda x: model(input_ids=x, labels=x).loss,
        torch.optim.AdamW(trained, lr=1e-2),
    )


def accelerated() -> Outcome:
    """A loop of accelerate, then inference with weights that wait on the CPU."""
    from accelerate import Accelerator, cpu_offload

    accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="bf16")
    plain = llama()
    model, optimizer, loader = accelerator.prepare(
        plain,
        torch.optim.AdamW(plain.parameters(), lr=1e-3),
        torch.utils.data.DataLoader(words(16 * STEPS, 64), batch_size=16),
    )
    losses = []
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(input_ids=batch, labels=batch).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
    model = accelerator.unwrap_model(model, keep_fp32_wrapper=False)
    learned = {name: value.cpu() for name, value in model.state_dict().items()}
    accelerator.free_memory()
    cpu_offload(model.cpu().eval(), torch.device("cuda:0"))
    with torch.no_grad():
        losses.append(model(input_ids=words(16, 64)).logits)
    return Outcome(losses, learned)


# ---- PyTorch Geometric


def graphs() -> Outcome:
    """Batches of graphs, each of another size."""
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GATv2Conv, GCNConv, SAGEConv, global_mean_pool

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = GCNConv(16, 32)
            self.second = GATv2Conv(32, 8, heads=4, dropout=0.1)
            self.third = SAGEConv(32, 32, aggr="max")
            self.head = nn.Linear(32, 4)

        def forward(self, data: Any) -> torch.Tensor:
            x = self.first(data.x, data.edge_index).relu()
            x = self.second(x, data.edge_index).relu()
            x = self.third(x, data.edge_index).relu()
            return self.head(global_mean_pool(x, data.batch))

    def graph() -> Any:
        count = random.randint(50, 400)
        edges = torch.randint(count, (2, 6 * count))
        label = torch.randint(4, (1,))
        return Data(x=torch.randn(count, 16), edge_index=edges, y=label)

    model = Network().cuda()
    loader = DataLoader([graph() for _ in range(16 * STEPS)], 16, shuffle=True)
    batches = (batch.to("cuda", non_blocking=True) for batch in loader)
    return learn(model, batches, lambda x: F.cross_entropy(model(x), x.y))


PROGRAMS: dict[str, Callable[[], Outcome]] = {
    "transformers, T5": t5,
    "transformers, Whisper": whisper,
    "transformers, Mixtral": mixtral,
    "transformers, Mamba": mamba,
    "transformers, Trainer": trainer,
    "peft": lora,
    "accelerate": accelerated,
    "torch_geometric": graphs,
    **PICTURES,
    **TRAINERS,
}


# ---- one run


@contextlib.contextmanager
def smaller_card(limit_bytes: int) -> Iterator[None]:
    """A card that has no more than that; of what is saved, the small may leave too."""
    from oomph.offload import activations

    total_bytes = torch.cuda.get_device_properties(0).total_memory
    small_bytes, activations.SMALL_BYTES = activations.SMALL_BYTES, 1 << 10
    torch.cuda.set_per_process_memory_fraction(limit_bytes / total_bytes)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        activations.SMALL_BYTES = small_bytes


def digest(value: torch.Tensor) -> str:
    raw = value.detach().cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.sha256(raw.numpy().tobytes()).hexdigest()[:16]


def values(name: str) -> dict[str, Any]:
    """Runs a program; gives its values, as JSON takes them."""
    seed()
    losses, learned = PROGRAMS[name]()
    return {
        "losses": [v.item() if v.numel() == 1 else digest(v) for v in losses],
        "learned": {k: digest(v) for k, v in learned.items()},
    }


def run_on_cpu(name: str) -> list[float]:
    with on_cpu():
        return values(name)["losses"]


def run_natively(name: str) -> tuple[dict[str, Any], int]:
    """Gives the values, and the memory that they need in bytes."""
    torch.cuda.reset_peak_memory_stats()
    found = values(name)
    return found, torch.cuda.max_memory_allocated()


def run_short(name: str, limit_bytes: int) -> tuple[dict[str, Any], int, int]:
    """Gives the values, blocks that fell back to the host, and bytes sent ahead."""
    import oomph

    before = oomph.stats()
    with smaller_card(limit_bytes):
        found = values(name)
        after = oomph.stats()
    rescues = after["rescues"] - before["rescues"]
    return found, rescues, after["sent_bytes"] - before["sent_bytes"]


def run_sent(name: str) -> tuple[dict[str, Any], int]:
    """Gives the values, and the bytes sent to the host: all that is saved goes."""
    from test_offload import all_leave, sent_bytes

    with all_leave():
        return values(name), sent_bytes()


def run_again(name: str) -> tuple[dict[str, Any], int]:
    """Gives the values, and how many calls run again: all that may, from the start."""
    from recomputing import recomputing

    with recomputing(early=True) as seen:
        return values(name), len(seen.reruns)
