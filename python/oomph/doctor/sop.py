"""The standard procedure after an out-of-memory error, as a checklist.

Its steps are those that articles on the error agree on: start clean, run small, grow,
then mixed precision, checkpointing, more devices; at the end, what a repair must show.
Each step says what this machine and the log show of it, and what to do.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oomph import _C
from oomph.base.sizes import format_size
from oomph.diagnosis import processes
from oomph.doctor.finder import Search
from oomph.doctor.parse import FORMS
from oomph.settings import VARIABLE
from oomph.setup import versions

_MARKS = {True: "x", False: " ", None: "?"}
_VARIABLES = (
    *("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"),
    *(VARIABLE, "PYTORCH_NO_CUDA_MEMORY_CACHING", "CUDA_VISIBLE_DEVICES"),
    *("CUDA_LAUNCH_BLOCKING", "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"),
)
_UNKNOWN_BYTES = 1 << 63  # the library says so in place of a size
# What a log may mention: its name among the traces, the step, and how to do it.
_TECHNIQUES = (
    (
        "accumulation",
        "   gradient accumulation in place of a large batch",
        "divide the loss by the number of parts, and step after the last",
    ),
    (
        "amp",
        "4. mixed precision",
        "with torch.autocast('cuda', torch.bfloat16): around forward and loss; "
        "parameters stay 32-bit",
    ),
    (
        "checkpointing",
        "5. checkpointing, or a smaller model",
        "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) for the "
        "largest blocks: about a third more time; oomph's recompute:auto chooses them",
    ),
    (
        "sharding",
        "6. more devices: FSDP or ZeRO; DDP alone saves nothing per device",
        "fully_shard(model), or DeepSpeed's ZeRO; or host memory: oomph run train.py",
    ),
)


@dataclass(frozen=True)
class Step:
    """One step of the procedure.

    Attributes:
        part: Which part of it.
        title: What is to be so.
        done: Whether it is; None: that cannot be seen from here.
        seen: What was seen.
        do: What to do if it is not, or to find out.
    """

    part: str
    title: str
    done: bool | None
    seen: str
    do: str


def steps(found: Search | None) -> list[Step]:
    """The procedure, as far as this machine and a log show it.

    Imports no PyTorch, and asks the driver what GPUs are without using one.

    Args:
        found: What a log says; None: there is no log.
    """
    if _is_of_host(found):
        return [*_machine(), *_host_procedure(found), _accepted(found)[0]]
    return [*_machine(), *_procedure(found), *_code(), *_operation(), *_accepted(found)]


def text(of: list[Step]) -> str:
    """The checklist for people."""
    lines = []
    part = ""
    for step in of:
        if step.part != part:
            lines += ["", step.part] if part else [step.part]
            part = step.part
        seen = f": {step.seen}" if step.seen else ""
        lines.append(f"  [{_MARKS[step.done]}] {step.title}{seen}")
        if step.do and not step.done:
            lines.append(f"      {step.do}")
    lines += ["", "[x] it is so; [ ] it is not; [?] cannot be seen from here"]
    return "\n".join(lines)


def data(of: list[Step]) -> list[dict[str, Any]]:
    """The checklist as data."""
    return [dataclasses.asdict(step) for step in of]


# ---- What the machine shows


def _machine() -> list[Step]:
    part = "This machine"
    torch, driver = versions.torch_version(), versions.driver_version()
    cuda = _cuda_of_torch()
    given = [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
    return [
        Step(
            part,
            "PyTorch with CUDA is installed",
            bool(cuda) if cuda is not None or torch == "not installed" else None,
            torch + (f", for CUDA {cuda}" if cuda else ""),
            "install the build for CUDA",
        ),
        Step(
            part,
            "NVIDIA's driver",
            driver.startswith("CUDA"),
            "not found" if driver == "none" else driver,
            "install NVIDIA's driver, or try on a simulated card: oomph run --simulate "
            "12GiB train.py",
        ),
        *_own_memory(part),
        Step(
            part,
            "settings of the allocators",
            True if given else None,
            ", ".join(map(shlex.quote, given)) or "none in this environment",
            "the program's own environment may differ",
        ),
    ]


def _own_memory(part: str) -> list[Step]:
    """Whether each GPU has memory of its own, or else offload frees nothing."""
    title = "GPUs have memory of their own"
    do = (
        "OOMPH_CONF=recompute:always makes room by running calls again; "
        "offload:on-oom offloads all the same"
    )
    count = versions.gpu_count()
    try:
        shared = [gpu for gpu in range(count) if _C.shares_memory(gpu)]
    except RuntimeError as error:
        return [Step(part, title, None, f"not known ({error})", do)]
    if not count:
        return []
    seen = ", ".join(f"GPU {gpu}" for gpu in shared)
    if shared:
        use = "uses" if len(shared) == 1 else "use"
        seen += f" {use} the CPU's, so oomph offloads nothing there by default"
    return [Step(part, title, not shared, seen, do)]


def _cuda_of_torch() -> str | None:
    """The CUDA that PyTorch is built for, from its files; "": none; None: not known."""
    found = importlib.util.find_spec("torch")  # this does not import it
    if found is None or found.origin is None:
        return None
    try:
        text = (Path(found.origin).parent / "version.py").read_text()
    except (OSError, UnicodeError):
        return None
    said = re.search(r"^cuda\b[^=]*= *['\"]?([\w.]+)", text, re.MULTILINE)
    return said[1].replace("None", "") if said else None


def _start_clean() -> Step:
    listed = processes.on_all_gpus()
    title = "1. the GPU is clean: no process of an earlier run is left"
    do = "restart the kernel or container; nvidia-smi lists processes: end your own"
    if listed is None:
        why = "NVIDIA's library is missing or too old"
        return Step("Procedure", title, None, why, do)
    held = [
        f"GPU {gpu}: {process} ({_size(size)})"
        for gpu, known in enumerate(listed)
        for process, size in known.items()
        if process != os.getpid()
    ]
    seen = ", ".join(held[:8]) or f"no process on {len(listed)} GPUs"
    return Step("Procedure", title, not held, seen, do)


def _size(size_bytes: int) -> str:
    return "size not known" if size_bytes >= _UNKNOWN_BYTES else format_size(size_bytes)


# ---- What the log shows


def _is_of_host(found: Search | None) -> bool:
    """Whether it is host memory alone that is gone."""
    memories = {FORMS[s.found.form].memory for s in found.errors} if found else set()
    return memories == {"host"}


def _host_procedure(found: Search | None) -> list[Step]:
    """What to do where no GPU's memory is gone."""
    part = "Procedure for host memory"
    return [
        Step(part, "1. host memory is what ran out", True, _errors(found), ""),
        *_by_hand(
            part,
            (
                "2. who held it is known",
                "dmesg | grep -i oom; free -h; of a job: sacct -o MaxRSS, docker stats",
            ),
            (
                "3. a minimal run with num_workers=0 ends well",
                "each worker copies what it touches of the dataset: keep data in "
                "arrays or files, not in lists of Python objects",
            ),
            (
                "4. no rank loads checkpoints or data as a whole",
                "torch.load(path, mmap=True); np.load(path, mmap_mode='r'); streaming",
            ),
            (
                "5. limits are those of the machine",
                "--mem of slurm, --memory and --shm-size of docker, a pod's limits; "
                "host_limit of oomph",
            ),
            (
                "6. host memory does not grow from epoch to epoch",
                "print psutil.Process().memory_info().rss after each",
            ),
        ),
    ]


def _procedure(found: Search | None) -> list[Step]:
    part = "Procedure"
    batch = _batch(found)
    return [
        _start_clean(),
        Step(
            part,
            "2. a minimal run with a small batch ends well",
            None,
            _errors(found),
            "run a few steps with batch 1; without a GPU: oomph run --simulate 12GiB "
            "train.py",
        ),
        Step(
            part,
            "3. the batch grows step by step, with the memory in view",
            _trace(found, "summary"),
            f"the log names batch {batch}" if batch else "",
            "double it until it fails, and print torch.cuda.memory_summary() or "
            "oomph.stats(); accelerate's find_executable_batch_size does it for you",
        ),
        *(
            Step(part, title, _trace(found, name), _mentioned(found, name), do)
            for name, title, do in _TECHNIQUES
        ),
    ]


def _trace(found: Search | None, name: str) -> bool | None:
    """Whether a log shows a technique in use; that it does not, shows nothing."""
    return True if found is not None and name in found.traces.seen else None


def _mentioned(found: Search | None, name: str) -> str:
    return "the log mentions it" if _trace(found, name) else ""


def _batch(found: Search | None) -> str:
    known = found.traces.sizes.get("batch", {}) if found else {}
    return ", ".join(f"{size} ({name})" for size, name in known.items())


def _errors(found: Search | None) -> str:
    if found is None:
        return ""
    count = sum(s.count for s in found.errors if s.found.form != "warning")
    if not count:
        return "the log has no out-of-memory error"
    errors = "error" if count == 1 else "errors"
    return f"the log has {count} out-of-memory {errors}; oomph doctor explains them"


# ---- What only the code and its users know


def _by_hand(part: str, *rows: tuple[str, str]) -> list[Step]:
    """Steps that nothing here can check: what is to be so, and how to see to it."""
    return [Step(part, title, None, "", do) for title, do in rows]


def _code() -> list[Step]:
    return _by_hand(
        "In the code",
        (
            "no tensor with a graph is kept: losses, outputs in lists",
            "append loss.item(), or out.detach().cpu(); OOMPH_CONF=leaks:count names "
            "the line",
        ),
        (
            "gradients are reset in each step, and evaluation is without them",
            "optimizer.zero_grad(); with torch.no_grad(): and model.eval()",
        ),
        (
            "a check says when a change breaks it",
            "the pytest plugin: limit_cuda_memory('20 GiB'), no_cuda_oom",
        ),
    )


def _operation() -> list[Step]:
    return _by_hand(
        "In operation",
        (
            "memory of each GPU is recorded, and who used it",
            "oomph run --stats stats.json; nvidia-smi -l 60; an exporter with alerts",
        ),
        (
            "inference: smaller weights, and the peak measured under load",
            "quantize, or an optimized runtime (TensorRT, ONNX Runtime)",
        ),
    )


def _accepted(found: Search | None) -> list[Step]:
    part = "Accepted when"
    fatal = found is not None and any(s.found.form != "warning" for s in found.errors)
    epoch = found is not None and "epoch" in found.traces.seen
    seen = _errors(found) + ("; it mentions epochs" if epoch and not fatal else "")
    return [
        Step(
            part,
            "one epoch ends without an out-of-memory error",
            False if fatal else None,
            seen,
            "train one whole epoch with the chosen batch, the longest inputs first",
        ),
        *_by_hand(
            part,
            (
                "the peak is the same in each epoch",
                "torch.cuda.max_memory_allocated() after each, then "
                "reset_peak_memory_stats(); in a test: stable_cuda_peak",
            ),
            (
                "the metric is not noticeably worse than before",
                "compare with the run before the change; in a test: no_worse_metric",
            ),
        ),
    ]
