/* gpu.c - the table of well-known cards.
 *
 * Sources, all public and by NVIDIA unless said otherwise. Rates are dense, with sums
 * in fp32, as PyTorch multiplies; where a source gives sparse ones, half of them.
 *
 *   T4          "Turing GPU Architecture" whitepaper; T4 datasheet: fp32, fp16, GB/s
 *   A10         A10 datasheet (sparse rates halved)
 *   L4          L4 datasheet (sparse rates halved)
 *   RTX 3090    "Ampere GA102 GPU Architecture" whitepaper, appendix A
 *   RTX 3060    product page (SMs, boost clock, memory bus) at the rates per SM and
 *               clock of the GA102 whitepaper
 *   RTX 4090    "Ada GPU Architecture" whitepaper, appendix A
 *   RTX 4070    product page (SMs, boost clock, memory bus) at the rates per SM and
 *               clock of the Ada whitepaper
 *   RTX 5090    "RTX Blackwell GPU Architecture" whitepaper, appendix A
 *   A100        A100 datasheet, the SXM cards
 *   H100        H100 datasheet, the SXM card (sparse rates halved)
 *   H200        H200 datasheet, the SXM card (sparse rates halved)
 *   GH200       GH200 Grace Hopper Superchip datasheet, 96 GB (sparse rates halved);
 *               the link is NVLink-C2C: 900 GB/s both ways together
 *   GB10        DGX Spark product page: memory, GB/s, and FP4, of which the others are
 *               the parts that they are on an RTX 5090; it is integrated
 *   B200        DGX B200 and HGX B200 datasheets, an eighth (sparse rates halved)
 *
 * Caches: the same documents; B200 and GB10 by what CUDA reports there.
 *
 * NVLink between cards: the same documents, which state both ways together.
 *
 * Links: PCI-SIG, 16 lanes of 8, 16 and 32 GT/s, coded 128 in 130 bits. Memory: what
 * PyTorch's out-of-memory errors call the total capacity, in public issues (l4,
 * rtx4090, rtx5090 and gb10 were looked up; the others are to be confirmed by `make
 * gpu`).
 *
 * Threads of a multiprocessor: "CUDA Programming Guide", compute capabilities.
 *
 * What a process takes besides, in MiB: 28 + 1.84 for each that the default stacks (1
 * KiB) of all threads take, and 64 for kernels that are loaded on their first call and
 * handles of libraries. The first is fitted to what nvidia-smi and PyTorch's errors
 * show of processes that did nothing on a T4, RTX 3090, RTX 4090, A100 and H100 (within
 * 11 MiB; 41 less than on a B200), the second is about the median of what others showed
 * at work: docs/checked.md has both with their sources. All with CUDA 12 or later,
 * which loads kernels late.
 */
#include "libcuda/session/gpu.h"

#include <stdio.h>
#include <strings.h>

#define PCIE_3 15.75 // GB/s
#define PCIE_4 31.51
#define PCIE_5 63.02
#define NVLINK_C2C 450.0
#define INTEGRATED 0.0 // no link: its memory is the host's

// What large products of matrices reach of the stated arithmetic. Tensor cores of a
// GeForce run at half their speed when sums are in fp32, and the card holds its clock;
// those of a server's card lower it under their load. Fitted to published times of an
// A100 and an RTX 4090 by benchmarks/published/fit.py; the others are by analogy.
#define GEFORCE 0.99
#define SERVER 0.7

// name, title, GiB, compute capability, SMs, GB/s, GB/s of the link and of NVLink
// between cards (one way; 0: they have none), TFLOPS of fp32, tf32, fp16, bf16 and fp8,
// MiB of cache, share of the arithmetic; one card a line
// clang-format off
static const sim_gpu_t GPUS[] = {
    {"t4",        "Tesla T4",                 14.56,  7, 5,  40,  320, PCIE_3,     0,   {8.1, 0, 65, 0, 0}, 4, SERVER},
    {"a10",       "NVIDIA A10",               22.06,  8, 6,  72,  600, PCIE_4,     0,   {31.2, 62.5, 125, 125, 0}, 6, SERVER},
    {"l4",        "NVIDIA L4",                22.03,  8, 9,  58,  300, PCIE_4,     0,   {30.3, 60, 121, 121, 242.5}, 48, SERVER},
    {"rtx3060",   "NVIDIA GeForce RTX 3060",  11.76,  8, 6,  28,  360, PCIE_4,     0,   {12.7, 12.7, 25.5, 25.5, 0}, 3, GEFORCE},
    {"rtx3090",   "NVIDIA GeForce RTX 3090",  23.69,  8, 6,  82,  936, PCIE_4,     0,   {35.6, 35.6, 71, 71, 0}, 6, GEFORCE},
    {"rtx4070",   "NVIDIA GeForce RTX 4070",  11.72,  8, 9,  46,  504, PCIE_4,     0,   {29.1, 29.1, 58.3, 58.3, 116.6}, 36, GEFORCE},
    {"rtx4090",   "NVIDIA GeForce RTX 4090",  23.64,  8, 9, 128, 1008, PCIE_4,     0,   {82.6, 82.6, 165.2, 165.2, 330.3}, 72, GEFORCE},
    {"rtx5090",   "NVIDIA GeForce RTX 5090",  31.36, 12, 0, 170, 1792, PCIE_5,     0,   {104.8, 104.8, 209.5, 209.5, 419}, 96, GEFORCE},
    {"a100-40gb", "NVIDIA A100-SXM4-40GB",    39.39,  8, 0, 108, 1555, PCIE_4,     300, {19.5, 156, 312, 312, 0}, 40, 0.82},
    {"a100-80gb", "NVIDIA A100-SXM4-80GB",    79.15,  8, 0, 108, 2039, PCIE_4,     300, {19.5, 156, 312, 312, 0}, 40, 0.82},
    {"h100",      "NVIDIA H100 80GB HBM3",    79.10,  9, 0, 132, 3350, PCIE_5,     450, {67, 494.5, 989.5, 989.5, 1979}, 50, SERVER},
    {"gh200",     "NVIDIA GH200 480GB",       94.50,  9, 0, 132, 4000, NVLINK_C2C, 450, {67, 494.5, 989.5, 989.5, 1979}, 60, SERVER},
    {"h200",      "NVIDIA H200",             139.80,  9, 0, 132, 4800, PCIE_5,     450, {67, 494.5, 989.5, 989.5, 1979}, 50, SERVER},
    {"b200",      "NVIDIA B200",             178.35, 10, 0, 148, 8000, PCIE_5,     900, {75, 1100, 2250, 2250, 4500}, 126, SERVER},
    {"gb10",      "NVIDIA GB10",             121.69, 12, 1,  48,  273, INTEGRATED, 0,   {31.2, 31.2, 62.5, 62.5, 125}, 24, SERVER},
};
// clang-format on

enum { GPU_COUNT = sizeof GPUS / sizeof GPUS[0] };

const sim_gpu_t *sim_gpu_find(const char *name)
{
    for (size_t i = 0; i < GPU_COUNT; i++)
        if (strcasecmp(name, GPUS[i].name) == 0 || strcasecmp(name, GPUS[i].title) == 0)
            return &GPUS[i];
    return NULL;
}

int sim_threads_per_sm(int cc_major, int cc_minor)
{
    if (cc_major == 7 && cc_minor == 5)
        return 1024;
    return (cc_major == 8 && cc_minor > 0) || cc_major > 10 ? 1536 : 2048;
}

uint64_t sim_gpu_context_bytes(const sim_gpu_t *gpu)
{
    const double stack_mib =
        gpu->sm_count * sim_threads_per_sm(gpu->cc_major, gpu->cc_minor) / 1024.0;

    return (uint64_t)(28 + 1.84 * stack_mib + 64) << 20;
}

const char *sim_gpu_names(void)
{
    static char names[256];
    size_t used = 0;

    for (size_t i = 0; i < GPU_COUNT && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s",
                                 i ? ", " : "", GPUS[i].name);
    return names;
}
