/* gpu.h - well-known cards: what each has, and how fast it is at its best. */
#pragma once
#include "sim.h"

typedef struct sim_gpu {
    const char *name;  // as a description of a card has it
    const char *title; // as CUDA has it
    double memory_gib; // as CUDA tells it: less than the box does
    int cc_major, cc_minor;
    int sm_count;
    double memory_gb_per_s;
    double link_gb_per_s;                // each way
    double tflops[OOMPH_SIM_PRECISIONS]; // dense, sums in fp32; 0: no such units
} sim_gpu_t;

#define SIM_GPU_NAMES                                                                  \
    "t4, a10, l4, rtx3060, rtx3090, rtx4070, rtx4090, rtx5090, a100-40gb, "            \
    "a100-80gb, h100, gh200, h200, b200"

// By name or title, in any case; NULL if it is unknown.
const sim_gpu_t *sim_gpu_find(const char *name);
