/* slab.c - a stack of free records. Chunks double with what there is, in whole huge
 * pages: records are looked at in random order.
 */
#include "core/heap/slab.h"
#include "core/heap/block.h"

#define CHUNK_MIN ((size_t)64 << 10) // bytes of records taken from the host at once
#define CHUNK_MAX ((size_t)8 << 20)

oomph_status_t oomph_slab_grow(oomph_slab_t *slab, size_t count)
{
    // A small chunk first, then as much as there is already, in whole huge pages.
    size_t bytes = oomph_min(oomph_max(slab->bytes, CHUNK_MIN), CHUNK_MAX);

    while (slab->spare_count < count + slab->promised_count) {
        oomph_block_t *blocks = oomph_map(bytes);
        if (blocks == NULL)
            return oomph_fail(OOMPH_ERR_NO_MEMORY, "no host memory for block records");
        size_t block_count = bytes / sizeof *blocks;
        slab->bytes += bytes;
        for (size_t i = block_count; i-- > 0;) {
            blocks[i].next = slab->spare;
            slab->spare = &blocks[i];
        }
        slab->spare_count += block_count;
    }
    return OOMPH_OK;
}

oomph_block_t *oomph_slab_take(oomph_slab_t *slab)
{
    oomph_block_t *block = slab->spare;

    oomph_assert(block != NULL);
    slab->spare = block->next;
    slab->spare_count--;
    return block;
}

void oomph_slab_give(oomph_slab_t *slab, oomph_block_t *block)
{
    block->next = slab->spare;
    slab->spare = block;
    slab->spare_count++;
}
