/* table.h - the blocks in use, found by address: a map of pointers. Pure; the caller
 * holds the device lock.
 */
#pragma once
#include "core/base/map.h"
#include "core/heap/block.h"

// Makes sure that the next add cannot fail. Errors: OOMPH_ERR_NO_MEMORY (host memory).
static inline oomph_status_t oomph_table_reserve(oomph_map_t *table)
{
    return oomph_map_reserve(table)
               ? OOMPH_OK
               : oomph_fail(OOMPH_ERR_NO_MEMORY,
                            "no host memory for the table of blocks");
}

static inline void oomph_table_add(oomph_map_t *table, oomph_block_t *block)
{
    oomph_map_put(table, block->addr, (uintptr_t)block);
}

// The block in use that begins at `addr`, or NULL.
static inline oomph_block_t *oomph_table_find(const oomph_map_t *table,
                                              oomph_addr_t addr)
{
    return addr == 0 ? NULL : (oomph_block_t *)(uintptr_t)oomph_map_get(table, addr, 0);
}

// Takes it out; NULL if there is none.
static inline oomph_block_t *oomph_table_take(oomph_map_t *table, oomph_addr_t addr)
{
    if (addr == 0)
        return NULL;
    oomph_block_t *block = (oomph_block_t *)(uintptr_t)oomph_map_take(table, addr, 0);
    // Its neighbours will be looked at, too: mostly their records were made one after
    // another, so all three can be on their way at once.
    if (block != NULL) {
        __builtin_prefetch(block);
        __builtin_prefetch(block - 1);
        __builtin_prefetch(block + 1);
    }
    return block;
}
