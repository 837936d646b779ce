/* index.h - the free blocks of a heap, found by size in constant time.
 *
 * Blocks up to 1 MiB have a bin for each size; larger ones a bin for each 1/32 of a
 * doubling, searched for the best fit. HOLEs and blocks on host pages are in lists.
 * Pure, like block.h. The caller holds the device lock.
 */
#pragma once
#include "core/heap/block.h"

enum {
    OOMPH_SMALL_BINS = 2049,    // one per multiple of 512; the last has 1 MiB and more
    OOMPH_LARGE_BINS = 29 * 32, // from 1 MiB to 2^49 bytes
};

// Adds or drops a FREE block or HOLE, by its state, tier and size.
void oomph_index_add(oomph_block_t *block);
void oomph_index_drop(oomph_block_t *block);

// Whether a FREE block on device pages is in a bin: crumbs of a heap of large blocks
// serve no request and wait for their neighbours. Its bin, if so.
bool oomph_index_has(const oomph_heap_t *heap, const oomph_block_t *block);
unsigned oomph_index_bin(const oomph_heap_t *heap, size_t bytes);

// The best-fitting FREE block on device pages for `bytes`, or NULL.
oomph_block_t *oomph_heap_fit(const oomph_heap_t *heap, size_t bytes);
// The best-fitting FREE block on host pages for `bytes`, or NULL.
oomph_block_t *oomph_heap_fit_host(const oomph_heap_t *heap, size_t bytes);

// Walks the FREE blocks on device pages of at least `bytes`, the smaller bins first:
// begins with `bin` 0 and NULL; NULL ends. The block given must not change in between.
oomph_block_t *oomph_index_walk(const oomph_heap_t *heap, size_t bytes, unsigned *bin,
                                const oomph_block_t *block);
