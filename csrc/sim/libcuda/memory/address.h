/* address.h - address space, and the bytes behind it where memory is real. The caller
 * holds the driver's lock.
 *
 * Addresses come from windows of the process's own address space that nothing else uses
 * and nobody may touch, so a stray access faults as it does on a GPU's memory. Real
 * bytes lie in one sparse file in memory; a file offset is never used twice, the bytes
 * of a freed one are given back to the system.
 *
 * Freed addresses are kept by their exact size and taken again, O(1). They are never
 * merged: programs use few sizes, and address space is plentiful.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SIM_PAGE = 2 << 20 }; // bytes; the granularity of everything

static inline void *sim_pointer(uint64_t addr)
{
    return (void *)(uintptr_t)addr;
}

// Takes a range of addresses, aligned to `alignment`, a power of two. 0 if there is
// none.
uint64_t sim_address_take(uint64_t bytes, uint64_t alignment);
void sim_address_give(uint64_t addr, uint64_t bytes);

// Where bytes lie: in the file of this process, or in another's (share.h).
typedef struct sim_bytes {
    int file; // descriptor of another process's file; -1: this one's
    uint64_t offset;
} sim_bytes_t;

// New bytes of this process, all zero.
bool sim_bytes_take(uint64_t bytes, sim_bytes_t *taken);
void sim_bytes_give(const sim_bytes_t *taken, uint64_t bytes);

// How many of `bytes`, from there on, were never written, so that they are zero; and
// how many follow each other that may have been.
uint64_t sim_bytes_unwritten(const sim_bytes_t *at, uint64_t bytes);
uint64_t sim_bytes_written(const sim_bytes_t *at, uint64_t bytes);

// The file of this process; -1 when the system refuses one.
int sim_bytes_file(void);

// Where memory is real, shows bytes at an address, without access at first; elsewhere
// does nothing. False when the system refuses, for example for too many mappings.
bool sim_bytes_map(uint64_t addr, uint64_t bytes, const sim_bytes_t *shown);
bool sim_bytes_allow(uint64_t addr, uint64_t bytes, bool read, bool write);
bool sim_bytes_unmap(uint64_t addr, uint64_t bytes);

void sim_address_reset(void);
