/* slab.h - the records of blocks: host memory that is taken in chunks, reused and never
 * returned. Pure; the caller holds the device lock.
 */
#pragma once
#include "core/base/util.h"

typedef struct oomph_block oomph_block_t;

typedef struct oomph_slab {
    oomph_block_t *spare; // linked by `next`
    size_t spare_count;
    size_t promised_count; // of these, for blocks that fall into parts once freed
    size_t bytes;          // host memory taken
} oomph_slab_t;

// Takes records so that the next `count` splits cannot fail.
// Errors: OOMPH_ERR_NO_MEMORY (host memory).
oomph_status_t oomph_slab_grow(oomph_slab_t *slab, size_t count);
static inline oomph_status_t oomph_slab_reserve(oomph_slab_t *slab, size_t count)
{
    return slab->spare_count >= count + slab->promised_count
               ? OOMPH_OK
               : oomph_slab_grow(slab, count);
}

// Takes a record, which was reserved, or gives one back.
oomph_block_t *oomph_slab_take(oomph_slab_t *slab);
void oomph_slab_give(oomph_slab_t *slab, oomph_block_t *block);
