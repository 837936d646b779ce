/* gpu.h - well-known cards: what each has, and how fast it is at its best. */
#pragma once
#include "sim.h"

#include <stdint.h>

typedef struct sim_gpu {
    const char *name;  // as a description of a card has it
    const char *title; // as CUDA has it
    double memory_gib; // as CUDA reports it: less than the box does
    int cc_major, cc_minor;
    int sm_count;
    double memory_gb_per_s;
    double link_gb_per_s;                // each way
    double fabric_gb_per_s;              // between cards, each way; 0: over the link
    double tflops[OOMPH_SIM_PRECISIONS]; // dense, sums in fp32; 0: no such units
    int l2_mib;
    double flops_share; // what large products of matrices reach of these
} sim_gpu_t;

// By name or title, in any case; NULL if it is unknown.
const sim_gpu_t *sim_gpu_find(const char *name);

// What a process takes of the card besides what it allocates.
uint64_t sim_gpu_context_bytes(const sim_gpu_t *gpu);

// The most threads that a multiprocessor of a compute capability has at a time.
int sim_threads_per_sm(int cc_major, int cc_minor);

// All names, for messages. The caller holds the driver's lock.
const char *sim_gpu_names(void);
