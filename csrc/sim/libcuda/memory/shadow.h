/* shadow.h - what is known to lie in device memory where memory is not real: small
 * writes of the host, and what was computed of them, are kept until a kernel runs that
 * may change them. One of an operator whose cost is known changes what that says; any
 * other may change everything. Programs send sizes and indices through a device
 * (distributed ones do) and need them back. 1024 writes are kept, those of the latest
 * use, of 256 MiB at most, in the order of their addresses: a look is a binary search.
 * The caller holds the driver's lock.
 */
#pragma once
#include "sim.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    SIM_SHADOW_BYTES_MAX = 64 << 20, // of one write; larger ones are not kept
    SIM_SHADOW_COPY_MAX = 1 << 20,   // of a copy from the host, which is of any kind
    SIM_SHADOW_FILL_MAX = 4096,
};

void sim_shadow_write(uint64_t addr, const void *source, uint64_t bytes);
// Zeros, which take no memory.
void sim_shadow_zero(uint64_t addr, uint64_t bytes);

// Copies the bytes at `addr`, zeros where they are not known. Gives how many are.
uint64_t sim_shadow_read(uint64_t addr, void *out, uint64_t bytes);
// Copies the items of a tensor, and gives whether all are known.
bool sim_shadow_read_view(const oomph_sim_view_t *view, void *out);

// What is known of one range is so of the other.
void sim_shadow_copy(uint64_t dst, uint64_t src, uint64_t bytes);

void sim_shadow_forget(uint64_t addr, uint64_t bytes);
void sim_shadow_forget_all(void);
