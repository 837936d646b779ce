/* shadow.h - a copy of what the host wrote to device memory where memory is not real:
 * small writes are kept until a kernel runs that may change them. One of an operator
 * whose cost is known changes what that says; any other may change everything. Programs
 * send sizes and indices through a device (distributed ones do) and need them back. The
 * newest 64 writes are kept; a look goes through all of them. The caller holds the
 * driver's lock.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum { SIM_SHADOW_BYTES_MAX = 4096 }; // of one write; larger ones are not kept

void sim_shadow_write(uint64_t addr, const void *source, uint64_t bytes);

// Copies the bytes at `addr` if one write holds all of them.
bool sim_shadow_read(uint64_t addr, void *out, uint64_t bytes);

// Drops every write that overlaps.
void sim_shadow_forget(uint64_t addr, uint64_t bytes);
void sim_shadow_forget_all(void);
