"""How far each kind of figure may be off, and why some rows are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bar:
    """What is asked of a kind of figure, in percent of what was published.

    Attributes:
        median: At most, of the differences' amounts.
        worst: At most, of those without a note.
    """

    median: float
    worst: float


BARS = {
    "kernel memory": Bar(0.005, 0.1),
    "program memory": Bar(0.005, 0.1),
    "training memory": Bar(1.0, 5.0),
    "reserved memory": Bar(3.0, 10.0),
    "cluster memory": Bar(1.0, 4.0),
    "training time": Bar(15.0, 50.0),
}
# What the process that was measured held besides, and no run of a row can know.
BESIDE_COMPILED = "kernel memory beside torch.compile"
TIME = "kernel time"
# What is asked of times, on the half of the rows that the clock is not fitted to.
TIME_MEDIAN, TIME_NEAR, TIME_IN_ORDER = 0.15, 0.9, 0.95
OF_OLDER_KERNELS = "kernel time of older kernels"
_BLOCK = (
    "2 MiB more in both figures of the program. The other programs of the book are "
    "equal to the byte; versions and card are not named, and the reason is not known."
)
_LOGITS = (
    "8 x 192.5 MiB of the difference are as much as the logits in bf16: one copy more "
    "seems to have been alive than the model's own code shows. Which part of the "
    "trainer held it is not known. With batch 4 the peak is in the optimizer's step, "
    "and is equal."
)
_RING = (
    "With context parallelism the simulation has less, most of all with 4 parts. What "
    "is reserved then depends on how long the ring's messages keep blocks from being "
    "used again, and so on a network that is only estimated. That this is the reason "
    "is a guess."
)
_CHUNK = (
    "Forward alone ends at what was published. The simulated peak comes a moment "
    "later: backward makes the gradient of the first chunk of logits, 250.5 MiB, and "
    "what is beside it, while all chunks are there. What PyTorch did otherwise then is "
    "not known. The row of LoRA has the same difference in MiB."
)
_EIGHT_BITS = (
    "1,503 MiB of the difference are as much as the embedding in fp32. Which package's "
    "AdamW8bit was measured is not said; simulated is torchao's."
)
_TENSOR_PARALLEL = (
    "6.5 GiB less than published. With asynchronous tensor parallelism, which gathers "
    "no activations as a whole, the same training is equal to what was published: so "
    "gathered ones, of 2 GiB each in bf16, seem to have been kept longer by the "
    "compiler of then. That this is the reason is a guess."
)
NOTES: dict[tuple[str, str], str] = {  # by the kind and the beginning of the name
    ("program memory", "linear layers"): _BLOCK,
    ("training memory", "santacoder full batch 8, peak"): _LOGITS,
    ("training memory", "torchtune, Llama 3.2 3B, QLoRA"): _CHUNK,
    ("training memory", "torchtune, Llama 3.2 3B, 8-bit AdamW"): _EIGHT_BITS,
    ("reserved memory", "santacoder full batch 8"): _LOGITS,
    ("cluster memory", "Llama 3.1 8B, 131072 tokens"): _RING,
    ("cluster memory", "Llama 3.1 70B, FSDP"): _TENSOR_PARALLEL,
}
