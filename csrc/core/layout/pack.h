/* pack.h - blocks whose lifetimes are known, packed into little address space.
 *
 * Lifetimes lie on the circle of one period. Blocks are placed one after the other, by
 * size and by lifetime; those that end up above the most that is alive at once are
 * then placed first, again and again, until none is left or patience is over.
 *
 * Pure: no driver, no lock, no clock.
 */
#pragma once
#include "core/base/util.h"

typedef struct oomph_item {
    size_t bytes, offset;
    uint32_t birth, life; // in allocations; life is 1 to a period
} oomph_item_t;

// Sets the offsets, and may change the order. Gives the address space needed, SIZE_MAX
// without host memory.
size_t oomph_pack(oomph_item_t *items, size_t count, uint32_t period);
