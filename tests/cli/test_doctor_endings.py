"""``oomph doctor`` knows ends for want of memory that are not PyTorch's allocator's."""

import pytest
from test_doctor import SEED_B, doctor, found_in, only, said_of, texts, wrapped

OOM_KILLER = """\
[2059991.491436] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,me    \
ms_allowed=0,global_oom,task_memcg=/user.slice,task=python3,pid=25315,uid=0
[2059991.491542] Out of memory: Killed process 25315 (python3) total-vm:53312244\
kB, anon-rss:31451456kB, file-rss:74816kB, shmem-rss:12296kB, UID:0 pgtables:69068kB
[2059992.056260] oom_reaper: reaped process 25315 (python3), now anon-rss:0kB
"""
# Each text: the form, whose memory is gone, the amounts, and the facts.
ENDINGS = {
    "oom killer": (
        OOM_KILLER,
        *("oom_killer", "host", {"resident": "29.99 GiB"}),
        {
            "process": "25315",
            "program": "python3",
            "reached": "the whole machine's memory",
        },
    ),
    "oom killer, old": (
        "Memory cgroup out of memory: Kill process 77 (python) score 900 or sacrifice",
        *("oom_killer", "host", {}, {"process": "77", "program": "python"}),
    ),
    "oom-kill alone": (
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=x,pid=9,uid=0",
        *("oom_kill", "host", {}),
        {
            "process": "9",
            "program": "x",
            "reached": "the limit of a group (a container, a job)",
        },
    ),
    "slurm": (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=44217667.batch. Some "
        "of the step tasks have been OOM Killed.",
        *("scheduler", "host", {}, {}),
    ),
    "slurm, old": (
        "slurmstepd: error: Detected 3 oom-kill event(s) in step 1.batch cgroup. Some "
        "of your processes may have been killed by the cgroup out-of-memory handler.",
        *("scheduler", "host", {}, {}),
    ),
    "LSF": (
        "/a.shell: line 12: 15177 Killed                  python main.py $NAME\n"
        "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.\n"
        "Exited with exit code 137.\n\nResource usage summary:\n"
        "    CPU time :          60782.38 sec.\n    Max Memory :        10240 MB\n",
        *("scheduler", "host", {"resident": "10.00 GiB"}, {}),
    ),
    "pod": ("  Reason:  OOMKilled\n  Exit Code:  137", "scheduler", "host", {}, {}),
    "torchrun": (
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) "
        "local_rank: 1 (pid: 1168) of binary: /opt/conda/bin/python\n"
        "  traceback : Signal 9 (SIGKILL) received by PID 1168",
        *("sigkill", "host", {}, {"local rank": "1", "process": "1168"}),
    ),
    "exit code": ("trainer-1 exited with code 137\n2026", "sigkill", "host", {}, {}),
    "subprocess": (
        "subprocess.CalledProcessError: Command '['python']' died with "
        "<Signals.SIGKILL: 9>.",
        *("sigkill", "host", {}, {}),
    ),
    "bare": ("Epoch 3\nKilled\n", "killed", "host", {}, {}),
    "zsh": ("[1]    4711 killed     python train.py", "killed", "host", {}, {}),
    "worker": (
        "RuntimeError: DataLoader worker (pid 46794) is killed by signal: Killed. ",
        *("worker_killed", "host", {}, {"process": "46794"}),
    ),
    "shared memory": (
        "RuntimeError: DataLoader worker (pid 46794) is killed by signal: Bus error. "
        "It is possible that dataloader's workers are out of shared memory.",
        *("shared_memory", "host", {}, {"process": "46794"}),
    ),
    "shared memory, refused": (
        "RuntimeError: unable to allocate shared memory(shm) for file </torch_1_2_3>: "
        "Resource temporarily unavailable (11)",
        *("shared_memory", "host", {}, {}),
    ),
    "numpy": (
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 14.9 GiB for an "
        "array with shape (2000000000,) and data type float64",
        *("numpy", "host", {"requested": "14.90 GiB"}),
        {"shape": "(2000000000,)", "data type": "float64"},
    ),
    "Python": ("Traceback (most ...\nMemoryError\n", "memory_error", "host", {}, {}),
    "cuDNN": (
        "RuntimeError: Unable to find a valid cuDNN algorithm to run convolution",
        *("no_algorithm", "GPU", {}, {}),
    ),
    "NCCL": (
        "node:3018451:3018451 [0] enqueue.cc:1085 NCCL WARN Cuda failure 'out of "
        "memory'",
        *("nccl", "GPU", {}, {}),
    ),
    "vLLM": (
        "ValueError: No available memory for the cache blocks. Try increasing "
        "`gpu_memory_utilization` when initializing the engine.",
        *("vllm_none", "GPU", {}, {}),
    ),
    "vLLM's share": (
        "ValueError: Free memory on device cuda:1 (19.77/22.05 GiB) on startup is less "
        "than desired GPU memory utilization (0.9, 19.84 GiB).",
        *("vllm_memory", "GPU"),
        {"free": "19.77 GiB", "total": "22.05 GiB", "requested": "19.84 GiB"},
        {"utilization": "0.9"},
    ),
    "vLLM's length": (
        "ValueError: The model's max seq len (32768) is larger than the maximum number "
        "of tokens that can be stored in KV cache (11456). Try increasing",
        *("vllm_cache", "GPU", {}),
        {"max model len": "32768", "tokens that fit": "11456"},
    ),
    "vLLM's length, new": (
        "ValueError: To serve at least one request with the models's max seq len "
        "(131072), (16.00 GiB KV cache is needed, which is larger than the available "
        "KV cache memory (6.31 GiB). Based on",
        *("vllm_cache", "GPU", {"requested": "16.00 GiB", "free": "6.31 GiB"}),
        {"max model len": "131072"},
    ),
    "llama.cpp": (
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9866.00 MiB on device "
        "1: cudaMalloc failed: out of memory",
        *("ggml", "GPU", {"requested": "9.63 GiB"}, {}),
    ),
    "CuPy": (
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 25,600,000 bytes "
        "(allocated so far: 3,635,267,072 bytes).",
        *("cupy", "GPU", {"requested": "24.41 MiB", "allocated": "3.39 GiB"}, {}),
    ),
    "ONNX Runtime": (
        "bfc_arena.cc:376 void* onnxruntime::BFCArena::AllocateRawInternal(size_t) "
        "Failed to allocate memory for requested buffer of size 6442450944",
        *("onnxruntime", "", {"requested": "6.00 GiB"}, {}),
    ),
    "JAX": (
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while "
        "trying to allocate 4770354232 bytes.",
        *("jax", "GPU", {"requested": "4.44 GiB"}, {}),
    ),
    "TensorFlow": (
        "ResourceExhaustedError: OOM when allocating tensor with shape[64,2016,9,9] "
        "and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator",
        *("tensorflow", "", {}),
        {"shape": "[64,2016,9,9]", "data type": "float", "where": "GPU:0"},
    ),
    "MPS": (
        "RuntimeError: MPS backend out of memory (MPS allocated: 18.02 GB, other "
        "allocations: 107.10 MB, max allowed: 18.13 GB). Tried to allocate 4.50 MB on "
        "private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit",
        *("mps", "GPU"),
        {
            **{"reserved": "18.02 GiB", "other": "107.10 MiB", "allowed": "18.13 GiB"},
            "requested": "4.50 MiB",
        },
        {},
    ),
}
SUMMARY = """\
|===========================================================================|
|                  PyTorch CUDA memory summary, device ID 0                 |
|---------------------------------------------------------------------------|
|            CUDA OOMs: {ooms}            |        cudaMalloc retries: 1         |
|===========================================================================|
|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |
|---------------------------------------------------------------------------|
| Allocated memory      |    1062 MB |    4877 MB |   89299 MB |   88237 MB |
|       from large pool |    1048 MB |    4865 MB |   89263 MB |   88215 MB |
|---------------------------------------------------------------------------|
| GPU reserved memory   |   12420 MB |   12420 MB |   16924 MB |    4504 MB |
"""


@pytest.mark.parametrize("name", ENDINGS)
def test_an_end_is_known_with_its_memory_its_numbers_and_what_helps(name):
    text, form, memory, amounts, facts = ENDINGS[name]
    error = only(f"Epoch 1\n{text}\n")
    assert (error["form"], error["memory"]) == (form, memory)
    assert (texts(error), error["facts"]) == (amounts, facts)
    assert error["helps"]


@pytest.mark.parametrize("name", ["oom killer", "numpy", "llama.cpp", "JAX", "MPS"])
@pytest.mark.parametrize("width", [33, 80])
def test_lines_of_an_end_may_be_broken(name, width):
    text, form, _, amounts, _ = ENDINGS[name]
    error = only(wrapped(text, width))
    assert (error["form"], texts(error)) == (form, amounts)


@pytest.mark.parametrize("name", ["slurm", "bare", "NCCL", "JAX"])
def test_an_end_is_an_error_for_the_exit_code(name):
    assert doctor(log=ENDINGS[name][0].encode()).returncode == 0


def test_lines_that_report_the_same_kill_are_one_and_the_surest_is_reported():
    killed = f"{ENDINGS['torchrun'][0]}\n{ENDINGS['slurm'][0]}\nKilled\n{OOM_KILLER}"
    error = only(killed)
    assert (error["form"], error["count"]) == ("oom_killer", 1)
    assert error["facts"]["local rank"] == "1"
    apart = "step\n" * 100
    assert only(f"Killed\n{apart}Killed\n")["count"] == 2


def test_that_a_signal_shows_no_want_of_memory_by_itself_is_said():
    assert "whether it was memory" in only("Killed")["not_known"][0]
    assert only(OOM_KILLER)["not_known"] == []


def test_a_crash_that_is_told_twice_is_one():
    crash = (
        "terminate called after throwing an instance of 'std::bad_alloc'\n"
        "  what():  std::bad_alloc\nAborted (core dumped)"
    )
    assert only(crash)["count"] == 1
    text = f"OutOfMemoryError: {SEED_B}"
    trace = f'Traceback (most recent call last):\n  File "a.py", line 1, in f\n{text}'
    error = only(f"ERROR in main loop: {SEED_B}\n{trace}\n")
    assert (error["count"], error["where"]) == (1, "a.py:1 (f)")
    assert only(f"{trace}\n{trace}\n")["count"] == 2


def test_a_summary_with_ooms_is_evidence_where_no_error_stands_before_it():
    error = only(SUMMARY.format(ooms=1))
    assert error["facts"] == {"CUDA OOMs": "1", "cudaMalloc retries": "1"}
    assert texts(error) == {
        **{"allocated": "1.04 GiB", "peak": "4.76 GiB", "reserved": "12.13 GiB"}
    }
    assert found_in(SUMMARY.format(ooms=0)) == []
    assert only(f"{SEED_B}\n{SUMMARY.format(ooms=1)}")["form"] == "pytorch"


def test_a_rank_is_known_behind_nccls_prefix_and_counts_of_uniq():
    assert only(ENDINGS["NCCL"][0])["ranks"] == [0]
    assert only(f"      2 [rank3]: {SEED_B}")["ranks"] == [3]


@pytest.mark.parametrize(
    "text",
    [
        'raise ValueError("No available memory for the cache blocks. "',
        "except MemoryError:",
        "the process was Killed by the user, see line 12: 15 Killed",
        "exit code 0, exit code 1370",
        '"OOMKilled": false',
        "Как исправить RuntimeError: CUDA out of Memory",
        "The error “RuntimeError: CUDA out of memory” appears when the GPU is full.",
        "Out of memory is not expected here. We ran out of memory budget",
        "triton.runtime.errors.OutOfResources: out of resource: shared memory",
    ],
)
def test_words_about_an_end_are_none(text):
    assert found_in(text) == []


def test_only_the_framework_that_is_there_is_named():
    said = said_of(ENDINGS["JAX"][0])
    assert "JAX" in said and "TensorFlow" not in said and "MPS" not in said


def test_counts_have_their_plural():
    said = doctor(log=b"It is out of memory").stdout
    assert b"in 1 line. The words are there (1 time), but no error" in said
