"""``oomph doctor``: every form of the error, in every disguise, explained rightly."""

import dataclasses
import io
import json
import random
import re
import subprocess
import sys
import textwrap

import pytest
from oomph.doctor import finder, lines, report
from oomph.doctor.verdict import account
from support import GIB, MIB, oomph, run

SEED_B = (
    "RuntimeError: CUDA out of memory. Tried to allocate 2.34 GiB (GPU 0; 24.00 GiB "
    "total capacity; 18.21 GiB already allocated; 0 bytes free; 20.12 GiB reserved in "
    "total by PyTorch)"
)
HINT = (
    " If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See "
    "documentation for Memory Management  "
    "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
SEED_C = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.14 GiB. GPU 0 has "
    "a total capacity of 11.69 GiB of which 2.68 GiB is free. Including non-PyTorch "
    "memory, this process has 7.04 GiB memory in use. Of the allocated memory 6.78 GiB "
    "is allocated by PyTorch, and 224.90 MiB is reserved by PyTorch but unallocated."
) + HINT
NANOGPT = f"""\
Overriding config with config/train_gpt2.py:
batch_size = 64
block_size = 1024
defaulting to vocab_size of GPT-2 to 50304 (50257 rounded up for efficiency)
Traceback (most recent call last):
  File "/home/u/nanoGPT/train.py", line 264, in <module>
    losses = estimate_loss()
  File "/usr/lib/python3/dist-packages/torch/utils/_contextlib.py", line 116, in decorate_context
    return func(*args, **kwargs)
  File "/home/u/nanoGPT/train.py", line 224, in estimate_loss
    logits, loss = model(X, Y)
{SEED_C}
"""  # noqa: E501
# Of each form: its text as PyTorch writes it, and the amounts that it gives.
FORMS = {
    "0.4.1": (
        "RuntimeError: CUDA out of memory. Tried to allocate 98.00 MiB (GPU 1; 10.92 "
        "GiB total capacity; 9.71 GiB already allocated; 44.50 MiB free; 412.31 MiB "
        "cached)",
        {
            **{"requested": "98.00 MiB", "total": "10.92 GiB", "free": "44.50 MiB"},
            **{"allocated": "9.71 GiB", "unallocated": "412.31 MiB"},
        },
    ),
    "1.4": (
        SEED_B,
        {
            **{"requested": "2.34 GiB", "total": "24.00 GiB", "free": "0 bytes"},
            **{"allocated": "18.21 GiB", "reserved": "20.12 GiB"},
        },
    ),
    "1.10": (
        "RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 15.78 "
        "GiB total capacity; 7.02 GiB already allocated; 8.31 GiB free; 7.50 GiB "
        "allowed; 7.40 GiB reserved in total by PyTorch) If reserved memory is >> "
        "allocated memory try setting max_split_size_mb to avoid fragmentation.  See "
        "documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF",
        {
            **{"requested": "512.00 MiB", "total": "15.78 GiB", "free": "8.31 GiB"},
            **{"allocated": "7.02 GiB", "allowed": "7.50 GiB", "reserved": "7.40 GiB"},
        },
    ),
    "2.1": (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. "
        "GPU 3 has a total capacty of 23.69 GiB of which 15.31 MiB is free. Process "
        "4711 has 23.66 GiB memory in use. Of the allocated memory 23.02 GiB is "
        "allocated by PyTorch, and 97.20 MiB is reserved by PyTorch but unallocated. "
        "If reserved but unallocated memory is large try setting max_split_size_mb to "
        "avoid fragmentation.  See documentation for Memory Management and "
        "PYTORCH_CUDA_ALLOC_CONF",
        {
            **{"requested": "20.00 MiB", "total": "23.69 GiB", "free": "15.31 MiB"},
            **{"allocated": "23.02 GiB", "unallocated": "97.20 MiB"},
        },
    ),
    "2.6": (
        SEED_C,
        {
            **{"requested": "6.14 GiB", "total": "11.69 GiB", "free": "2.68 GiB"},
            **{"this_process": "7.04 GiB", "allocated": "6.78 GiB"},
            "unallocated": "224.90 MiB",
        },
    ),
    "2.10": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 "
        "has a total capacity of 79.19 GiB of which 1.02 GiB is free. Including "
        "non-PyTorch memory, this process has 61.40 GiB memory in use. Process 71 has "
        "9.63 GiB memory in use. Process 82 has 7.13 GiB memory in use. 70.00 GiB "
        "allowed; Of the allocated memory 58.11 GiB is allocated by PyTorch, with 3.25 "
        "GiB allocated in private pools (e.g., CUDA Graphs), and 2.40 GiB is reserved "
        "by PyTorch but unallocated." + HINT,
        {
            **{"requested": "1.50 GiB", "total": "79.19 GiB", "free": "1.02 GiB"},
            **{"this_process": "61.40 GiB", "allowed": "70.00 GiB"},
            **{"allocated": "58.11 GiB", "private": "3.25 GiB"},
            "unallocated": "2.40 GiB",
        },
    ),
    "HIP": (
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.25 GiB. GPU 0 "
        "has a total capacity of 15.98 GiB of which 1.13 GiB is free. Of the allocated "
        "memory 13.90 GiB is allocated by PyTorch, and 511.87 MiB is reserved by "
        "PyTorch but unallocated. If reserved but unallocated memory is large try "
        "setting PYTORCH_HIP_ALLOC_CONF=expandable_segments:True to avoid "
        "fragmentation.",
        {
            **{"requested": "2.25 GiB", "total": "15.98 GiB", "free": "1.13 GiB"},
            **{"allocated": "13.90 GiB", "unallocated": "511.87 MiB"},
        },
    ),
    "XPU": (
        "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 8.00 GiB. GPU 0 "
        "has a total capacity of 15.11 GiB. Of the allocated memory 9.25 GiB is "
        "allocated by PyTorch, and 39.26 MiB is reserved by PyTorch but unallocated. "
        "Please use `empty_cache` to release all unoccupied cached memory.",
        {
            **{"requested": "8.00 GiB", "total": "15.11 GiB", "allocated": "9.25 GiB"},
            "unallocated": "39.26 MiB",
        },
    ),
    "cudaMallocAsync": (
        "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. "
        "(out of memory)\nCurrently allocated     : 14.93 GiB\nRequested               "
        ": 360.00 MiB\nDevice limit            : 15.99 GiB\nFree (according to CUDA): "
        "12.50 MiB\nPyTorch limit (set by user-supplied memory fraction)\n"
        "                        : 17179869184.00 GiB",
        {
            **{"requested": "360.00 MiB", "total": "15.99 GiB", "free": "12.50 MiB"},
            **{"allocated": "14.93 GiB", "allowed": None},
        },
    ),
    "oomph": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.54 GiB. GPU 0 "
        "has a total capacity of 9.00 GiB (a limit that oomph was given) of which 1.03 "
        "GiB is free. Of the allocated memory 7.41 GiB is allocated by PyTorch, and "
        "61.92 MiB is reserved by PyTorch but unallocated. 512.00 MiB of it is on the "
        "host. oomph: no room for 1.54 GiB: offload is off.",
        {
            **{"requested": "1.54 GiB", "total": "9.00 GiB", "free": "1.03 GiB"},
            **{"allocated": "7.41 GiB", "unallocated": "61.92 MiB"},
            "host": "512.00 MiB",
        },
    ),
    "2.13's warning": (
        "[rank1]:[W812 16:00:28.643448608 CUDACachingAllocator.cpp:3933] memory "
        "allocation failed with OOM on device 1 while trying to allocate 536870912 "
        "bytes (free: 104857600, total: 25757220864).",
        {"requested": "512.00 MiB", "free": "100.00 MiB", "total": "23.99 GiB"},
    ),
    "host memory": (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. "
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate "
        "137438953472 bytes. Error code 12 (Cannot allocate memory)",
        {"requested": "128.00 GiB"},
    ),
}
WITHOUT_NUMBERS = {
    "CUDA": "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be",
    "THC": "RuntimeError: cuda runtime error (2) : out of memory at /p/THCStorage.cu",
    "cuBLAS": "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling "
    "`cublasCreate(handle)`",
    "cuDNN": "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may "
    "appear if you passed in a non-contiguous input.",
    "pluggable": "std::bad_alloc: out_of_memory: CUDA error at: /i/rmm/mr.hpp:60: "
    "cudaErrorMemoryAllocation out of memory",
    "driver": "RuntimeError: CUDA driver error: out of memory",
    "bare": "RuntimeError: CUDA out of memory.",
}


def wrapped(text: str, width: int) -> str:
    """As a terminal breaks lines, in the midst of words and numbers."""
    lines = text.split("\n")
    parts = [
        line[i : i + width] for line in lines for i in range(0, len(line) or 1, width)
    ]
    return "\n".join(parts)


def each_line(before: str, after: str = "", width: int = 1000):
    def disguise(text: str) -> bytes:
        lines = wrapped(text, width).split("\n")
        return "\n".join(f"{before}{line}{after}" for line in lines).encode()

    return disguise


DISGUISES = {
    "none": str.encode,
    "rank": each_line("[rank0]: "),
    "torchrun": each_line("[default0]:"),
    "vLLM": each_line("(EngineCore_DP0 pid=4711) ERROR 11-04 10:00:01 [core.py:708] "),
    "time": each_line("2026-11-25 15:56:08,123 ERROR "),
    "CI": each_line("2026-11-25T15:56:08.1234567Z "),
    "compose": each_line("trainer-1  | "),
    "pytest": each_line("E   "),
    "quote": each_line("> ", width=60),
    "quote of quotes": each_line("> > ", width=70),
    "comment": each_line("# ", width=50),
    "box": each_line("│ ", "          │", width=70),
    "rank, wrapped": each_line("[rank3]: │ ", " │", width=40),
    "colours": lambda t: re.sub(r"(\d+)", "\x1b[1;31m\\1\x1b[0m", t).encode(),
    "colours, lost": lambda t: f"[31m{t}[0m".encode(),
    "JSON": lambda t: json.dumps({"level": "error", "message": t}).encode(),
    "JSON twice": lambda t: json.dumps(json.dumps({"m": t})).encode(),
    "carriage returns": lambda t: t.replace("\n", "\r\n").encode(),
    "progress bar": lambda t: f"  3%|▎  | 3/99 [00:01<00:30]\r{t}".encode(),
    "UTF-16": lambda t: t.encode("utf-16"),
    "UTF-16 without a mark": lambda t: t.encode("utf-16-le"),
    "UTF-16, the other": lambda t: b"\xfe\xff" + t.encode("utf-16-be"),
    "UTF-8 with a mark": lambda t: t.encode("utf-8-sig"),
    "code": lambda t: f"```\n{t}\n```".encode(),
    "bold": lambda t: t.replace("2.", "**2.**").encode(),
    "no break spaces": lambda t: t.replace(" ", "\u00a0").encode(),
}


def found_in(log: bytes | str) -> list[dict]:
    """The errors of a log, as --json gives them."""
    file = io.BytesIO(log.encode() if isinstance(log, str) else log)
    search = finder.search(file)
    for line in report.text(search, report.in_log("log")).split("\n\n"):
        assert len(line.split("\n")) <= 12
    return report.data(search, "log", report.in_log("log"))["errors"]


def only(log: bytes | str) -> dict:
    (error,) = found_in(log)
    return error


def texts(error: dict) -> dict[str, str | None]:
    return {k: v and v["text"] for k, v in error["amounts"].items()}


def said_of(log: str) -> str:
    found = finder.search(io.BytesIO(log.encode()))
    return report.text(found, report.in_log("log"))


# ---- Forms and disguises


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("disguise", DISGUISES)
def test_every_number_of_a_form_is_read_in_every_disguise(form, disguise):
    text, amounts = FORMS[form]
    assert texts(only(DISGUISES[disguise](text))) == amounts


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("width", [7, 11, 20, 33, 80])
def test_lines_may_be_broken_anywhere(form, width):
    text, amounts = FORMS[form]
    assert texts(only(wrapped(text, width))) == amounts


@pytest.mark.parametrize("form", WITHOUT_NUMBERS)
def test_an_error_without_numbers_is_explained_and_says_so(form):
    error = only(f"Epoch 1\n{WITHOUT_NUMBERS[form]}\nEpoch 2")
    assert (error["line"], error["amounts"]) == (2, {})
    assert error["helps"] and error["not_known"]


def test_a_text_that_was_cut_and_disguised_is_never_read_wrongly():
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    choose = random.Random(seed)
    for _ in range(300):
        text, amounts = choose.choice(list(FORMS.values()))
        begin = choose.choice([0, choose.randrange(len(text))])
        cut = text[begin : choose.choice([len(text), choose.randrange(len(text))])]
        log = DISGUISES[choose.choice(list(DISGUISES))](cut)
        for error in found_in(log):
            if error["form"] in ("pytorch", "async"):
                read = texts(error)
                wrong = {k: v for k, v in read.items() if amounts.get(k) != v}
                assert wrong == {}, cut


def test_damaged_input_is_no_error_of_the_doctor():
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    choose = random.Random(seed)
    whole = "\n".join(text for text, _ in FORMS.values()).encode()
    for _ in range(200):
        damaged = bytearray(whole)
        for _ in range(choose.randrange(1, 400)):
            damaged[choose.randrange(len(damaged))] = choose.randrange(256)
        found_in(bytes(damaged))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "a RuntimeError: CUDA out of memory occurs when the GPU is full",
        "If out-of-memory error occurs during cudagraph capture, consider decreasing",
        'raise RuntimeError("CUDA out of memory. Tried to allocate {}")',
        "except torch.cuda.OutOfMemoryError: torch.cuda.empty_cache()",
        'CUDA out of memory. Tried to allocate ", format_size(alloc_size), " (GPU "',
    ],
)
def test_words_about_errors_are_no_errors(text):
    assert found_in(text) == []


# ---- What follows


def test_fragmentation_is_not_the_cause_where_all_that_is_cached_is_too_little():
    error = only(SEED_B)
    sums = error["account"]
    assert sums["fragmentation_possible"] is False
    assert sums["cached"]["text"] == "1.91 GiB"
    assert sums["missing_defragmented"]["text"] == "0.43 GiB"
    assert sums["outside"]["text"] == "3.88 GiB"
    assert error["cannot_help"][0] == {
        "action": "expandable_segments, max_split_size_mb",
        "why": "fragmentation is not the cause: 2.34 GiB is missing, they could free "
        "at most 1.91 GiB, and 0.43 GiB would still be missing",
    }
    assert "nvidia-smi" in error["helps"][0]["action"]


def test_of_the_logits_of_nanogpt_all_is_reported():
    error = only(NANOGPT)
    sums = error["account"]
    assert sums["missing"]["text"] == "3.46 GiB"
    assert sums["reserved"]["text"] == "7.00 GiB"
    assert sums["unlisted"]["text"] == "1.97 GiB"
    assert "could free at most 224.90 MiB" in error["cannot_help"][0]["why"]
    assert error["shapes"] == [
        "16-bit 64 x 1024 x 50304 (batch_size x block_size x vocab_size)"
    ]
    assert (error["where"], error["phase"]) == (
        "/home/u/nanoGPT/train.py:224 (estimate_loss)",
        "evaluation",
    )
    assert error["helps"][0]["action"] == "batch_size 64 -> 27 or less"
    assert "6.14 GiB, 2.68 GiB of 11.69 GiB are free: 3.46 GiB missing" in said_of(
        NANOGPT
    )


def test_another_batch_does_not_fit_the_request():
    assert only(NANOGPT.replace("batch_size = 64", "batch_size = 63"))["shapes"] == []


def test_a_shape_of_a_small_request_is_not_guessed():
    log = f"batch_size = 4\nseq_len = 512\nhidden_size = 768\n{FORMS['2.1'][0]}"
    assert only(log)["shapes"] == []


def test_a_shape_that_the_log_shows_is_recognized():
    log = f"got a tensor of torch.Size([65536, 50304])\n{SEED_C}"
    assert only(log)["shapes"] == ["16-bit 65536 x 50304, a shape that the log shows"]


def test_old_cached_is_what_is_in_no_tensor_and_new_reserved_is_all():
    assert only(FORMS["0.4.1"][0])["account"]["cached"]["text"] == "412.31 MiB"
    assert only(SEED_B)["account"]["cached"]["text"] == "1.91 GiB"


def test_amounts_are_known_as_far_as_the_text_was_rounded():
    requested = only(SEED_B)["amounts"]["requested"]
    assert requested["at_least_bytes"] == -(-2335 * GIB // 1000)
    assert requested["at_most_bytes"] == 2345 * GIB // 1000
    exact = only(FORMS["host memory"][0])["amounts"]["requested"]
    assert exact["at_least_bytes"] == exact["at_most_bytes"] == 128 * GIB


def test_fragmentation_can_be_the_cause_where_enough_is_cached():
    error = only(SEED_B.replace("18.21", "12.21"))
    assert error["account"]["fragmentation_possible"] is True
    assert "expandable_segments:True" in error["helps"][0]["action"]
    assert "of 7.91 GiB in pieces, 2.34 GiB is needed" in error["helps"][0]["why"]


def test_expandable_segments_are_not_advised_where_they_are_on():
    log = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py\n" + (
        SEED_B.replace("18.21", "12.21")
    )
    error = only(log)
    assert not any("expandable" in advice["action"] for advice in error["helps"])
    assert error["cannot_help"][0]["action"] == "expandable_segments"


def test_the_advice_in_the_error_is_not_taken_for_a_setting():
    log = SEED_C.replace("224.90 MiB", "4.20 GiB")
    assert any("expandable" in a["action"] for a in only(log)["helps"])


def test_empty_cache_cannot_help_as_pytorch_did_it_already():
    for form in ("0.4.1", "1.4", "2.1", "2.6"):
        refused = [advice["action"] for advice in only(FORMS[form][0])["cannot_help"]]
        assert "torch.cuda.empty_cache()" in refused


def test_a_limit_that_refuses_is_reported_and_not_the_device():
    error = only(FORMS["1.10"][0])
    assert error["account"]["limit_decides"] is True
    assert error["account"]["missing"]["text"] == "0.40 GiB"
    assert error["helps"][0]["action"] == "raise the limit of this process"


def test_other_processes_are_named_and_this_one_is_not_among_them():
    text = FORMS["2.10"][0].replace("70.00 GiB allowed; ", "")
    error = only(text)
    assert set(error["processes"]) == {"71", "82"}
    assert error["account"]["own_outside"]["text"] == "0.89 GiB"
    assert "process 71 (9.63 GiB), 82 (7.13 GiB)" in error["helps"][0]["action"]


def test_in_a_container_the_only_process_with_enough_is_this_one():
    error = only(FORMS["2.1"][0])
    assert error["account"]["likely_self"] == 4711
    assert not any("end or move" in advice["action"] for advice in error["helps"])


def test_which_of_two_large_processes_is_this_one_is_not_guessed():
    text = FORMS["2.1"][0].replace(
        "Of the", "Process 9 has 24.00 GiB memory in use. Of the"
    )
    error = only(text)
    assert error["account"]["likely_self"] is None
    assert "which of the processes is this one" in " ".join(error["not_known"])


def test_a_size_that_wsl_does_not_know_is_not_calculated_with():
    text = SEED_C.replace("has 7.04 GiB", "has 17179869184.00 GiB")
    error = only(text)
    assert error["amounts"]["this_process"] is None
    assert error["account"]["own_outside"] is None
    assert error["account"]["outside"]["text"] == "2.01 GiB"


def test_more_reserved_than_there_is_lies_in_host_memory():
    error = only(SEED_B.replace("24.00 GiB total", "8.00 GiB total"))
    assert error["account"]["overcommitted"] is True
    assert "more than the device has" in said_of(error["text"])
    refused = [advice["action"] for advice in error["cannot_help"]]
    assert "ending other processes" not in refused  # what they have is not known


def test_the_size_of_a_small_tensor_is_reported_as_it_was_before_rounding():
    assert only(FORMS["2.1"][0])["asked_between_bytes"] == (MIB + 1, 20 * MIB)
    assert "for a tensor of 1 to 20 MiB" in said_of(FORMS["2.1"][0])


def test_a_request_that_no_device_could_serve_is_a_wrong_shape():
    error = only(SEED_B.replace("2.34 GiB", "130206.04 GiB"))
    assert "check the shape" in error["helps"][0]["action"]
    absurd = only(
        "RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory."
    )
    assert "correct the size" in absurd["helps"][0]["action"]


def test_host_memory_has_nothing_to_do_with_the_gpu():
    error = only(FORMS["host memory"][0])
    assert "this one tensor" in error["helps"][0]["action"]
    assert "GPU's settings" in error["cannot_help"][0]["action"]


def test_a_warning_is_not_fatal():
    error = only(FORMS["2.13's warning"][0])
    assert (error["fatal"], error["devices"], error["ranks"]) == (False, [1], [1])


def test_what_was_cut_off_is_said_not_to_be_known():
    error = only(
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.56 GiB..."
    )
    assert texts(error) == {"requested": "1.56 GiB"}
    assert "how much was free" in error["not_known"][0]


def test_sums_of_the_text_are_kept_apart_from_conclusions():
    (found,) = (s.found for s in finder.search(io.BytesIO(SEED_B.encode())).errors)
    assert dataclasses.asdict(found) == dataclasses.asdict(found) and account(found)


# ---- The PyTorch that is there

FILL = """
import torch
{limit}
kept = [torch.ones(100 << 20, dtype=torch.uint8, device="cuda") for _ in range(3)]
del kept[1]
print(torch.cuda.memory_allocated(), torch.cuda.memory_reserved())
torch.ones({asked} << 20, dtype=torch.uint8, device="cuda").backward()
"""


def test_an_error_of_this_pytorch_is_read_as_it_counts_itself():
    ran = run(FILL.format(limit="", asked=900), card="1GiB,context=0")
    amounts = only(ran.err)["amounts"]
    allocated, _ = map(int, ran.out.split())
    assert amounts["allocated"]["bytes"] == allocated == 200 * MIB
    assert amounts["requested"]["bytes"] == 900 * MIB
    assert amounts["total"]["bytes"] == GIB


def test_this_pytorch_gives_back_whole_free_blocks_before_it_raises():
    ran = run(FILL.format(limit="", asked=900), card="1GiB,context=0")
    _, reserved = map(int, ran.out.split())
    assert reserved == 300 * MIB
    assert only(ran.err)["account"]["reserved"]["bytes"] == 200 * MIB


def test_an_error_of_oomph_is_known_and_its_report_comes_first():
    ran = run(
        FILL.format(limit="", asked=900), card="1GiB,context=0", conf="offload:off"
    )
    error = only(ran.err)
    assert error["flags"] == ["oomph"]
    assert error["amounts"]["allocated"]["bytes"] == 200 * MIB
    assert "oomph's own report" in error["helps"][0]["action"]


def test_a_memory_fraction_of_this_pytorch_is_what_refuses():
    limit = "torch.cuda.set_per_process_memory_fraction(0.5)"
    ran = run(FILL.format(limit=limit, asked=400), card="1GiB,context=0")
    error = only(ran.err)
    assert error["amounts"]["allowed"]["bytes"] == 512 * MIB
    assert error["account"]["limit_decides"] is True


# ---- Where


TRACEBACK = """\
Traceback (most recent call last):
  File "/home/u/train.py", line 30, in <module>
    main()
  File "/home/u/train.py", line {line}, in main
    {code}
  File "/opt/conda/lib/python3.10/site-packages/torch/{file}", line 5, in {name}
    something(inside)
{error}
"""


@pytest.mark.parametrize(
    ("code", "file", "name", "phase"),
    [
        ("loss.backward()", "_tensor.py", "backward", "backward"),
        ("optimizer.step()", "optim/adam.py", "step", "the optimizer's step"),
        ("out = model(x)", "nn/modules/module.py", "_call_impl", "forward"),
        ("torch.load(path)", "serialization.py", "load", "loading"),
        ("o.load_state_dict(s)", "optim/optimizer.py", "load_state_dict", "loading"),
        ("x = torch.ones(n)", "_ops.py", "helper", ""),
    ],
)
def test_the_users_line_and_the_phase_come_from_the_traceback(code, file, name, phase):
    log = TRACEBACK.format(line=12, code=code, file=file, name=name, error=SEED_B)
    error = only(log)
    assert (error["where"], error["phase"]) == ("/home/u/train.py:12 (main)", phase)


def test_a_traceback_in_json_is_read():
    log = TRACEBACK.format(
        line=12,
        code="loss.backward()",
        file="_tensor.py",
        name="backward",
        error=SEED_B,
    )
    error = only(json.dumps({"message": log}))
    assert (error["where"], error["phase"]) == (
        "/home/u/train.py:12 (main)",
        "backward",
    )


def test_a_traceback_of_a_notebook_is_read():
    log = f"""\
/tmp/ipykernel_55/288753876.py in train(model)
      6     n_jobs=-1,
      7 )
----> 8 loss.backward()

/usr/lib/python3.11/site-packages/torch/_tensor.py in backward(self)
    522         torch.autograd.backward(
--> 523             self, gradient, retain_graph, create_graph, inputs=inputs

OutOfMemoryError: {SEED_B}"""
    error = only(log)
    assert error["where"] == "/tmp/ipykernel_55/288753876.py:8 (train)"
    assert error["phase"] == "backward"


def test_a_traceback_that_a_logger_writes_after_the_error_is_its_own():
    trace = TRACEBACK.format(
        line=12, code="loss.backward()", file="_tensor.py", name="backward", error="E"
    )
    error = only(f"2026-11-25 15:56:08,123 ERROR {SEED_B}\n{trace}")
    assert (error["where"], error["phase"]) == (
        "/home/u/train.py:12 (main)",
        "backward",
    )
    other = f"{SEED_B}\n\nDuring handling of the above exception:\n\n{trace}"
    assert only(other)["where"] == ""


def test_ranks_that_write_at_once_are_kept_apart():
    logs = [
        TRACEBACK.format(
            line=10 + rank, code="f(x)", file="x.py", name="g", error=SEED_B
        )
        for rank in range(2)
    ]
    lines = zip(*(log.splitlines() for log in logs), strict=True)
    mixed = "\n".join(
        f"[rank{r}]: {line}" for both in lines for r, line in enumerate(both)
    )
    assert [(e["ranks"], e["where"]) for e in found_in(mixed)] == [
        ([0], "/home/u/train.py:10 (main)"),
        ([1], "/home/u/train.py:11 (main)"),
    ]


# ---- Many errors, long logs


def test_the_same_error_is_reported_once_with_its_count_and_its_ranks():
    log = "\n".join(
        f"[rank{rank}]: {SEED_B.replace('GPU 0', f'GPU {rank}')}" for rank in range(8)
    )
    error = only(log * 2)
    assert (error["count"], error["line"], error["last_line"]) == (16, 1, 15)
    assert error["devices"] == error["ranks"] == list(range(8))
    assert "GPUs 0 to 7, ranks 0 to 7, 16 times" in said_of(log * 2)


def test_errors_are_found_wherever_the_pieces_of_a_long_log_end():
    step = b"step 1 | loss 2.31 | memory 12.34 GiB\n" * 500
    for shift in range(0, 4000, 997):
        filler = step * (1 + (1 << 20) // len(step))
        before = filler[: (1 << 20) - 2000 + shift]
        log = before + b"\n" + SEED_C.encode() + b"\n" + filler + SEED_B.encode()
        places = [error["line"] for error in found_in(log)]
        assert places == [before.count(b"\n") + 2, log.count(b"\n") + 1]


@pytest.mark.parametrize("piece_bytes", [101, 997, 4099])
@pytest.mark.parametrize("form", FORMS)
def test_an_error_that_lies_in_several_pieces_is_found_once(
    form, piece_bytes, monkeypatch
):
    monkeypatch.setattr(lines, "CHUNK_BYTES", piece_bytes)
    text, amounts = FORMS[form]
    filler = "step 1 | loss 2.31\n" * 800
    error = only(f"{filler}{wrapped(text, 20)}\n{filler}")
    assert (error["count"], texts(error)) == (1, amounts)
    assert 801 <= error["line"] <= 805  # where the words are, not the exception


def test_a_log_without_line_ends_is_read_too():
    log = b"x" * (3 << 20) + SEED_B.encode() + b"y" * (3 << 20)
    assert texts(only(log))["requested"] == "2.34 GiB"


@pytest.mark.long
def test_a_long_log_takes_little_memory():
    code = """
    import io, resource, sys
    from oomph.doctor import finder
    LINE = b"memory 12.34 GiB, out of memory soon\\n"
    class Log(io.RawIOBase):
        left = 16
        def read(self, size=-1):
            self.left -= 1
            return LINE * 28000 * (self.left > 0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert finder.search(Log()).line_count == 15 * 28000
    assert "torch" not in sys.modules
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    result = run(textwrap.dedent(code), anew=True)
    assert result.code == 0, result.err
    assert int(result.out) < 12_000  # KiB; the log has 15 MiB


# ---- The command


def doctor(*arguments, log: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Runs the command with a log on standard input."""
    command = [sys.executable, "-m", "oomph", "doctor", *map(str, arguments)]
    return subprocess.run(command, input=log, capture_output=True, timeout=60)


def test_a_file_is_explained(tmp_path):
    log = tmp_path / "train.log"
    log.write_text(f"Epoch 1\n{SEED_B}\n")
    result = oomph("doctor", log)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"{log}:2: CUDA out of memory, GPU 0\n")


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_standard_input_is_explained(arguments):
    result = doctor(*arguments, log=SEED_B.encode())
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout.startswith(b"standard input:1: CUDA out of memory")


def test_json_has_all(tmp_path):
    result = doctor("--json", log=SEED_B.encode())
    assert result.returncode == 0
    (error,) = json.loads(result.stdout)["errors"]
    assert error["amounts"]["requested"]["bytes"] == round(2.34 * GIB)


def test_without_an_error_the_code_is_1_and_it_is_said_what_was_looked_for():
    result = doctor(log=b"Epoch 1\nEpoch 2\n")
    assert result.returncode == 1
    assert b"no out-of-memory error in 2 lines. Looked for: errors of" in result.stdout


def test_what_cannot_be_read_is_said_without_a_traceback(tmp_path):
    packed = tmp_path / "log.gz"
    packed.write_bytes(b"\x1f\x8b\x08\x00")
    for path, why in [
        (tmp_path / "absent", "cannot be read: No such file"),
        (tmp_path, "cannot be read: Is a directory"),
        (packed, "is compressed; unpack it first, such as with zcat"),
    ]:
        result = oomph("doctor", path)
        assert (result.code, result.out) == (2, "")
        assert result.err.startswith(f"oomph: {path} {why}")


def test_a_wrong_option_is_a_usage_error():
    result = doctor("--colour")
    assert result.returncode == 2
    assert b"unrecognized arguments: --colour" in result.stderr


def test_a_reader_that_leaves_is_no_error():
    log = "\n".join(SEED_B.replace("2.34", f"2.{n:02}") for n in range(8))
    command = (
        f"{sys.executable} -m oomph doctor --json | head -c 10; exit ${{PIPESTATUS[0]}}"
    )
    result = subprocess.run(
        ["bash", "-c", command], input=log.encode(), capture_output=True, timeout=60
    )
    assert (result.returncode, result.stderr) == (0, b"")


def test_it_neither_loads_pytorch_nor_starts_cuda(tmp_path):
    log = tmp_path / "log"
    log.write_text(NANOGPT)
    result = run(
        f"""
        import sys
        from oomph import cli
        for words in (["doctor"], ["doctor", "--json"], ["doctor", "--sop"]):
            assert cli.main([*words, {str(log)!r}]) == 0
        assert not {{"torch", "numpy"}} & set(sys.modules)
        """,
        anew=True,
    )
    assert result.code == 0, result.err


# ---- The standard procedure


def test_the_procedure_is_ticked_as_far_as_machine_and_log_show_it(tmp_path):
    log = tmp_path / "log"
    log.write_text("with torch.autocast('cuda'):\n" + NANOGPT)
    result = oomph("doctor", "--sop", log, PYTORCH_CUDA_ALLOC_CONF="backend:native")
    assert result.code == 0, result.err
    for line in (
        "[x] PyTorch with CUDA is installed: ",
        "[x] settings of the allocators: PYTORCH_CUDA_ALLOC_CONF=backend:native",
        "[x] 4. mixed precision: the log mentions it",
        "[?] 5. checkpointing, or a smaller model",
        "the log names batch 64 (batch_size)",
        "[ ] one epoch ends without an out-of-memory error: the log has 1 ",
    ):
        assert line in result.out


def test_the_procedure_needs_no_log():
    result = doctor("--sop", "--json", log=SEED_B.encode())
    assert result.returncode == 0
    steps = json.loads(result.stdout)
    assert {step["part"] for step in steps} == {
        *("This machine", "Procedure", "In the code", "In operation", "Accepted when")
    }
    assert not any("out-of-memory errors" in step["seen"] for step in steps)
