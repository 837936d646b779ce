/* ranges.h - address ranges that do not overlap, found by any address inside them. The
 * caller holds the driver's lock.
 *
 * A sorted array: a search is O(log n), and the range found last is tried first; adding
 * and removing move pointers, O(n). A tree would not pay: a program has few ranges and
 * searches at every copy.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Whether two ranges of addresses have a byte in common.
static inline bool sim_overlap(uint64_t a, uint64_t a_bytes, uint64_t b,
                               uint64_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

// The first member of everything kept in a set of ranges.
typedef struct sim_range {
    uint64_t base;
    uint64_t bytes;
} sim_range_t;

typedef struct sim_ranges {
    sim_range_t **items; // by address
    size_t count;
    size_t capacity;
    size_t last_found; // programs tend to stay in one range for a while
} sim_ranges_t;

// The range that holds `addr`, or NULL.
sim_range_t *sim_ranges_find(sim_ranges_t *ranges, uint64_t addr);

// Whether any range overlaps `bytes` at `addr`.
bool sim_ranges_overlap(const sim_ranges_t *ranges, uint64_t addr, uint64_t bytes);

// Adds a range that overlaps no other. False when the host has no memory.
bool sim_ranges_add(sim_ranges_t *ranges, sim_range_t *range);
void sim_ranges_remove(sim_ranges_t *ranges, const sim_range_t *range);
