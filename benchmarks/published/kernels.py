"""The plain PyTorch modules that Liger-Kernel's benchmarks compare with its own.

Each is rebuilt from what those scripts do (benchmark/scripts, at the commit of its
rows): the same shapes, types and order of calls. Parameters of the module compared with
count, too, since the scripts make both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Config = dict[str, Any]
ACTIVATIONS = {"silu": nn.SiLU(), "gelu_pytorch_tanh": nn.GELU(approximate="tanh")}


@dataclass(frozen=True)
class Case:
    """What a row measures.

    Attributes:
        forward: Gives the outputs.
        backward: Takes them.
        leaves: Whose gradients are dropped before each timed call.
    """

    forward: Callable[[], Any]
    backward: Callable[[Any], object]
    leaves: Sequence[Tensor] = ()

    def full(self) -> None:
        """Both."""
        self.backward(self.forward())


def random(
    *shape: int, dtype: torch.dtype = torch.float32, grad: bool = True
) -> Tensor:
    return torch.randn(*shape, dtype=dtype, device="cuda", requires_grad=grad)


def dtype_of(config: Config) -> torch.dtype:
    return getattr(torch, config["dtype"].removeprefix("torch."))


def of_loss(loss: Callable[[], Tensor], leaves: Sequence[Tensor] = ()) -> Case:
    """A loss whose graph is kept, as for timing backward alone."""
    return Case(loss, lambda y: y.backward(retain_graph=True), leaves)


def of_module(module: Callable[[Tensor], Tensor], x: Tensor) -> Case:
    """A module with a gradient that is there before."""
    gradient = torch.randn_like(x)
    return Case(
        lambda: module(x), lambda y: y.backward(gradient, retain_graph=True), [x]
    )


# ---- Losses


def cross_entropy(vocabulary: int, config: Config) -> Case:
    """`nn.CrossEntropyLoss` of B T x V logits in fp32."""
    rows = config["B"] * config["T"]
    x, target = random(rows, vocabulary), labels(vocabulary, rows)
    loss = nn.CrossEntropyLoss()
    return Case(lambda: loss(x, target), Tensor.backward)


def labels(count: int, rows: int) -> Tensor:
    return torch.randint(count, (rows,), device="cuda")


def kl_div(vocabulary: int, config: Config) -> Case:
    """`nn.KLDivLoss(reduction="batchmean")` of `log_softmax` with `softmax`."""
    rows = config["B"] * config["T"]
    x = random(rows, vocabulary).log_softmax(-1)
    target = random(rows, vocabulary, grad=False).softmax(-1)
    loss = nn.KLDivLoss(reduction="batchmean")
    return of_loss(lambda: loss(x, target))


def tvd(vocabulary: int, config: Config) -> Case:
    """Half the sum of `abs(p - q)`, per row, of two `softmax`."""
    rows = config["B"] * config["T"]
    p = random(rows, vocabulary).softmax(-1)
    q = random(rows, vocabulary, grad=False).softmax(-1)
    return of_loss(lambda: ((p - q).abs() / 2.0).sum() / rows)


def divergence(log_q: Tensor, log_p: Tensor, per_row: bool) -> Tensor:
    """Jensen and Shannon's, as a sum per row (from v0.4 on) or as a mean of batches."""
    dtype = log_q.dtype
    log_p, log_q = log_p.float(), log_q.float()
    if per_row:
        kl = nn.KLDivLoss(reduction="none", log_target=True)
        mean = torch.lerp(log_q.exp(), log_p.exp(), 0.5)
        first = 0.5 * kl(mean.log(), log_p).sum(-1)
        loss = first + 0.5 * kl(mean.log(), log_q).sum(-1)
        return (loss / len(log_q)).sum().to(dtype)
    kl = nn.KLDivLoss(reduction="batchmean", log_target=True)
    mean = torch.lerp(log_p.exp(), log_q.exp(), 0.5)
    loss = 0.5 * kl(mean.log(), log_p) + 0.5 * kl(mean.log(), log_q)
    return loss.to(dtype)


def jsd(count: int, config: Config) -> Case:
    """Jensen-Shannon divergence of two `log_softmax`, by `nn.KLDivLoss`."""
    per_row = "vocab_size" in config  # later rows vary the tokens
    rows = count if per_row else config["B"] * config["T"]
    vocabulary = config["vocab_size"] if per_row else count
    x = random(rows, vocabulary).log_softmax(-1)
    target = random(rows, vocabulary, grad=False).log_softmax(-1)
    return of_loss(lambda: divergence(x, target, per_row))


def head(config: Config) -> nn.Linear:
    with torch.device("cuda"):
        return nn.Linear(config["H"], config["V"], bias=False, dtype=dtype_of(config))


def fused_linear_cross_entropy(rows: int, config: Config) -> Case:
    """`nn.Linear(H, V)` without bias, then `nn.CrossEntropyLoss`."""
    linear, other = head(config), head(config)
    x = random(rows, config["H"], dtype=dtype_of(config))
    target = labels(config["V"], rows)
    loss = nn.CrossEntropyLoss()
    return keeping(other, Case(lambda: loss(linear(x), target), Tensor.backward))


def fused_linear_jsd(rows: int, config: Config) -> Case:
    """Two `nn.Linear(H, V)`, `log_softmax`, Jensen-Shannon divergence."""
    student, teacher, *others = (head(config) for _ in range(4))
    dtype, shape = dtype_of(config), (config["V"], config["H"])
    for linear, other in zip((student, teacher), others, strict=True):
        weight = torch.rand(shape, dtype=dtype, device="cuda")
        linear.weight.data = other.weight.data = weight
    del weight
    x = torch.rand(rows, config["H"], dtype=dtype, device="cuda", requires_grad=True)
    given = torch.rand(rows, config["H"], dtype=dtype, device="cuda")

    def loss() -> Tensor:
        ours, theirs = student(x), teacher(given)  # alive until the end, as there
        log_q = torch.log_softmax(ours / 1.0, -1)
        log_p = torch.log_softmax(theirs / 1.0, -1)
        return divergence(log_q, log_p, per_row=False)

    return Case(loss, Tensor.backward)


# ---- Norms


def layer_norm(width: int, config: Config) -> Case:
    """`nn.LayerNorm(N)` of M rows."""
    norm, other = (nn.LayerNorm(width, eps=1e-6).cuda() for _ in range(2))
    return keeping(other, of_module(norm, random(config["M"], width)))


def group_norm(channels: int, config: Config) -> Case:
    """`nn.GroupNorm` of M x C x H, four channels to a group."""
    groups = channels // config["channels_per_group"]
    norm, other = (nn.GroupNorm(groups, channels).cuda() for _ in range(2))
    x = random(config["M"], channels, config["H"])
    return keeping(other, of_module(norm, x))


def keeping(other: object, case: Case) -> Case:
    """A case during which something else is alive."""

    def forward() -> Any:
        assert other is not None
        return case.forward()

    return Case(forward, case.backward, case.leaves)


def normed(x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Root mean squares as transformers has them, x in fp32."""
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * x.to(dtype)


def weight_of(width: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(width, device="cuda"))


def rms_norm(width: int, config: Config) -> Case:
    """`LlamaRMSNorm` of transformers, of M rows."""
    dtype, weight, other = dtype_of(config), weight_of(width), weight_of(width)
    x = random(config["M"], width, dtype=dtype)
    return keeping(other, of_module(lambda x: normed(x.float(), weight, dtype), x))


def fused_add_rms_norm(width: int, config: Config) -> Case:
    """The sum of two inputs, then `LlamaRMSNorm`; both are outputs."""
    dtype, weight = dtype_of(config), weight_of(width)
    others = [weight_of(width) for _ in range(3)]
    x, r = (random(config["M"], width, dtype=dtype) for _ in range(2))
    gradients = [torch.randn_like(x), torch.randn_like(r)]

    def forward() -> tuple[Tensor, Tensor]:
        assert others
        total = x.float() + r.float()
        return normed(total, weight, dtype), total.to(dtype)

    def backward(outputs: tuple[Tensor, Tensor]) -> None:
        is_again = config["mode"] == "backward"  # of the same outputs
        torch.autograd.backward(outputs, gradients, retain_graph=is_again)

    return Case(forward, backward, [x, r])


def megatron_rms_norm(width: int, config: Config) -> Case:
    """`nn.RMSNorm` of S x B x H in bf16, then `sum()`."""
    norm = nn.RMSNorm(width, eps=1e-6).cuda().bfloat16()
    x = random(config["S"], config["B"], width, dtype=torch.bfloat16)
    leaves = [x] if config["mode"] == "backward" else []
    return Case(lambda: norm(x), lambda y: y.sum().backward(), leaves)


# ---- Activations and embeddings


def softmax(width: int, config: Config) -> Case:
    """`nn.Softmax`; memory of one row of N, times of M rows."""
    return of_module(lambda x: x.softmax(-1), matrix(width, config))


def matrix(width: int, config: Config) -> Tensor:
    """What is timed; memory was measured of one row alone."""
    shape = (width,) if config["metric"] == "memory" else (config["M"], width)
    return random(*shape, dtype=dtype_of(config))


def relu_squared(width: int, config: Config) -> Case:
    """`relu(x).square()`; memory of one row of N, times of M rows."""
    return of_module(lambda x: functional.relu(x).square(), matrix(width, config))


def sparsemax(vocabulary: int, config: Config) -> Case:
    """Sparsemax (Martins and Astudillo, 2016) by `sort` and `cumsum`."""
    x = random(config["B"] * config["T"], vocabulary, dtype=dtype_of(config))
    return of_module(_sparsemax, x)


def _sparsemax(x: Tensor) -> Tensor:
    """Martins and Astudillo, 2016."""
    ordered, _ = torch.sort(x, dim=-1, descending=True)
    total = torch.cumsum(ordered, dim=-1)
    count = torch.arange(1, x.size(-1) + 1, device=x.device, dtype=x.dtype).view(1, -1)
    bound = 1 + count * ordered
    support = bound > total
    size = support.sum(dim=-1, keepdim=True).clamp(min=1)
    inside = (ordered * support).sum(dim=-1, keepdim=True)
    return torch.clamp(x - (inside - 1) / size, min=0)


def megatron_swiglu(width: int, config: Config) -> Case:
    """`silu(gate) * up` of halves of S x B x 2 ffn, then `sum()`."""
    x = random(config["S"], config["B"], 2 * width, dtype=torch.bfloat16)

    def forward() -> Tensor:
        x.grad = None
        gate, up = x.chunk(2, -1)
        return functional.silu(gate) * up

    return Case(forward, lambda y: y.sum().backward())


def embedding(vocabulary: int, config: Config) -> Case:
    """`nn.Embedding(V, D)` of B x T tokens in fp32."""
    width, dtype = config["D"], dtype_of(config)
    with torch.device("cuda"):
        table, other = (nn.Embedding(vocabulary, width).to(dtype) for _ in range(2))
    tokens = torch.randint(vocabulary, (config["B"], config["T"]), device="cuda")
    case = Case(lambda: table(tokens), lambda y: y.backward(torch.randn_like(y)))
    return keeping(other, case)


class Gated(nn.Module):
    """Llama's MLP."""

    def __init__(self, width: int, inner: int, activation: nn.Module) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.gate(x)) * self.up(x))


def mlp(tokens: int, config: Config) -> Case:
    """Llama's MLP: three `nn.Linear` without bias, and an activation."""
    width, dtype = config["hidden_size"], dtype_of(config)
    batch = config.get("bsz") or config["B"]
    x = random(batch, tokens, width, dtype=dtype)
    activation = ACTIVATIONS[config["hidden_act"]]
    with torch.device("cuda"):
        layer = Gated(width, config["intermediate_size"], activation).to(dtype)
    if config["mode"] == "backward":
        return of_module(layer, x)
    return Case(
        lambda: layer(x),
        lambda y: y.backward(torch.randn_like(y), retain_graph=True),
        [x],
    )


# ---- Rotary positions


def heads(varied: int, config: Config, is_transposed: bool) -> tuple[Tensor, ...]:
    """Queries, keys, and what their gradients are."""
    width = config.get("hidden_size") or varied
    length = config.get("seq_len") or varied
    size = width // config["num_q_heads"]
    counts = (config["num_q_heads"], config["num_kv_heads"])
    made = [random(1, length, n, size, dtype=dtype_of(config)) for n in counts]
    if is_transposed:
        made = [x.transpose(1, 2) for x in made]
    return (*made, *(torch.randn_like(x) for x in made))


def angles(places: Tensor, size: int) -> Tensor:
    """Of each position (1, length), for half of a head: (1, length, size / 2)."""
    powers = torch.arange(0, size, 2, device="cuda").float() / size
    rates = (1.0 / 10000.0**powers)[None, :, None]
    return (rates @ places[:, None, :].float()).transpose(1, 2)


def of_rotation(
    turn: Callable[[], tuple[Tensor, ...]],
    q: Tensor,
    k: Tensor,
    gradients: list[Tensor],
) -> Case:
    def backward(outputs: tuple[Tensor, ...]) -> None:
        torch.autograd.grad(outputs, (q, k), gradients, retain_graph=True)

    return Case(turn, backward)


def rope(varied: int, config: Config) -> Case:
    """`apply_rotary_pos_emb` of Llama in transformers, on q and k."""
    q, k, *gradients = heads(varied, config, is_transposed=True)
    places = torch.arange(q.shape[2], device="cuda")[None, :]
    both = angles(places, q.shape[3]).repeat(1, 1, 2)
    cos, sin = both.cos().to(q.dtype), both.sin().to(q.dtype)
    del both

    def turn() -> tuple[Tensor, ...]:
        c, s = cos.unsqueeze(1), sin.unsqueeze(1)
        return tuple(x * c + _half_turned(x) * s for x in (q, k))

    return keeping(places, of_rotation(turn, q, k, gradients))


def _half_turned(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    first = x[..., :half]  # backward goes the other way round, which its peak shows
    second = x[..., half:]
    return torch.cat((-second, first), dim=-1)


def llama4_rope(varied: int, config: Config) -> Case:
    """`apply_rotary_emb` of Llama 4 in transformers, on q and k."""
    q, k, *gradients = heads(varied, config, is_transposed=False)
    places = torch.arange(q.shape[1], device="cuda")[None, :]
    turns = angles(places, q.shape[3])
    turns = torch.polar(torch.ones_like(turns), turns) * 1.0

    def turn() -> tuple[Tensor, ...]:
        pairs = [_as_complex(x) for x in (q, k)]
        turned = [
            torch.view_as_real(x * turns[:, :, None, :]).flatten(3) for x in pairs
        ]
        return tuple(y.type_as(x) for y, x in zip(turned, (q, k), strict=True))

    return keeping(places, of_rotation(turn, q, k, gradients))


def _as_complex(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))


BY_NAME: dict[str, Callable[[int, Config], Case]] = {
    "cross_entropy": cross_entropy,
    "embedding": embedding,
    "fused_add_rms_norm": fused_add_rms_norm,
    "fused_linear_cross_entropy": fused_linear_cross_entropy,
    "fused_linear_jsd": fused_linear_jsd,
    "geglu": mlp,
    "group_norm": group_norm,
    "jsd": jsd,
    "kl_div": kl_div,
    "layer_norm": layer_norm,
    "llama4_rope": llama4_rope,
    "megatron_rms_norm": megatron_rms_norm,
    "megatron_swiglu": megatron_swiglu,
    "relu_squared": relu_squared,
    "rms_norm": rms_norm,
    "rope": rope,
    "softmax": softmax,
    "sparsemax": sparsemax,
    "swiglu": mlp,
    "tiled_geglu": mlp,
    "tiled_swiglu": mlp,
    "tvd": tvd,
}
