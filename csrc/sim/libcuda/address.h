/* address.h - address space, and the bytes behind it where memory is real. The caller
 * holds the driver's lock.
 *
 * Addresses come from windows of the process's own address space that nothing else uses
 * and nobody may touch, so a stray access faults as it does on a GPU's memory. Real
 * bytes lie in one sparse file in memory; a file offset is never used twice, the bytes
 * of a freed one are given back to the system.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SIM_PAGE = 2 << 20 }; // bytes; the granularity of everything

// Takes a range of addresses, aligned to `alignment`, a power of two. 0 if there is
// none.
uint64_t sim_address_take(uint64_t bytes, uint64_t alignment);
void sim_address_give(uint64_t addr, uint64_t bytes);

// New bytes, all zero: their offset in the file.
bool sim_bytes_take(uint64_t bytes, uint64_t *offset);
void sim_bytes_give(uint64_t offset, uint64_t bytes);

// Where memory is real, shows bytes at an address, without access at first; elsewhere
// does nothing. False when the system refuses, for example for too many mappings.
bool sim_bytes_map(uint64_t addr, uint64_t bytes, uint64_t offset);
bool sim_bytes_allow(uint64_t addr, uint64_t bytes, bool read, bool write);
bool sim_bytes_unmap(uint64_t addr, uint64_t bytes);

void sim_address_reset(void);
