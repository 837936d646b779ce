"""Rebuilds whole trainings on the simulated card of this process.

    OOMPH_SIMULATE=a100-80gb python benchmarks/published/trainings.py < requests.json

Requests come as JSON on standard input, those of one training together: its program,
what that is given, and the figure asked for. Standard output gets a line for each, in
MiB.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from forks import Request, serve, training_of
from oomph import simulate
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint_sequential

MIB = 1 << 20
STEPS = 3  # from the second on they are alike
Figures = dict[str, float]


def figures() -> Figures:
    """What can be asked for: of PyTorch now and at its peak, and of nvidia-smi."""
    free, total = torch.cuda.mem_get_info()
    used = total - free - torch.cuda.memory_reserved()
    return {
        "allocated": torch.cuda.memory_allocated() / MIB,
        "peak allocated": torch.cuda.max_memory_allocated() / MIB,
        "reserved": torch.cuda.max_memory_reserved() / MIB,
        "nvidia-smi": (used + torch.cuda.max_memory_reserved()) / MIB,
    }


def now_ms() -> float:
    """The virtual clock's time, once all work is done."""
    torch.cuda.synchronize()
    return simulate.usage().now_ns / 1e6


# ---- fms-acceleration: SFTTrainer, pure bf16, checkpointed, AdamW


def models() -> dict[str, tuple[type, dict[str, Any]]]:
    """Configurations as the models were published with."""
    from transformers import (
        GPTBigCodeConfig,
        GraniteConfig,
        LlamaConfig,
        MistralConfig,
    )

    return {
        "Mistral-7B": (
            MistralConfig,
            {
                **{"vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32},
                **{"intermediate_size": 14336, "num_attention_heads": 32},
                **{"num_key_value_heads": 8, "sliding_window": 4096},
            },
        ),
        "Llama-2-70b": (
            LlamaConfig,
            {
                **{"vocab_size": 32000, "hidden_size": 8192, "num_hidden_layers": 80},
                **{"intermediate_size": 28672, "num_attention_heads": 64},
                **{"num_key_value_heads": 8, "max_position_embeddings": 4096},
            },
        ),
        "santacoder": (
            GPTBigCodeConfig,
            {
                **{"vocab_size": 49280, "n_embd": 2048, "n_layer": 24, "n_head": 16},
                **{"n_inner": 8192, "n_positions": 2048, "multi_query": True},
                **{"attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1},
            },
        ),
        "PowerLM-3b": (
            GraniteConfig,
            {
                **{"vocab_size": 49152, "hidden_size": 2304, "num_hidden_layers": 40},
                **{"intermediate_size": 9216, "num_attention_heads": 36},
                **{"num_key_value_heads": 36, "tie_word_embeddings": True},
                **{"attention_dropout": 0.1},
            },
        ),
    }


class Adapter(nn.Module):
    """LoRA as peft 0.13 has it: adapters in fp32 beside a layer in bf16, or in 4 bits.

    Beside one of 4 bits autocast is on, and what that gives is copied.
    """

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.dropout = base, nn.Dropout(0.1)
        self.is_quantized = type(base) is not nn.Linear
        like = {"bias": False, "device": "cuda", "dtype": torch.float32}
        self.down = nn.Linear(base.in_features, 16, **like)
        self.up = nn.Linear(16, base.out_features, **like)

    def forward(self, x: Tensor) -> Tensor:
        result = self.base(x)
        if self.is_quantized:
            return result.clone() + self.up(self.down(self.dropout(x))) * 1.0
        dtype = result.dtype
        result = result + self.up(self.down(self.dropout(x.float()))) * 1.0
        return result.to(dtype)


def add_adapters(model: nn.Module) -> None:
    model.requires_grad_(False)
    for module in [*model.modules()]:
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            child = getattr(module, name, None)
            if isinstance(child, nn.Linear):
                setattr(module, name, Adapter(child))


def load_bitsandbytes() -> Any:
    sys.path.append(str(Path(sys.prefix, "apart")))  # tools/install_tools.py
    import bitsandbytes

    return bitsandbytes


def quantize(model: nn.Module) -> None:
    """Has bitsandbytes hold all layers but the head in 4 bits, one after the other."""
    layers = load_bitsandbytes().nn

    how: dict[str, Any] = {"compress_statistics": True, "quant_type": "nf4"}
    layer_how = {**how, "compute_dtype": torch.bfloat16, "device": "meta"}
    for module in [*model.modules()]:
        for name, child in [*module.named_children()]:
            if not isinstance(child, nn.Linear) or name == "lm_head":
                continue
            sizes = child.in_features, child.out_features
            layer = layers.Linear4bit(*sizes, bias=False, **layer_how)
            weight = torch.empty(*sizes[::-1], dtype=torch.bfloat16, device="cuda")
            layer.weight = layers.Params4bit(weight, requires_grad=False, **how)
            setattr(module, name, layer.to("cuda"))
            del weight


def quantized(config: Any) -> nn.Module:
    """A model whose layers never are in bf16 together."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    quantize(model)
    for module in model.modules():
        for name, parameter in [*module.named_parameters(recurse=False)]:
            if parameter.is_meta:
                made = torch.empty_like(parameter, device="cuda")
                setattr(module, name, nn.Parameter(made))
    with torch.device("cuda"):
        model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model


def fms(request: Request) -> Figures:
    from transformers import AutoModelForCausalLM

    kind, values = models()[request["model"]]
    config = kind(**values, attn_implementation="sdpa", use_cache=False)
    bits = request.get("bits4")
    torch.set_default_dtype(torch.bfloat16)
    if bits:
        model = quantized(config)
    else:
        with torch.device("cuda"):
            model = AutoModelForCausalLM.from_config(config)
    torch.set_default_dtype(torch.float32)
    if bits == "by trl":  # which has peft prepare it
        for module in model.modules():
            if "norm" in type(module).__name__.lower():
                module.float()
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": True})
    model.enable_input_require_grads()
    if request.get("lora"):
        add_adapters(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-5, weight_decay=0.01, eps=1e-4)
    shape = request["batch"], request["tokens"]
    for _ in range(STEPS):
        began_ms = now_ms()
        tokens = torch.randint(config.vocab_size, shape).cuda()
        labels, mask = tokens.clone(), torch.ones_like(tokens)  # the last stays
        with torch.autocast("cuda", torch.bfloat16, enabled=bool(bits)):
            loss = causal_loss(model, tokens, labels, request["model"])
        loss.backward()
        del loss
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    found = {"step": now_ms() - began_ms, **figures()}
    del tokens, labels, mask
    return found


def causal_loss(model: nn.Module, tokens: Tensor, labels: Tensor, name: str) -> Tensor:
    """As the model's version of transformers computed it.

    GPTBigCode in the logits' own type; Granite (4.45) in fp32, as which the logits then
    went on; Mistral (4.48) in fp32, beside logits in bf16 that the model gave.
    """
    logits = model(input_ids=tokens).logits
    given = logits
    if name != "santacoder":
        logits = logits.float()
    if name == "PowerLM-3b":
        del given
    shifted = logits[..., :-1, :].contiguous()
    wanted = labels[..., 1:].contiguous()
    shifted = shifted.view(-1, shifted.size(-1))
    return functional.cross_entropy(shifted, wanted.view(-1))


# ---- Hugging Face: bert-large, 512 tokens, as their guide to one GPU trains it


class OldSoftmax(torch.autograd.Function):
    """The softmax of PyTorch 1.10, which kept its input as well (pytorch#64000)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        result = torch.softmax(x, dim)
        ctx.dim = dim
        ctx.save_for_backward(x, result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        x, result = ctx.saved_tensors
        found = torch._softmax_backward_data(gradient, result, ctx.dim, x.dtype)
        return found, None


def old_softmax(x: Tensor, dim: int) -> Tensor:
    """Calls it; under autocast in fp32, as which its input is kept."""
    return OldSoftmax.apply(x.float() if torch.is_autocast_enabled("cuda") else x, dim)


def bert(request: Request) -> Figures:
    functional.softmax = old_softmax
    from transformers import AutoModelForSequenceClassification, BertConfig

    config = BertConfig(
        **{"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
        **{"intermediate_size": 4096, "attn_implementation": "eager"},
    )
    model = AutoModelForSequenceClassification.from_config(config).cuda()
    if request["ways"] == "load":
        return figures()
    ways = request["ways"].split("+")
    model.train()
    if "checkpointing" in ways:
        model.gradient_checkpointing_enable({"use_reentrant": True})
    optimizer = _optimizer_of_bert(model, ways)
    is_half = "fp16" in ways
    scaler = torch.amp.GradScaler(enabled=is_half)
    batch, pieces = (1, 4) if "accumulation" in ways else (4, 1)
    for _ in range(STEPS):
        for _ in range(pieces):
            tokens = torch.randint(100, 30000, (batch, 512)).cuda()
            labels = torch.randint(0, 1, (batch,)).cuda()
            context = (
                torch.autocast("cuda", torch.float16) if is_half else nullcontext()
            )
            with context:
                loss = model(input_ids=tokens, labels=labels).loss / pieces
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        model.zero_grad()
    return figures()


def _optimizer_of_bert(model: nn.Module, ways: Sequence[str]) -> torch.optim.Optimizer:
    if "Adafactor" in ways:
        from transformers.optimization import Adafactor

        return Adafactor(
            model.parameters(), lr=5e-5, scale_parameter=False, relative_step=False
        )
    if "8-bit Adam" in ways:
        return load_bitsandbytes().optim.Adam8bit(model.parameters(), lr=5e-5)
    return torch.optim.AdamW(model.parameters(), lr=5e-5, foreach=False)


# ---- ailzhang/EfficientPyTorch, chapter 7: programs of a book


def two_tensors(request: Request) -> Figures:
    first = torch.randn(1024, 1024, device="cuda")
    second = torch.randn(256, 1024, 1024, 1, device="cuda")
    found = figures()
    del first, second
    return found


def accumulated(request: Request) -> Figures:
    """Two steps of 256 pictures, in pieces."""
    data = torch.randn(512, 32, 1024)
    weight = torch.randn(1024, 32, requires_grad=True, device="cuda")
    optimizer = torch.optim.SGD([weight], lr=0.01)
    piece = request["piece"]
    for step in range(2):
        optimizer.zero_grad()
        for start in range(256 * step, 256 * (step + 1), piece):
            batch = data[start : start + piece].cuda()
            product = batch.matmul(weight)
            loss = product.sum()
            loss.backward()
        optimizer.step()
    return figures()


def checkpointed(request: Request) -> Figures:
    """A network with two segments that are computed twice; then as it is."""
    sizes = [1000, 40000, 1000, 5]
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    model = nn.Sequential(*layers).cuda()
    x = torch.randn(10, 1000, device="cuda", requires_grad=True)
    out = checkpoint_sequential(layers, 2, x, use_reentrant=True)
    model.zero_grad()
    out.sum().backward()
    if not request["then_plain"]:
        return figures()
    kept = [out.data.clone(), *(p.grad.data.clone() for p in model.parameters())]
    given = x.clone().detach_()
    out = model(given)
    kept.append(out.data.clone())
    model.zero_grad()
    out.sum().backward()
    return figures()


PROGRAMS: dict[str, Callable[[Request], Figures]] = {
    "accumulated": accumulated,
    "bert": bert,
    "checkpointed": checkpointed,
    "fms": fms,
    "two_tensors": two_tensors,
}


def answers(requests: Sequence[Request]) -> Iterator[float]:
    """The figures that are asked for, of one training."""
    first = requests[0]
    found = PROGRAMS[first["program"]](first)
    for request in requests:
        yield found[request["figure"]]


if __name__ == "__main__":
    import transformers.models.bert  # noqa: F401 - that each fork has it

    sys.exit(serve(training_of, answers))
