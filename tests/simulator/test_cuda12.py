"""The runtime that is built for CUDA 12, where PyTorch is one for CUDA 13.

It is built here from the headers of CUDA 12, which are among the tools of tests: no
PyTorch for CUDA 12 is needed.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import oomph
import pytest
from support import ROOT, build_description, execute

SIM = ROOT / "csrc" / "sim"
# What libtorch_cuda.so, libc10_cuda.so, libtorch_python.so and libtorch_cuda_linalg.so
# of the package index's torch 2.10.0 import of libcudart.so.12, and those of 2.11.0 do
# not of libcudart.so.13: `nm --dynamic --undefined-only`.
OF_TORCH_2_10 = [
    "cudaGetDeviceProperties_v2",
    "cudaGetDriverEntryPoint",
    "cudaGraphInstantiate",
    "cudaStreamGetCaptureInfo_v2",
]
# Asks what CUDA 12 has otherwise than CUDA 13, as its headers declare it.
PROGRAM = r"""
#include <cuda_runtime_api.h>
#include <assert.h>
#include <string.h>

int main(void)
{
    struct cudaDeviceProp prop;
    cudaStream_t stream;
    enum cudaStreamCaptureStatus status;
    unsigned long long id = 0;
    cudaGraph_t graph, same = NULL;
    cudaGraphNode_t nodes[3];
    const cudaGraphNode_t *frontier = NULL;
    size_t count = 0;
    void *place, *entry = NULL;
    enum cudaDriverEntryPointQueryResult found;
    int version;

    assert(cudaRuntimeGetVersion(&version) == cudaSuccess && version / 1000 == 12);
    assert(cudaGetDeviceProperties(&prop, 0) == cudaSuccess);
    assert(strcmp(prop.name, "A card") == 0);
    assert(prop.totalGlobalMem == 1 << 30);
    assert(prop.major == 8 && prop.minor == 6);
    assert(prop.warpSize == 32 && prop.maxThreadsPerMultiProcessor == 1536);
    assert(prop.clockRate > 0 && prop.memoryClockRate > 0);
    assert(prop.memoryPoolsSupported == 1);

    assert(cudaGetDriverEntryPoint("cuMemCreate", &entry, 0, &found) == cudaSuccess);
    assert(entry != NULL && found == cudaDriverEntryPointSuccess);

    assert(cudaMalloc(&place, 64) == cudaSuccess);
    assert(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    assert(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
    assert(cudaMemsetAsync(place, 0, 64, stream) == cudaSuccess);
    assert(cudaMemsetAsync(place, 1, 64, stream) == cudaSuccess);
    assert(cudaStreamGetCaptureInfo(stream, &status, &id, &same, &frontier, &count) ==
           cudaSuccess);
    assert(status == cudaStreamCaptureStatusActive && id > 0 && count == 1);
    assert(cudaStreamEndCapture(stream, &graph) == cudaSuccess && graph == same);
    count = 3;
    assert(cudaGraphGetNodes(graph, nodes, &count) == cudaSuccess && count == 2);
    cudaGraphNode_t last = nodes[1], before = nodes[0];
    assert(cudaGraphNodeGetDependencies(last, nodes, &count) == cudaSuccess);
    assert(count == 1 && nodes[0] == before);
    return 0;
}
"""


def compile_c(sources: list[Path], out: Path, *flags: str | Path) -> None:
    """Compiles with the headers of CUDA 12, and no warning."""
    build = build_description()
    runtime = build["STUBS"]["find_runtimes"](None)[12]
    includes = [runtime.parent.parent / "include", *build["cuda_includes"]()]
    command = [os.environ.get("CC", "cc"), *build["C_FLAGS"]]
    command += ["-Werror", f"-I{SIM}", *build["system_includes"](includes)]
    made = execute(*command, *sources, "-o", out, *flags)
    assert made.code == 0, made.said


@pytest.fixture(scope="module")
def runtime(tmp_path_factory) -> Path:
    """The runtime of CUDA 12, as setup.py builds it."""
    build, folder = build_description(), tmp_path_factory.mktemp("cuda12")
    real = build["STUBS"]["find_runtimes"](None)
    if 12 not in real:
        pytest.fail("the headers of CUDA 12 are missing: python tools/install_tools.py")
    stubs = build["STUBS"]["generate_cudart"](real[12], folder)
    library = folder / "libcudart.so.12"
    compile_c(
        [*sorted(SIM.glob("libcudart/*.c")), stubs.source],
        library,
        *("-shared", "-fPIC", "-pthread", f"-Wl,-soname,{library.name}"),
        f"-Wl,--version-script={stubs.version_script}",
    )
    return library


def test_what_only_pytorch_2_10_calls_is_simulated(runtime):
    listed = subprocess.run(
        ["nm", "--dynamic", "--defined-only", runtime],
        check=True,
        capture_output=True,
        text=True,
    )
    kinds = {n: kind for _, kind, n in map(str.split, listed.stdout.splitlines())}
    simulated = {name.split("@@")[0] for name, kind in kinds.items() if kind == "T"}
    assert {*OF_TORCH_2_10} <= simulated  # a stub, which fails, is weak
    assert all(name.endswith("@@libcudart.so.12") for name in kinds if "@" in name)


def test_a_program_of_cuda_12_finds_its_names_structs_and_arguments(runtime, tmp_path):
    source, program = tmp_path / "program.c", tmp_path / "program"
    source.write_text(PROGRAM)
    driver = Path(oomph.__file__).parent / "_sim" / "libcuda.so.1"
    folders = f"{runtime.parent}:{driver.parent}"  # which may have one, too
    compile_c([source], program, runtime, driver)
    card = "1GiB,cc=8.6,name=A card"
    result = execute(program, card=card, LD_LIBRARY_PATH=folders)
    assert result.code == 0, result.said
