/* known.h - bytes of device memory that are known although memory is not real: what the
 * host wrote in small copies, until a kernel runs, which may change anything. Programs
 * send sizes and indices through a device (distributed ones do) and need them back. The
 * caller holds the driver's lock.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum { SIM_KNOWN_BYTES_MAX = 4096 }; // of one write; larger ones are not kept

void sim_known_write(uint64_t addr, const void *source, uint64_t bytes);

// Copies the bytes at `addr` if all of them are known.
bool sim_known_read(uint64_t addr, void *out, uint64_t bytes);

// What is at `addr` is no longer known.
void sim_known_forget(uint64_t addr, uint64_t bytes);
void sim_known_forget_all(void);
