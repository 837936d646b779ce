"""Texts that say of an end for want of memory without the sums of PyTorch's allocator.

They are the driver's, other libraries', the kernel's, or of what starts programs. Each
is a row: how it begins, whose memory is gone, and what helps. Of rows that report the
same event, the surest comes first.
"""

from __future__ import annotations

from collections.abc import Sequence

from oomph.doctor.forms import Form, amount, steps
from oomph.doctor.libraries import LIBRARIES

_BLOCKING = "CUDA_LAUNCH_BLOCKING=1: see whether another error came first"
_LESS_HOST = (
    "less host memory: fewer workers of the DataLoader, data in parts",
    "the machine's memory ran out, or a container reached its limit",
)
_WHO_HOST = ("free -h, and dmesg for the OOM killer", "to see who holds it")
_KILLED = steps(
    (
        "less host memory: fewer workers of the DataLoader, data in parts",
        "a process that is killed for lack of memory cannot say so itself",
    ),
    (
        "a higher limit, if there is one (--mem of slurm, --memory of docker, a pod's)",
        "a limit is reached although the machine has more; sacct or docker stats show "
        "the peak",
    ),
    (
        "load a checkpoint in one rank at a time, or with mmap=True",
        "ranks that load at once need its size each",
    ),
)
_BESIDE = (
    (
        "leave the library some memory: torch.cuda.empty_cache() before its first use, "
        "or a smaller batch",
        "it allocates beside PyTorch, whose cache it cannot use",
    ),
    (
        "nvidia-smi: see whether the device is full, and who fills it",
        "libraries ask for little beside PyTorch; it fails if hardly anything is free",
    ),
)
_NOT_SURE = "whether it was memory: {0}; dmesg says it: search it for oom"


def _killed(
    title: str, starts: Sequence[str], begins: str, line: str = "", doubt: str = ""
) -> Form:
    """One of the texts that report the end of a process."""
    return Form(
        title,
        starts,
        begins,
        line=line,
        memory="host",
        again="killed",
        helps=_KILLED,
        doubt=doubt,
    )


# What is said in place of a fact's name in the text.
MEANINGS = {
    "CONSTRAINT_NONE": "the whole machine's memory",
    "CONSTRAINT_MEMCG": "the limit of a group (a container, a job)",
}
ENDINGS = {
    # ---- A process was killed
    "oom_killer": _killed(
        "host memory ran out: the kernel's OOM killer ended a process",
        ("Outofmemory:Kill", "Memorycgroupoutofmemory:Kill"),
        r"(?:O|Memorycgroupo)utofmemory:Kill(?:ed)?process(?P<process>\d+),?"
        r"(?:\((?P<program>[^()]{1,40})\))?"
        r"(?:(?:(?!Kill).){0,120}?anon-rss:(?P<resident>\d+)(?P<resident_unit>kB))?",
    ),
    "oom_kill": _killed(
        "host memory ran out: the kernel's OOM killer ended a process",
        ("oom-kill:constraint=",),
        r"oom-kill:constraint=(?P<reached>[A-Z_]+),(?:.{0,600}?,?task=(?P<program>"
        r"[^,]{1,40}),pid=(?P<process>\d+))?",
    ),
    "scheduler": _killed(
        "host memory ran out: the job reached its limit and was killed",
        (
            *("oom_killevent", "oom-killevent", "OOMKilled", "TERM_MEMLIMIT"),
            "cgroupout-of-memoryhandler",
            *("Exceededjobmemorylimit", "Exceededstepmemorylimit"),
            *("State:OUT_OF_MEMORY", "killedduetothenoderunninglowonmemory"),
            "killedduetomemorypressure(OOM)",
        ),
        r"oom[_-]killevent|cgroupout-of-memoryhandler"
        r"|OOMKilled(?!:false)|Exceeded(?:job|step)memorylimit|State:OUT_OF_MEMORY"
        r"|killeddueto(?:thenoderunninglowonmemory|memorypressure\(OOM\))"
        r"|TERM_MEMLIMIT(?:.{0,400}?MaxMemory:(?P<resident>\d+)(?P<resident_unit>[KMGT]B))?",
    ),
    "worker_killed": _killed(
        "host memory ran out, most likely: a worker of the DataLoader was killed",
        ("DataLoaderworker(pid",),
        r"DataLoaderworker\(pid(?:\(s\))?(?P<process>\d+)\)iskilledbysignal:Killed",
        doubt=_NOT_SURE.format("the signal says only that it was killed"),
    ),
    "sigkill": _killed(
        "a process was killed (SIGKILL), most likely because host memory ran out",
        (
            *("exitcode", "exitedwithcode", "exitstatus", "Exited(137)", "ExitCode:"),
            *("returncode", "exitCode:", "Signal9(SIGKILL)", "SIGKILL:9", "SIGKILL("),
        ),
        r"(?:(?:exit(?:edwith)?|return|Exit)(?:[cC]ode|status)[:=]*(?:-9|137)"
        r"(?:\)local_rank:(?P<local_rank>\d+)\(pid:(?P<process>\d+)\))?"
        r"|Exited\(137\)|Signal9\(SIGKILL\)|SIGKILL:9|SIGKILL\(-?9\))",
        line=r"(?<![\d.])(?:-9|137)(?!\d)|SIGKILL",
        doubt=_NOT_SURE.format("-9 and 137 say only that something sent SIGKILL"),
    ),
    "killed": _killed(
        "a process was killed, most likely because host memory ran out",
        ("Killed", "killed"),
        r"[Kk]illed",
        line=r"^Killed(?:: 9)?\s*$|^\S+: line \d+: +\d+ +Killed\b"
        r"|^\[\d+\] *[+-]? *(?:\d+ +)?[Kk]illed\b",
        doubt=_NOT_SURE.format("the shell says only that something sent SIGKILL"),
    ),
    # ---- Host memory
    "cpu": Form(
        "host memory ran out (DefaultCPUAllocator)",
        ("DefaultCPUAllocator:", "$Torch:notenoughmemory"),
        r"(?:DefaultCPUAllocator:(?:can'tallocatememory|notenoughmemory):"
        r"|\$Torch:notenoughmemory:)youtriedtoallocate" + amount("requested"),
        memory="host",
        helps=steps(
            (
                "a smaller batch or type, or parts, if this one tensor is large",
                "it is asked for in one piece: check that its shape is meant",
            ),
            _LESS_HOST,
            _WHO_HOST,
        ),
    ),
    "numpy": Form(
        "host memory ran out (NumPy)",
        ("Unabletoallocate",),
        rf"Unabletoallocate{amount('requested')}foranarraywithshape"
        r"(?P<shape>\([\d,]+\))"
        r"(?:anddatatype(?P<data_type>(?:float|u?int|complex)\d{1,3}|bool|object))?",
        memory="host",
        helps=steps(
            (
                "a smaller type or parts: dtype=np.float32, np.memmap, chunks",
                "it is asked for in one piece: check that its shape is meant",
            ),
            _WHO_HOST,
        ),
    ),
    "memory_error": Form(
        "host memory ran out (Python's MemoryError)",
        ("MemoryError",),
        r"(?<!OutOf)MemoryError",
        line=r"^MemoryError:?\s*$|^MemoryError: (?!std::|Unable to allocate \d)",
        memory="host",
        helps=steps(_LESS_HOST, _WHO_HOST),
    ),
    "shared_memory": Form(
        "shared memory of the host is full (/dev/shm)",
        (
            *("DataLoaderworker(pid", "unabletoallocatesharedmemory", "unabletommap"),
            "unabletowritetofile</torch",
        ),
        r"DataLoaderworker\(pid(?:\(s\))?(?P<process>\d+)\)iskilledbysignal:Buserror"
        r"|unabletoallocatesharedmemory\(shm\)|unabletowritetofile</torch"
        r"|unabletommap(?P<requested>\d+)(?P<requested_unit>bytes)fromfile<[^>]{0,80}>"
        r":Cannotallocatememory",
        memory="host",
        helps=steps(
            (
                "docker run --ipc=host or --shm-size=8g; of a pod: an emptyDir of "
                "medium Memory at /dev/shm",
                "workers of the DataLoader pass batches through it; a container has 64 "
                "MB by default (df -h /dev/shm)",
            ),
            (
                "fewer workers, prefetch_factor=2 or less; num_workers=0 needs none",
                "each holds its batches there",
            ),
        ),
    ),
    # ---- The GPU, without numbers
    "cuda": Form(
        "CUDA error: out of memory",
        (
            *("CUDAerror", "CUDAdrivererror", "cudaruntimeerror(2)", "HIPerror"),
            "CUDA_ERROR_OUT_OF_MEMORY",
        ),
        r"CUDA(?:driver)?error:?outofmemory|cudaruntimeerror\(2\):outofmemory"
        r"|CUDA_ERROR_OUT_OF_MEMORY|HIPerror:outofmemory",
        helps=steps(
            (
                "nvidia-smi: see who fills the device",
                "the driver had none left for CUDA itself or a library; PyTorch's "
                "allocator would give numbers",
            ),
            (
                "leave memory free beside PyTorch: a smaller batch, or "
                "set_per_process_memory_fraction(0.9)",
                "others cannot use what PyTorch caches; torch.cuda.empty_cache() can "
                "help here",
            ),
            (
                "CUDA_LAUNCH_BLOCKING=1: see which call it was",
                "the error may be reported late; pinning host memory fails like this, "
                "too",
            ),
        ),
    ),
    "nccl": Form(
        "NCCL: out of memory",
        ("Cudafailure", "CUDAfailure"),
        r"C(?:uda|UDA)failure\d{0,3}'outofmemory'",
        helps=steps(
            (
                "nvidia-smi: see whether a device is full, also of other ranks",
                "NCCL allocates beside PyTorch, whose cache it cannot use",
            ),
            (
                "torch.cuda.set_device(local_rank) before init_process_group",
                "else all ranks start on GPU 0 and fill it",
            ),
            (
                "leave it some memory: a smaller batch, "
                "set_per_process_memory_fraction(0.9), or a smaller NCCL_BUFFSIZE",
                "its buffers come with the first collective of each group",
            ),
        ),
    ),
    "library": Form(
        "{detail}",
        (
            *("CUBLAS_STATUS_ALLOC_FAILED", "CUSOLVER_STATUS_ALLOC_FAILED"),
            "CUDNN_STATUS_ALLOC_FAILED",
        ),
        r"(?P<detail>(?:CUBLAS|CUSOLVER|CUDNN)_STATUS_ALLOC_FAILED)"
        r"(?:whencalling[a-zA-Z]+\()?",
        helps=steps(*_BESIDE, (_BLOCKING, "an index out of range ends like this, too")),
    ),
    "no_algorithm": Form(
        "cuDNN found no algorithm, usually for lack of memory",
        (
            "UnabletofindavalidcuDNNalgorithm",
            "wasunabletofindanenginetoexecutethiscomputation",
        ),
        r"UnabletofindavalidcuDNNalgorithmtorunconvolution"
        r"|wasunabletofindanenginetoexecutethiscomputation",
        helps=steps(
            *_BESIDE,
            (
                "check the driver, cuDNN and the data type",
                "a convolution that this device does not have ends like this, too",
            ),
        ),
    ),
    "not_supported": Form(
        "{detail}",
        ("CUDNN_STATUS_NOT_SUPPORTED",),
        r"(?P<detail>CUDNN_STATUS_NOT_SUPPORTED)",
        helps=steps(
            ("make inputs contiguous()", "the error's own first guess"),
            (
                "a smaller batch",
                "cuDNN refuses tensors of 2^31 elements, and says the same without "
                "room for a workspace",
            ),
            (_BLOCKING, "a failed kernel is reported late"),
        ),
    ),
    "bad_alloc": Form(
        "std::bad_alloc",
        ("std::bad_alloc", "terminatecalledafterthrowinganinstanceof'std::bad_alloc'"),
        r"(?:terminatecalledafterthrowinganinstanceof'std::bad_alloc'what\(\):)?"
        r"std::bad_alloc(?P<detail>:out_of_memory|:CUDAerror|:RMMfailure)?"
        r"(?:.{0,400}?cudaErrorMemoryAllocationoutofmemory)?",
        memory="",
        helps=steps(
            (
                "check which allocator is in use (RMM, another CUDAPluggableAllocator)",
                "if there is one, device memory ran out, and it knows the numbers",
            ),
            ("free -h", "if there is none, C++ found no host memory"),
        ),
    ),
    **LIBRARIES,
}
